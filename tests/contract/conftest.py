"""Real stores for the contract suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.s3 import S3Server, start_s3
from tests.services.zookeeper import ZooKeeperEnsemble, start_ensemble


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The servers are up before anything counts what a test leaves behind."""
    for item in items:
        for marker, fixture in (("s3", "s3_server"), ("zookeeper", "zookeeper_ensemble")):
            if item.get_closest_marker(marker) and isinstance(item, pytest.Function):
                item.fixturenames.insert(0, fixture)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests of the session."""
    server = start_s3(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers for all tests of the session."""
    ensemble = start_ensemble(tmp_path_factory.mktemp("zookeeper"))
    yield ensemble
    ensemble.stop()
