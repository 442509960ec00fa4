"""Keys of Redis as a sink: each row sets or deletes one, idempotent by the key, or exactly once by a transaction.

Decides what a row becomes (a hash of its columns, or a string), and that the newest row of a key wins, since rows of a
key meet in one subtask. Idempotent: keys are set as rows come, in portions, and at the barrier, so what comes again
after a failure changes nothing in the end. Exactly once: the rows of a subtask and checkpoint are in the checkpoint,
and one MULTI/EXEC sets them, together with a key that names checkpoint and attempt; a commit that is repeated finds
itself done. So nobody ever reads a row of a checkpoint that did not complete.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.files.staging import file_name
from snapline.connectors.own_output import require_kind, require_own
from snapline.connectors.redis.redis_connection import connect, failures, library, refused, texts
from snapline.connectors.row_kinds import BEFORE, GONE, row_kinds
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Committable, Committer, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 1_000
TIMEOUT_MS = 10_000
COMMIT_TRIES = 100
"""So often the transaction of a checkpoint is begun again because its marker was set meanwhile."""
WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.1
log = logging.getLogger(__name__)
Value = bytes | dict[bytes, bytes] | None
"""What a key gets: a string, a hash, or None where it is deleted."""


class RedisSink(Sink):
    """Sets and deletes keys from rows.

    >>> sink = sl_connectors.RedisSink("shop", url="redis://cache:6379/0", prefix="totals:", delete="row_kind")
    >>> sink.two_phase, sink.described
    (False, 'RedisSink totals:*')
    >>> sink.before_writing(orders).key_columns
    ('shop',)
    """

    def __init__(
        self,
        key: str,
        *,
        url: str,
        prefix: str = "",
        value: str = "",
        delete: str = "",
        expire_ms: int | None = None,
        guarantee: Literal["idempotent", "exactly_once"] = "idempotent",
        batch_rows: int = BATCH_ROWS,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`key`: the column whose text, behind `prefix`, is the key. `url`: `redis://user:password@host:port/database`,
        or `rediss://`. `value`: a column that becomes a string; without it the key is a hash of all other columns,
        nulls left out, and a row replaces all of it. `delete`: a column of truth values, true for keys that are to be
        deleted, or of row kinds: `-D` deletes, and `-U` is passed over. `expire_ms`: so long after it was set a key is
        gone. `exactly_once`: keys are set when their checkpoint is complete. `batch_rows`: so many are sent at once.
        Raises ConnectorError for what makes no sense."""
        self.key = key
        self.url = url
        self.prefix = prefix
        self.value = value
        self.delete = delete
        self.expire_ms = expire_ms
        self.guarantee = guarantee
        self.batch_rows = batch_rows
        self.timeout_ms = timeout_ms
        if guarantee not in ("idempotent", "exactly_once"):
            raise ConnectorError(f"{self.described}: guarantee is idempotent or exactly_once, not {guarantee!r}")
        require_positive(self.described, batch_rows=batch_rows, timeout_ms=timeout_ms)
        if expire_ms is not None:
            require_positive(self.described, expire_ms=expire_ms)

    @property
    def described(self) -> str:
        """The sink's kind and keys, for errors."""
        return f"RedisSink {self.prefix}*"

    @property
    def two_phase(self) -> bool:
        return self.guarantee == "exactly_once"

    def validate(self) -> None:
        client = connect(self.url, self.timeout_ms, self.described)
        try:
            client.ping()
        except failures() as error:
            raise refused(self.described, self.url, error) from error
        finally:
            client.close()

    def before_writing(self, stream: Any) -> Any:
        return stream.key_by(self.key)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return RedisWriter(self, context)

    def create_committer(self, context: SourceContextInfo) -> Committer:
        """Idempotent, too: the snapshot may be of a job that wrote exactly once, and hold what nobody has committed."""
        return RedisCommitter(self, context.operator_uid)


