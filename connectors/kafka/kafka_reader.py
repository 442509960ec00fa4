"""Reads the partitions of one subtask: polls librdkafka, which fetches ahead on threads of its own, and never waits.

Decides what a poll hands out, when a bounded partition is at its end, which rows are held while their partition waits
for others (watermark alignment), when a cluster that does not answer is given up, and which offsets are published when.
A poll asks for what has arrived; a thread of ours is not needed, and Python's lock is not held meanwhile. Mirrors
Flink's KafkaPartitionSplitReader.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snapline.connectors.connector_metrics import BYTES_READ, CONNECTION_ERRORS, PENDING_ROWS
from snapline.connectors.formats import BadValue
from snapline.connectors.kafka.connection import AskedTopicIds, ClusterHealth, library, out_of_reach
from snapline.connectors.kafka.message_columns import PartitionRows, Place, by_partition, partition_rows
from snapline.connectors.kafka.offsets import CheckpointedOffsets
from snapline.dataflow.api.bad_rows import BAD_ROWS_METRIC
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceContextInfo, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snapline.connectors.kafka.kafka_source import KafkaSource

PROBE_SECONDS = 1.0
"""Before a cluster is given up it is asked once more, so long."""
CLOSE_SECONDS = 5.0
TOPIC_CHECK_MS = 30_000
"""So often a reader asks whether its topics are still those that they were."""
log = logging.getLogger(__name__)


class KafkaReader(SourceReader):
    """The reader of one subtask."""

    def __init__(self, source: KafkaSource, context: SourceContextInfo) -> None:
        self._source = source
        self._library = library()
        metrics = context.metrics
        self._health = ClusterHealth(source.bootstrap_servers, metrics.counter(CONNECTION_ERRORS))
        self._bytes_read = metrics.counter(BYTES_READ)
        metrics.gauge(PENDING_ROWS, self._count_pending)
        settings = source.consumer_settings(context.job_id)
        try:
            self._consumer: Any = self._library.Consumer(
                {**settings, "error_cb": self._health.on_error, "on_commit": self._on_commit, "log_level": 0}
            )
        except self._library.KafkaException as error:
            raise ConnectorError(f"KafkaSource: {error.args[0].str()}") from error
        self._splits: dict[Place, SourceSplit] = {}
        self._offsets: dict[Place, int] = {}
        self._topics = 0
        """How many the splits are of; a snapshot may hold those of topics that the source names no more."""
        self._finished: set[Place] = set()
        self._ended: list[Place] = []
        """Finished, and not said yet."""
        self._ready: deque[PartitionRows] = deque()
        self._paused: frozenset[Place] = frozenset()
        self._published = CheckpointedOffsets(commit_on_checkpoints=source.commit_offsets == "on_checkpoints")
        self._silent_since_ms: int | None = None
        self._is_closed = False
        self._topic_ids: dict[str, set[str]] = {}
        """Ids of the topics that the positions belong to, by name, as far as they are known; several where a topic was
        made anew and a partition of it was found then."""
        self._is_restored = False
        """Whether positions come from a snapshot, so that ids are asked for before any row is handed out."""
        self._asked_ids: AskedTopicIds | None = None
        self._asked_at_ms: int | None = None
        self._bad_rows = context.metrics.counter(BAD_ROWS_METRIC) if source.on_error != "fail" else None
        """Values that were no row."""

    # --- splits -----------------------------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        partition = self._library.TopicPartition
        assigned, added = [], []
        for split in splits:
            place = (str(split.description["topic"]), int(split.description["partition"]))
            offset = int(split.position.get("offset", split.description["start"]))
            self._require_same_end(split)
            self._splits[place], self._offsets[place] = split, offset
            added.append(place)
            if split.finished:
                self._finished.add(place)
                continue
            if topic_id := split.description.get("topic_id"):
                self._topic_ids.setdefault(place[0], set()).add(str(topic_id))
                self._is_restored = self._is_restored or bool(split.position)
            assigned.append(partition(*place, offset))
        self._topics = len({topic for topic, _ in self._splits})
        self._published.update({self._splits[place].split_id: self._offsets[place] for place in added})
        if assigned:
            self._consumer.incremental_assign(assigned)
        for place in added:
            self._maybe_finish(place, self._offsets[place])

    def _require_same_end(self, split: SourceSplit) -> None:
        """Raise ConnectorError where the source has an end and the split of a snapshot none, or the other way round."""
        stop = split.description["stop"]
        if (stop is None) is self._source.bounded:
            was, now = ("has no end", "has stop=") if stop is None else (f"ends at offset {stop}", "has no stop=")
            raise ConnectorError(
                f"KafkaSource: {split.split_id} {was} in the snapshot, and the source {now}; a job that goes on keeps the end that it "
                "had. Give stop= as it was, or start a new job without the old state, with start='group' where offsets were published"
            )

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        asked = frozenset(place for place, split in self._splits.items() if split.split_id in set(split_ids))
        partition = self._library.TopicPartition
        if stopping := [partition(*place) for place in asked - self._paused - self._finished]:
            self._consumer.pause(stopping)
        if going := [partition(*place) for place in self._paused - asked - self._finished]:
            self._consumer.resume(going)
        self._paused = asked

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        self._go_past_markers()
        self._published.snapshot(checkpoint_id)
        return [
            SourceSplit(split.split_id, split.description, {"offset": self._offsets[place]}, self._is_read(place))
            for place, split in self._splits.items()
        ]

    def _go_past_markers(self) -> None:
        """What the client has passed and never hands out, the ends of transactions above all, is read: once retention
        has deleted it, a position before it would look like one whose rows are lost."""
        partition, waiting = self._library.TopicPartition, {rows.place for rows in self._ready}
        asked = [partition(*place) for place in self._offsets if place not in waiting | self._finished]
        for passed in self._consumer.position(asked) if asked else ():
            place = (passed.topic, passed.partition)
            if passed.offset > self._offsets[place]:
                self._offsets[place] = passed.offset
                self._published.update({self._splits[place].split_id: passed.offset})

    # --- reading ----------------------------------------------------------------------------------------------------

    def poll_next(self, now_ms: int) -> Polled:
        if (rows := self._next_ready()) is None:
            self._fetch(now_ms)
            rows = self._next_ready()
        if rows is not None:
            return self._emit(rows)
        if ended := self._take_ended():
            return Polled(InputStatus.MORE_AVAILABLE, finished_splits=ended)
        if len(self._finished) == len(self._splits) and not self._ready:
            return Polled(InputStatus.END_OF_INPUT)
        return Polled(InputStatus.NOTHING_AVAILABLE)

    def _next_ready(self) -> PartitionRows | None:
        """Rows of a partition that need not wait."""
        for _ in range(len(self._ready)):
            rows = self._ready.popleft()
            if rows.place not in self._paused:
                return rows
            self._ready.append(rows)
        return None

    def _emit(self, rows: PartitionRows) -> Polled:
        place = rows.place
        split = self._splits[place]
        self._offsets[place] = rows.next_offset
        self._published.update({split.split_id: rows.next_offset})
        if self._source.commit_offsets == "periodic":
            self._consumer.store_offsets(offsets=[self._library.TopicPartition(*place, rows.next_offset)])
        ended = self._take_ended()
        return Polled(
            InputStatus.MORE_AVAILABLE, rows.batch, split_id=split.split_id, finished_splits=ended, bad_rows=rows.bad
        )

    def _is_read(self, place: Place) -> bool:
        """To its end, and everything was handed out."""
        return place in self._finished and all(rows.place != place for rows in self._ready)

    def _take_ended(self) -> tuple[str, ...]:
        """Splits that have ended since the last call."""
        ended = [place for place in self._ended if self._is_read(place)]
        for place in ended:
            self._ended.remove(place)
        return tuple(self._splits[place].split_id for place in ended)

    def _fetch(self, now_ms: int) -> None:
        """Take over what has arrived."""
        if (
            self._ready
            and all(rows.place in self._paused for rows in self._ready)
            and len(self._ready) > len(self._splits)
        ):
            return  # everything that came belongs to partitions that wait
        if len(self._finished) == len(self._splits):
            return
        messages = self._consumer.consume(self._source.batch_rows, 0)
        self._health.check()
        self._look_at_topics(now_ms)
        if not messages:
            self._watch(now_ms)
            return
        self._health.down, self._silent_since_ms = False, None
        events = [message for message in messages if message.error() is not None]
        if events:
            for event in events:
                self._on_event(event)
            messages = [message for message in messages if message.error() is None]
        if messages:
            if self._is_restored:
                self._is_restored = False
                self._require_same_topics(self._ask_for_ids())
            self._bytes_read.inc(sum(map(len, messages)))
            grouped = by_partition(messages, self._topics)
            ends = {place: group[-1].offset() + 1 for place, group in grouped.items()}
            wanted = {place: kept for place, group in grouped.items() if (kept := self._wanted(place, group))}
            if wanted:
                self._decode(wanted)
            for place, end in ends.items():
                self._maybe_finish(place, end)
        for event in events:
            if event.offset() is not None and event.offset() >= 0:
                self._maybe_finish((event.topic(), event.partition()), event.offset())

    def _count_pending(self) -> float:
        """How many rows of its partitions wait to be handed out; heartbeats ask on a thread of their own."""
        if self._is_closed:  # the client may be closing itself beside the task
            return float("nan")
        partition = self._library.TopicPartition
        pending = 0
        for place, offset in list(self._offsets.items()):
            _, high = self._consumer.get_watermark_offsets(partition(*place), cached=True)
            pending += max(0, high - offset)
        return pending

    def _decode(self, messages: Mapping[Place, list[Any]]) -> None:
        source = self._source
        found, bad = partition_rows(messages, source.format, source.metadata, source.on_error)
        if bad and source.on_error == "fail":
            first = bad[0]
            raise bad_row_error(*first.place, first.offset, first.bad)
        if bad and self._bad_rows is not None:
            self._bad_rows.inc(len(bad))
        if bad and source.on_error == "drop":
            first = bad[0]
            log.warning(
                "KafkaSource dropped %d values that are no rows, the first at %s, partition %d, offset %d: %s",
                len(bad), *first.place, first.offset, first.bad.reason,
            )  # fmt: skip
        self._ready.extend(found)

    def _wanted(self, place: Place, messages: list[Any]) -> list[Any]:
        """Those before the partition's stop."""
        stop = self._splits[place].description["stop"]
        if place in self._finished:
            return []
        if stop is None or messages[-1].offset() < stop:
            return messages
        return [message for message in messages if message.offset() < stop]

    def _maybe_finish(self, place: Place, offset: int) -> None:
        """A bounded partition ends when nothing below its stop is left."""
        stop = self._splits[place].description["stop"]
        if stop is None or offset < stop or place in self._finished:
            return
        self._finished.add(place)
        self._ended.append(place)
        self._consumer.pause([self._library.TopicPartition(*place)])

    def _on_event(self, message: Any) -> None:
        error, codes = message.error(), self._library.KafkaError
        code = error.code()
        if code == codes._PARTITION_EOF:  # noqa: SLF001 - its public name
            return
        place = (message.topic(), message.partition())
        where = f"topic {place[0]!r}, partition {place[1]}"
        if code in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
            if self._begins_later(place):
                return
            raise ConnectorError(self._out_of_range(place))
        if code in {codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED}:
            raise ConnectorError(f"KafkaSource: {where}: {error.str()}; give the user the right to read it")
        if error.fatal() or not error.retriable():
            raise ConnectorError(f"KafkaSource: {where}: {error.str()}")

    def _ask_for_ids(self) -> AskedTopicIds:
        return AskedTopicIds(self._source.bootstrap_servers, self._source.settings, list(self._topic_ids))

    def _look_at_topics(self, now_ms: int) -> None:
        """Now and then ask what the topics are called, without waiting for the answer. Raises for another topic."""
        if self._asked_ids is not None:
            if self._asked_ids.is_answered:
                asked, self._asked_ids = self._asked_ids, None
                self._require_same_topics(asked)
        elif self._asked_at_ms is None or now_ms < self._asked_at_ms:
            self._asked_at_ms = now_ms
        elif self._topic_ids and now_ms - self._asked_at_ms >= TOPIC_CHECK_MS:
            self._asked_at_ms, self._asked_ids = now_ms, self._ask_for_ids()

    def _require_same_topics(self, asked: AskedTopicIds) -> None:
        """Raises when a topic is not the one that the position belongs to."""
        for topic, found in asked.answer().items():
            if self._topic_ids[topic] != {found}:
                raise ConnectorError(
                    f"KafkaSource: topic {topic!r} was deleted and created again since this job began to read it; rows that it had "
                    "before, and the first ones that it has now, may be lost to this job. Start a new job without the old state"
                )

    def _require_topics(self) -> None:
        """Raises when one is not there; asks again, because brokers learn of topics one after the other."""
        for topic in dict.fromkeys(topic for topic, _ in self._splits):
            try:
                found = self._consumer.list_topics(topic, PROBE_SECONDS).topics[topic]
            except self._library.KafkaException:
                return
            if found.error is not None and found.error.code() == self._library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConnectorError(
                    f"KafkaSource: topic {topic!r} is gone; it was deleted while the job reads it, and the job cannot go on from "
                    "its position. Start a new job without the old state"
                )

    def _begins_later(self, place: Place) -> bool:
        """Whether the earliest row is another one by now: retention has deleted what it was at submission, and no row
        of the partition was read yet. Then it is read from there."""
        split, partition = self._splits[place], self._library.TopicPartition
        if self._source.start != "earliest" or self._offsets[place] != split.description["start"]:
            return False
        try:
            low, _ = self._consumer.get_watermark_offsets(partition(*place), PROBE_SECONDS, False)
        except self._library.KafkaException:
            return False
        if low <= self._offsets[place]:
            return False
        log.warning("KafkaSource: the earliest row of %s has become offset %d since submission", split.split_id, low)
        self._offsets[place] = low
        self._published.update({split.split_id: low})
        self._consumer.incremental_unassign([partition(*place)])
        self._consumer.incremental_assign([partition(*place, low)])
        self._maybe_finish(place, low)
        return True

    def _out_of_range(self, place: Place) -> str:
        offset = self._offsets[place]
        try:
            partition = self._library.TopicPartition(*place)
            low, high = self._consumer.get_watermark_offsets(partition, PROBE_SECONDS, False)
            there = f"it has offsets {low} to {high - 1}" if high > low else f"it is empty and goes on at {high}"
        except self._library.KafkaException:
            there, low, high = "it has other offsets", 0, 0
        if offset < low:
            why = f"{low - offset} rows were deleted (retention) before they were read; they are lost to this job"
        else:
            why = "the topic was created again, or its log was cut"
        way_out = "without the old state"
        if self._source.start == "group" and offset == self._splits[place].description["start"]:
            way_out = f"with start='earliest' or a time: group {self._source.group_id!r} stands at this offset, too"
        return (
            f"KafkaSource: offset {offset} of topic {place[0]!r}, partition {place[1]} is not there ({there}): {why}. Start a new "
            f"job {way_out}"
        )

    def _watch(self, now_ms: int) -> None:
        """Nothing came: perhaps nobody is there."""
        if self._health.topic_missing:
            self._health.topic_missing = False
            self._require_topics()
        if not self._health.down:
            return
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
            log.warning("KafkaSource: no broker answers at %s; trying on", self._source.bootstrap_servers)
        elif now_ms - self._silent_since_ms >= self._source.give_up_after_ms:
            try:
                self._consumer.list_topics(self._source.topics[0], PROBE_SECONDS)
            except self._library.KafkaException as error:
                why = f"for {self._source.give_up_after_ms} ms; {error.args[0].str()}"
                raise out_of_reach(self._source.bootstrap_servers, why) from error
            self._health.down, self._silent_since_ms = False, None

    # --- offsets for others to see ----------------------------------------------------------------------------------

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        offsets = self._published.notify_checkpoint_complete(checkpoint_id)
        if offsets:
            self._publish(offsets)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._published.notify_checkpoint_aborted(checkpoint_id)

    def _publish(self, offsets: Mapping[str, int]) -> None:
        places = {split.split_id: place for place, split in self._splits.items()}
        partition = self._library.TopicPartition
        self._consumer.commit(offsets=[partition(*places[name], at) for name, at in offsets.items()], asynchronous=True)

    def _on_commit(self, error: Any, _: Any) -> None:
        """Positions are in checkpoints; a failure here is for those who look at the group."""
        if error is not None:
            log.warning("KafkaSource: offsets of group %s were not published: %s", self._source.group_id, error.str())

    def close(self) -> None:
        """Close the client, which would wait for brokers that are away to take its last offsets."""
        self._is_closed = True
        closing = threading.Thread(target=self._consumer.close, name="kafka-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def bad_row_error(topic: str, partition: int, offset: int, bad: BadValue) -> ConnectorError:
    """Where the value is, why it is no row, and the way out."""
    return ConnectorError(
        f"KafkaSource: the value at topic {topic!r}, partition {partition}, offset {offset} is no row: {bad.reason}; "
        "on_error='drop' leaves such rows out, on_error='side_output' sets them aside with the reason"
    )
