"""Which job a client finds by what people type."""

from __future__ import annotations

import pytest

from snapline.client import ClusterClient, RequestRefused
from snapline.protos import client_pb2 as pb


class Listing(ClusterClient):
    """A client of a cluster with these jobs, by id and name, the newest first; it asks nobody."""

    def __init__(self, *jobs: tuple[str, str]) -> None:
        self._jobs = [pb.JobOverview(job_id=job_id, name=name) for job_id, name in jobs]

    def list_jobs(self) -> list[pb.JobOverview]:
        return self._jobs


def test_an_id_is_the_id_of_its_job_whatever_others_are_called() -> None:
    """A newer job whose name was the id of another one was cancelled in its place."""
    client = Listing(("c2", "c1"), ("c1", "orders"))
    assert client.resolve_job("c1") == "c1"
    assert client.resolve_job("orders") == "c1"


def test_a_name_is_that_of_the_newest_job_and_comes_before_the_beginning_of_an_id() -> None:
    """The beginning of several ids is none."""
    client = Listing(("ab", "night"), ("ac", "night"), ("ad", "a"))
    assert client.resolve_job("night") == "ab"
    assert client.resolve_job("a") == "ad"
    assert client.resolve_job("ac") == "ac"
    with pytest.raises(RequestRefused, match="more than one job begins with 'a'"):
        Listing(("ab", "night"), ("ac", "night")).resolve_job("a")
