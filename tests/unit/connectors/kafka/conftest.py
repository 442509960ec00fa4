"""A Kafka for the tests of its connectors."""

from __future__ import annotations

import pytest

from tests.services import kafka as services


@pytest.fixture
def kafka(tmp_path):
    """Two nodes of our own, or the real cluster."""
    running = services.start(tmp_path, nodes=2)
    yield running
    services.stop(running)
