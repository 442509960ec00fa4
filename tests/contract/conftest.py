"""Real stores for the contract suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.s3 import S3Server, start_s3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The server is up before anything counts what a test leaves behind."""
    for item in items:
        if item.get_closest_marker("s3") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "s3_server")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests of the session."""
    server = start_s3(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()
