"""Fixtures of pytest: `pytest_plugins = ["snapline.testing.fixtures"]` in the `conftest.py` of a project asks for them.

Nothing is registered with pytest by installing Snapline (docs/decisions/0088).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from snapline.testing.mini_cluster import MiniCluster


@pytest.fixture
def mini_cluster() -> Iterator[MiniCluster]:
    """A MiniCluster of this test alone, whose jobs end with the test."""
    with MiniCluster() as cluster:
        yield cluster
