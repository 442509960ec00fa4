"""Several sources one after the other, as one: history from files, say, then what comes from a topic.

Decides that a phase begins when everything of the phase before it was read by every reader, and that its splits are
found then, by the one task that hands splits out; so the switch is a part of its state, and of every checkpoint. A
split knows its phase, so that a reader makes the right reader for it. It does not know what the sources are. Mirrors
Flink's HybridSource, whose enumerator and readers agree on the switch by events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.connector_api import (
    Discovery,
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from snapline.dataflow.api.master_hooks import WithMasterCheckpointHook
from snapline.dataflow.errors import ConnectorError


class HybridSource(Source):
    """Reads sources one after the other; all but the last one have an end, and all have the same columns.

    >>> history = sl.GeneratorSource(rows=100, keys=10)
    >>> source = sl_connectors.HybridSource(history, sl.GeneratorSource(keys=10, rows_per_second=10))
    >>> source.bounded, source.schema().names, source.splits_at_once
    (False, ['key', 'value'], None)
    """

    def __init__(self, *sources: Source) -> None:
        """`sources`: in the order in which they are read."""
        if len(sources) < 2:
            raise ConnectorError("HybridSource: give at least two sources")
        for number, source in enumerate(sources):
            if not isinstance(source, Source) or isinstance(source, HybridSource):
                raise ConnectorError(f"HybridSource: source {number} is {source!r}; give sources that are not hybrid")
            if isinstance(source, WithMasterCheckpointHook):
                raise ConnectorError(
                    f"HybridSource: source {number}, {type(source).__name__}, brings a master hook, which nobody would ask here; "
                    "give it to a function of the job"
                )
            if number < len(sources) - 1 and not source.bounded:
                raise ConnectorError(
                    f"HybridSource: source {number}, {type(source).__name__}, has no end, so that the next one would never begin"
                )
        self.sources: tuple[Source, ...] = sources

    @property
    def bounded(self) -> bool:
        return self.sources[-1].bounded

    def schema(self) -> pa.Schema | None:
        """The schema of the first source. Raises ConnectorError when another one has other columns."""
        schemas = [source.schema() for source in self.sources]
        first = schemas[0]
        for number, schema in enumerate(schemas):
            if first is None or schema is None:
                continue
            mine = {field.name: field.type for field in first}
            other = {field.name: field.type for field in schema}
            for name in [*mine, *other]:
                if mine.get(name) != other.get(name):
                    raise ConnectorError(
                        f"HybridSource: column {name!r} is {mine.get(name, 'missing')} in source 0, {type(self.sources[0]).__name__}, and "
                        f"{other.get(name, 'missing')} in source {number}, {type(self.sources[number]).__name__}; give them the same columns"
                    )
        return None if first is None else pa.schema([field.with_nullable(True) for field in first])

    @property
    def sets_bad_rows_aside(self) -> bool:
        return any(source.sets_bad_rows_aside for source in self.sources)

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """None: each source is asked when it begins. They are asked here, too, so that missing input is said early."""
        for source in self.sources:
            source.enumerate_splits()
        return ()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return HybridEnumerator(self.sources)

    @property
    def splits_at_once(self) -> int | None:
        limits = [source.splits_at_once for source in self.sources]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        schema = self.schema()
        return HybridReader(self.sources, context, None if schema is None else schema.names)


class HybridEnumerator(SplitEnumerator):
    """Finds the splits of one source, and when all were read those of the next."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._phase = -1
        self._enumerator: SplitEnumerator | None = None

    def discover(self, state: dict[str, Any]) -> Discovery:
        phase = int(state.get("phase", 0))
        source = _source_of(self._sources, phase)
        begun: Sequence[SourceSplit] = () if "inner" in state else source.enumerate_splits()
        if self._phase != phase:
            self.close()
            self._phase, self._enumerator = phase, source.create_enumerator(begun)
        found = Discovery(finished=True)
        if self._enumerator is not None:
            found = self._enumerator.discover(state.get("inner", {}))
        splits = [_outer(phase, split) for split in (*begun, *found.splits)]
        limit = source.splits_at_once
        if found.at_once is not None:
            limit = found.at_once if limit is None else min(limit, found.at_once)
        if found.finished and phase + 1 < len(self._sources):
            return Discovery(splits, {"phase": phase + 1}, again_after_ms=0, after_all_read=True, at_once=limit)
        inner = {"phase": phase, "inner": found.state}
        return Discovery(splits, inner, found.finished, found.again_after_ms, found.after_all_read, limit)

    def close(self) -> None:
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            enumerator.close()


class HybridReader(SourceReader):
    """Has one reader, that of the source whose splits came last."""

    def __init__(self, sources: Sequence[Source], context: SourceContextInfo, names: Sequence[str] | None) -> None:
        self._sources = sources
        self._context = context
        self._names = list(names) if names is not None else None
        self._phase = -1
        self._reader: SourceReader | None = None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for phase in sorted({int(split.description["phase"]) for split in splits}):
            if phase != self._phase:
                self.close()
                self._phase, self._reader = phase, _source_of(self._sources, phase).create_reader(self._context)
            if self._reader is not None:
                self._reader.add_splits([_inner(split) for split in splits if split.description["phase"] == phase])

    def poll_next(self, now_ms: int) -> Polled:
        if self._reader is None:
            return Polled(InputStatus.NOTHING_AVAILABLE)
        polled = self._reader.poll_next(now_ms)
        batch = polled.batch
        if batch is not None and self._names is not None and batch.schema.names != self._names:
            batch = batch.select(self._names)
        split_id = _outer_id(self._phase, polled.split_id) if polled.split_id else ""
        finished = tuple(_outer_id(self._phase, each) for each in polled.finished_splits)
        return Polled(polled.status, batch, polled.wake_at_ms, split_id, finished, polled.bad_rows)

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        if self._reader is not None:
            start = _outer_id(self._phase, "")
            self._reader.pause_splits([each.removeprefix(start) for each in split_ids if each.startswith(start)])

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        if self._reader is None:
            return ()
        return [_outer(self._phase, split) for split in self._reader.snapshot_splits(checkpoint_id)]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._reader is not None:
            self._reader.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        if self._reader is not None:
            self._reader.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _source_of(sources: Sequence[Source], phase: int) -> Source:
    """The source of a phase. Raises ConnectorError when a snapshot is of more sources than there are."""
    if phase >= len(sources):
        raise ConnectorError(
            f"HybridSource: the snapshot is of a job that has come to source {phase}, and there are {len(sources)}; give the sources "
            "that the job had, or another uid to read from the start"
        )
    return sources[phase]


def _outer_id(phase: int, split_id: str) -> str:
    return f"{phase}:{split_id}"


def _outer(phase: int, split: SourceSplit) -> SourceSplit:
    """A split of a source, with the number of the source."""
    description = {"phase": phase, "split_id": split.split_id, "split": split.description}
    return SourceSplit(
        _outer_id(phase, split.split_id), description, split.position, split.finished, split.least_times_ms
    )


def _inner(split: SourceSplit) -> SourceSplit:
    """The split as its source knows it."""
    description = split.description
    return SourceSplit(
        description["split_id"], description["split"], split.position, split.finished, split.least_times_ms
    )
