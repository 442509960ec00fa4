"""What a snapshot says that a sink has pre-committed: believed only where the sink gives such names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from snapline.dataflow.api.connector_api import Committable
from snapline.dataflow.errors import ConnectorError

Named = TypeVar("Named")


def require_own(
    described: str, what: str, named: Iterable[Named], is_own: Callable[[Named], bool], *, whose: str
) -> None:
    """Raise ConnectorError for the first of these names that is not the sink's, before anything is ended.

    `described`: the sink as in other errors; `what`: what is named, such as "transaction"; `whose`: the sink's uid, and
    what else its names are made of.

    >>> require_own("RedisSink visits", "marker", ["out:1", "sessions"], lambda name: name == "out:1", whose="'out'")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: RedisSink visits: the snapshot names the marker 'sessions', which the sink
    'out' has not made: it was changed, or is another job's; take another snapshot
    """
    for name in named:
        if not is_own(name):
            raise ConnectorError(
                f"{described}: the snapshot names the {what} {name!r:.300}, which the sink {whose} has not made: it was changed, "
                "or is another job's; take another snapshot"
            )


def require_kind(described: str, committables: Iterable[Committable], key: str) -> None:
    """Raise ConnectorError for rows that another kind of sink has pre-committed, which this one cannot make visible.

    `described`: the sink as in other errors; `key`: what each of its committables has, but for notes of what is to be
    swept.

    >>> require_kind("KafkaSink visits", [sl.Committable({"staged": "a"})], "transactional_id")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: KafkaSink visits: the snapshot holds rows that another kind of sink has
    pre-committed under this uid, so that they may be lost: go on with that sink, or end them with `snapline transactions
    commit` and give this one another uid
    """
    if any(key not in each.data and "sweep" not in each.data for each in committables):
        raise ConnectorError(
            f"{described}: the snapshot holds rows that another kind of sink has pre-committed under this uid, so that they may be "
            "lost: go on with that sink, or end them with `snapline transactions commit` and give this one another uid"
        )
