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

    def get_job(self, job_id: str) -> pb.JobDetails:
        for job in self._jobs:
            if job.job_id == job_id:
                return pb.JobDetails(overview=job)
        raise RequestRefused("there is no such job")


class Scoped(Listing):
    """A client with a credential for one job."""

    def list_jobs(self) -> list[pb.JobOverview]:
        raise RequestRefused("this credential is for one job only, and the call is about all jobs")


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


def test_a_whole_id_is_found_by_who_may_not_list_all_jobs() -> None:
    """No command took a credential for one job, whatever it named. A name may look like an id."""
    whole = "0f" * 16
    assert Scoped((whole, "orders")).resolve_job(whole) == whole
    assert Listing(("ab", whole)).resolve_job(whole) == "ab"
    with pytest.raises(RequestRefused, match="for one job only"):
        Scoped((whole, "orders")).resolve_job("orders")
