"""Finds partitions and the offsets where they start and stop, at submission and, where asked for, while a job runs.

Decides that times and group offsets become numbers here, once, so that a restart starts at the same row; that a new
partition is read from its first row, whatever the source's start is, because its rows are younger than the job; that
the state is the number of partitions of each topic, since Kafka only ever adds to them; and that a cluster which does
not answer is asked again, until the source would give it up. Mirrors Flink's KafkaSourceEnumerator.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snapline.connectors.kafka.connection import METADATA_SECONDS, AskedTopicIds, CredentialsRefused, Metadata
from snapline.dataflow.api.connector_api import Discovery, SourceSplit, SplitEnumerator
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.kafka.kafka_source import KafkaSource

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
A_MILLISECOND = dt.timedelta(milliseconds=1)
log = logging.getLogger(__name__)


class PartitionEnumerator(SplitEnumerator):
    """Asks the cluster for partitions that were added."""

    def __init__(self, source: KafkaSource, splits: Sequence[SourceSplit]) -> None:
        """`splits`: those of the partitions that there were at submission."""
        self._source = source
        self._at_submission = dict(Counter(str(split.description["topic"]) for split in splits))
        self._failing_since: float | None = None

    def discover(self, state: dict[str, Any]) -> Discovery:
        known: dict[str, int] = state.get("partitions", self._at_submission)
        again_after_ms = self._source.partition_discovery_ms or 1
        try:
            added = partition_splits(self._source, "earliest", known)
        except CredentialsRefused:
            raise
        except ConnectorError as error:
            now = time.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            if (now - self._failing_since) * 1000 >= self._source.give_up_after_ms:
                raise
            log.warning("KafkaSource cannot look for new partitions: %s; trying on", error)
            return Discovery((), {"partitions": known}, again_after_ms=again_after_ms)
        self._failing_since = None
        if added:
            log.info("KafkaSource has found new partitions: %s", ", ".join(split.split_id for split in added))
        counts = Counter(known) + Counter(str(split.description["topic"]) for split in added)
        return Discovery(added, {"partitions": dict(counts)}, again_after_ms=again_after_ms)


def partition_splits(
    source: KafkaSource, start: str | dt.datetime, known: Mapping[str, int] | None = None
) -> Sequence[SourceSplit]:
    """Splits of all partitions of the source's topics, but for the first so many of each that are known. Raises
    ConnectorError when a topic is not there, or no broker is."""
    with Metadata(source.bootstrap_servers, source.consumer_settings("")) as cluster:
        partition = cluster.library.TopicPartition
        places = [
            partition(topic, number)
            for topic in source.topics
            for number in cluster.partitions(topic, "KafkaSource")
            if number >= (known or {}).get(topic, 0)
        ]
        if not places:
            return []
        starts = _offsets(source, cluster, places, start)
        stops = [None] * len(places) if source.stop is None else _offsets(source, cluster, places, source.stop)
    ids = AskedTopicIds(source.bootstrap_servers, source.settings, sorted({place.topic for place in places})).answer()
    return [
        SourceSplit(
            f"{place.topic}#{place.partition}",
            {
                "topic": place.topic,
                "partition": place.partition,
                "start": first,
                "stop": stop,
                "topic_id": ids.get(place.topic),
            },
        )
        for place, first, stop in zip(places, starts, stops, strict=True)
    ]


def _offsets(source: KafkaSource, cluster: Metadata, places: Sequence[Any], where: str | dt.datetime) -> list[int]:
    """The offset of each partition, as a number. Kafka has milliseconds: the first one that is not before a time is
    asked for, and none before 1970, which would be its words for the latest and the earliest row."""
    consumer, partition = cluster.consumer, cluster.library.TopicPartition

    def edges(place: Any) -> tuple[int, int]:
        low, high = cluster.ask(lambda: consumer.get_watermark_offsets(place, METADATA_SECONDS))
        return low, high

    if isinstance(where, dt.datetime):
        aware = where if where.tzinfo is not None else where.replace(tzinfo=dt.UTC)
        time_ms = max(0, -((EPOCH - aware) // A_MILLISECOND))
        asked = [partition(place.topic, place.partition, time_ms) for place in places]
        ends = [edges(place)[1] for place in places]  # asked for first: a row that comes meanwhile is not passed over
        found = cluster.ask(lambda: consumer.offsets_for_times(asked, METADATA_SECONDS))
        return [one.offset if one.offset >= 0 else end for one, end in zip(found, ends, strict=True)]
    if where == "group":
        group = cluster.library.Consumer(source.consumer_settings(""))
        try:
            found = cluster.ask(lambda: group.committed(list(places), METADATA_SECONDS))
        finally:
            group.close()
        for one in found:
            if one.error is not None:  # which is not that the group has published nothing
                raise ConnectorError(
                    f"KafkaSource: the offset that group {source.group_id!r} has published for topic {one.topic!r}, partition {one.partition} "
                    f"cannot be read: {one.error.str()}; try again, or give the user the right to read it"
                )
        return [one.offset if one.offset >= 0 else edges(one)[0] for one in found]
    return [edges(place)[1 if where == "latest" else 0] for place in places]