class RedisWriter(SinkWriter):
    """Gathers the keys of one subtask."""

    gathers_rows = True

    def __init__(self, sink: RedisSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._client = None if sink.two_phase else connect(sink.url, sink.timeout_ms, sink.described)
        names = (file_name(context.job_id), file_name(context.operator_uid))
        self._marker = f"snapline:{names[0]}:{names[1]}:{context.subtask_index}"
        """The key that says which checkpoint of this subtask was committed last, and by which attempt."""
        self._attempt = context.execution_attempt
        self._pending: dict[bytes, Value] = {}
        self._handed_out = 0
        """The checkpoint of the committable before."""
        self._bytes = context.metrics.counter("bytes_written")
        self._errors = context.metrics.counter("errors")

    def write(self, batch: pa.RecordBatch) -> None:
        sink = self._sink
        keys = texts(batch, sink.key, sink.described)
        kinds = row_kinds(batch, sink.delete, sink.described)
        names = [sink.value] if sink.value else [n for n in batch.schema.names if n not in {sink.key, sink.delete}]
        columns = [(name.encode(), texts(batch, name, sink.described)) for name in names]
        for number, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
            if key is None:
                raise ConnectorError(f"{sink.described}: a row has no key: {sink.key!r} is null")
            if kind == BEFORE:
                continue
            value: Value = None
            if kind != GONE:
                found = {name: values[number] for name, values in columns}
                present = {name: each for name, each in found.items() if each is not None}
                value = present.get(sink.value.encode()) if sink.value else present or None
            self._pending.pop(sink.prefix.encode() + key, None)
            self._pending[sink.prefix.encode() + key] = value
        if self._client is not None and len(self._pending) >= sink.batch_rows:
            self._flush()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if self._client is not None:
            self._flush()
            return ()
        pending, self._pending = self._pending, {}
        if not pending:
            return ()
        self._bytes.inc(sum(len(key) + _size(value) for key, value in pending.items()))
        rows = [[_text(key), _said(value)] for key, value in pending.items()]
        named = {
            "marker": self._marker,
            "checkpoint_id": checkpoint_id,
            "attempt": self._attempt,
            "after": self._handed_out,
        }
        self._handed_out = checkpoint_id
        return [Committable({**named, "rows": rows})]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _flush(self) -> None:
        if not self._pending or self._client is None:
            return
        sink = self._sink
        pending = list(self._pending.items())
        try:
            for start in range(0, len(pending), sink.batch_rows):
                pipeline = self._client.pipeline(transaction=False)
                for key, value in pending[start : start + sink.batch_rows]:
                    _set(pipeline, key, value, sink.expire_ms)
                    self._bytes.inc(len(key) + _size(value))
                pipeline.execute()
        except failures() as error:
            self._errors.inc()
            raise refused(sink.described, sink.url, error) from error
        self._pending = {}


class RedisCommitter(Committer):
    """Sets the keys of a checkpoint in one transaction."""

    def __init__(self, sink: RedisSink, uid: str) -> None:
        self._sink = sink
        self._uid = uid
        self._marker = re.compile(rf"snapline:[^:]+:{re.escape(file_name(uid))}:\d+")
        """What the markers of this sink's subtasks look like, in this job or in one that it goes on from."""
        self._client = connect(sink.url, sink.timeout_ms, sink.described)
        self._is_restored = False

    def restored_from(self, checkpoint_id: int) -> None:
        self._is_restored = True

    def commit(self, committables: Sequence[Committable]) -> None:
        own = self._own(committables)
        deadline = time.monotonic() + WAIT_SECONDS
        for each in sorted(own, key=lambda one: int(one.data["checkpoint_id"])):
            try:
                self._wait_for_those_before(each.data, deadline)
                self._commit(each.data)
            except failures() as error:
                raise refused(self._sink.described, self._sink.url, error) from error
        self._is_restored = False

    def abort(self, committables: Sequence[Committable]) -> bool:
        """Give up nothing, because what was not committed is in the checkpoint alone; what was says its marker."""
        own = self._own(committables)
        try:
            return any(not _is_done(self._client.get(each.data["marker"]), each.data) for each in own)
        except failures() as error:
            raise refused(self._sink.described, self._sink.url, error) from error

    def close(self) -> None:
        self._client.close()

    def _own(self, committables: Sequence[Committable]) -> list[Committable]:
        """All of these, but for what another kind of sink wanted to be swept."""
        require_kind(self._sink.described, committables, "marker")
        own = [each for each in committables if "marker" in each.data]
        markers = [each.data["marker"] for each in own]
        require_own(self._sink.described, "marker", markers, self._is_own, whose=repr(self._uid))
        return own

    def _is_own(self, marker: object) -> bool:
        return isinstance(marker, str) and self._marker.fullmatch(marker) is not None

    def _wait_for_those_before(self, data: Mapping[str, Any], deadline: float) -> None:
        """Where a restore at another parallelism has given what this subtask left for two checkpoints to two subtasks,
        the older one is committed first, which would be taken for done after the newer one."""
        while self._is_restored and _number(self._client.get(data["marker"])) < int(data.get("after", 0)):
            if time.monotonic() > deadline:
                log.warning(
                    "%s: nobody commits checkpoint %d, or the server has forgotten it; going on without",
                    self._sink.described,
                    data["after"],
                )
                return
            time.sleep(PAUSE_SECONDS)

    def _commit(self, data: Mapping[str, Any]) -> None:
        """Set the keys, unless that was done; whoever else sets the marker meanwhile makes this one look again."""
        redis, marker = library(), data["marker"]
        with self._client.pipeline(transaction=True) as pipeline:
            for _ in range(COMMIT_TRIES):
                pipeline.watch(marker)
                if _is_done(pipeline.get(marker), data):
                    return
                pipeline.multi()
                for key, value in data["rows"]:
                    _set(pipeline, _bytes(key), _value(value), self._sink.expire_ms)
                pipeline.set(marker, f"{data['checkpoint_id']} {data.get('attempt', '')}".rstrip())
                try:
                    pipeline.execute()
                except redis.WatchError:
                    continue
                return
        raise ConnectorError(
            f"{self._sink.described}: the key {marker!r} was set by somebody else during each of {COMMIT_TRIES} commits; "
            "it is this sink's own: see which program writes it"
        )


def _number(marker: bytes | None) -> int:
    """The checkpoint that the marker's key says was committed last."""
    return 0 if marker is None else int(marker.decode().partition(" ")[0])


def _is_done(marker: bytes | None, data: Mapping[str, Any]) -> bool:
    """Whether what the marker's key holds says that these rows were committed. Under the number of one checkpoint two
    attempts may commit, one after the other: at the end of their input, where no checkpoint follows it."""
    if marker is None:
        return False
    number, _, attempt = marker.decode().partition(" ")
    known, own = int(number), int(data["checkpoint_id"])
    return known > own or (known == own and attempt == data.get("attempt", ""))


def _set(pipeline: Any, key: bytes, value: Value, expire_ms: int | None) -> None:
    if isinstance(value, bytes):
        pipeline.set(key, value, px=expire_ms)
        return
    pipeline.delete(key)
    if value:
        pipeline.hset(key, mapping=value)
        if expire_ms is not None:
            pipeline.pexpire(key, expire_ms)


def _size(value: Value) -> int:
    if isinstance(value, dict):
        return sum(len(name) + len(each) for name, each in value.items())
    return len(value or b"")


def _said(value: Value) -> Any:
    """A value as a checkpoint has it: bytes are texts of one byte a character."""
    if isinstance(value, dict):
        return {_text(name): _text(each) for name, each in value.items()}
    return None if value is None else _text(value)


def _value(said: Any) -> Value:
    if isinstance(said, dict):
        return {_bytes(name): _bytes(each) for name, each in said.items()}
    return None if said is None else _bytes(said)


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
