"""Tables of HBase as a sink: puts and deletes from rows, sent in batches and at the barrier.

Decides what a row becomes (a put of its cells, or a delete), that mutations of a row keep their order (HBase hides a
put behind a delete of the same millisecond, so a batch has one kind for a row, and a put waits when its row was deleted
just now), that a connection which the server has ended is made anew, since what is sent twice changes nothing, and that
an error of the server fails the task: what was sent since the last checkpoint comes again, and changes nothing in the
end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from snapline.connectors.connector_metrics import BYTES_WRITTEN
from snapline.connectors.files.filesystems import first_line
from snapline.connectors.row_kinds import BEFORE, GONE, row_kinds
from snapline.connectors.texts_of_values import texts_of_values
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError

TIMEOUT_MS = 30_000
ROW_KEY_BYTES_MAX = 32_767
PAUSE_SECONDS = 0.002
"""After it, the server's clock has gone on by a millisecond at least."""


class HBaseSink(Sink):
    """Writes rows to a table that is there.

    >>> sink = sl_connectors.HBaseSink("totals", host="hbase", row_key="shop", family="d", delete="gone")
    >>> sink.two_phase, sink.described
    (False, 'HBaseSink totals')
    """

    def __init__(
        self,
        table: str,
        *,
        host: str,
        row_key: str,
        family: str,
        port: int = 9090,
        delete: str = "",
        batch_rows: int = 1_000,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """`host`, `port`: of HBase's Thrift server. `row_key`: the column that names the row. Every other column is a
        cell of `family`, under its name; bytes as they are, else as text in UTF-8; null is no cell. `delete`: a column
        of truth values, true for rows that are to be deleted, or of row kinds: `-D` deletes, and `-U` is passed over.
        `batch_rows`: so many rows are sent at once."""
        require_positive("HBaseSink", batch_rows=batch_rows, timeout_ms=timeout_ms)
        self.table = table
        self.host = host
        self.port = port
        self.row_key = row_key
        self.family = family
        self.delete = delete
        self.batch_rows = batch_rows
        self.timeout_ms = timeout_ms

    @property
    def described(self) -> str:
        """The sink's kind and table, for errors."""
        return f"HBaseSink {self.table}"

    @property
    def two_phase(self) -> bool:
        return False

    def validate(self) -> None:
        connection = connect(self)
        try:
            there = [name.decode() for name in connection.tables()]
            if self.table not in there:
                raise ConnectorError(f"{self.described}: there is no such table; create it first")
            families = [name.decode().rstrip(":") for name in connection.table(self.table).families()]
            if self.family not in families:
                raise ConnectorError(
                    f"{self.described}: there is no column family {self.family!r} but {', '.join(families)}; add it, or name one"
                )
        except failures() as error:
            raise refused(self, error) from error
        finally:
            connection.close()

    def before_writing(self, stream: Any) -> Any:
        return stream.key_by(self.row_key)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return HBaseWriter(self, context.metrics.counter(BYTES_WRITTEN))


def connect(sink: HBaseSink) -> Any:
    """A connection to the Thrift server. Raises ConnectorError."""
    try:
        import happybase
    except ImportError as error:
        raise ConnectorError("HBase needs happybase: pip install 'snapline[hbase]'") from error
    try:
        return happybase.Connection(sink.host, sink.port, timeout=sink.timeout_ms)
    except failures() as error:
        raise refused(sink, error) from error


def failures() -> tuple[type[Exception], ...]:
    """What happybase raises for what the server says and for the way to it; whatever else is raised is a defect."""
    from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]  # is compiled
    from thriftpy2.thrift import TException

    return (TException, OSError, ProtocolError, SystemError)  # the last two when what answers does not speak Thrift


def is_ended(error: Exception) -> bool:
    """Whether the server has ended the connection, as it does when nothing was sent for a minute."""
    from thriftpy2.transport import TTransportException

    return isinstance(error, (TTransportException, ConnectionError))


def refused(sink: HBaseSink, error: Exception) -> ConnectorError:
    """Say in one line what the server says, or that none answers."""
    message = getattr(error, "message", "") or str(error)
    said = first_line(ConnectorError(message.decode(errors="replace") if isinstance(message, bytes) else message))
    if type(error).__name__ in {"IOError", "IllegalArgument"} and not isinstance(error, OSError):  # Thrift's
        return ConnectorError(f"{sink.described}: HBase refuses what was sent: {said}")
    return ConnectorError(
        f"{sink.described}: no Thrift server of HBase answers at {sink.host}:{sink.port} ({said}); check the address, and that it runs"
    )


class HBaseWriter(SinkWriter):
    """Sends the mutations of one subtask."""

    gathers_rows = True

    def __init__(self, sink: HBaseSink, bytes_written: Counter) -> None:
        self._sink = sink
        self._bytes_written = bytes_written
        self._connection = connect(sink)
        self._table = self._connection.table(sink.table)
        self._pending: dict[bytes, dict[bytes, bytes] | None] = {}
        """The cells of each row, or None for a delete."""
        self._deleted: dict[bytes, float] = {}
        """Rows that were deleted lately, and when that was done."""

    def write(self, batch: pa.RecordBatch) -> None:
        sink = self._sink
        if sink.row_key not in batch.schema.names:
            raise ConnectorError(
                f"{sink.described}: the rows have no column {sink.row_key!r} but {', '.join(batch.schema.names)}"
            )
        keys = self._values(batch, sink.row_key)
        kinds = row_kinds(batch, sink.delete, sink.described)
        names = [name for name in batch.schema.names if name not in {sink.row_key, sink.delete}]
        columns = [(f"{sink.family}:{name}".encode(), self._values(batch, name)) for name in names]
        for number, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
            if not key:
                raise ConnectorError(f"{sink.described}: a row has no row key: {sink.row_key!r} is null or empty")
            if len(key) > ROW_KEY_BYTES_MAX:
                raise ConnectorError(
                    f"{sink.described}: a row key of {len(key)} bytes, which begins with {key[:40]!r}; HBase takes {ROW_KEY_BYTES_MAX}"
                )
            if kind == BEFORE:
                continue
            cells = {name: values[number] for name, values in columns if values[number] is not None}
            self._add(key, None if kind == GONE else cells)  # type: ignore[arg-type]  # nulls are left out

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        self._flush()
        return ()

    def close(self) -> None:
        self._connection.close()

    def _add(self, key: bytes, cells: dict[bytes, bytes] | None) -> None:
        if key in self._pending:
            before = self._pending[key]
            if (before is None) != (cells is None):
                self._flush()
            elif before is not None and cells is not None:
                cells = {**before, **cells}
        if cells is None or cells:
            self._pending[key] = cells
        if len(self._pending) >= self._sink.batch_rows:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        lately = time.monotonic() - PAUSE_SECONDS
        self._deleted = {key: at for key, at in self._deleted.items() if at > lately}
        if any(cells is not None and key in self._deleted for key, cells in self._pending.items()):
            time.sleep(PAUSE_SECONDS)
            self._deleted = {}
        try:
            try:
                self._send()
            except failures() as error:
                if not is_ended(error):
                    raise
                self._connection.close()
                self._connection = connect(self._sink)
                self._table = self._connection.table(self._sink.table)
                self._send()
        except failures() as error:
            raise refused(self._sink, error) from error
        now = time.monotonic()
        self._deleted |= {key: now for key, cells in self._pending.items() if cells is None}
        sent = [cells for cells in self._pending.values() if cells is not None]
        self._bytes_written.inc(sum(len(name) + len(value) for cells in sent for name, value in cells.items()))
        self._pending = {}

    def _send(self) -> None:
        batch = self._table.batch()
        for key, cells in self._pending.items():
            if cells is None:
                batch.delete(key)
            else:
                batch.put(key, cells)
        batch.send()

    def _values(self, batch: pa.RecordBatch, name: str) -> list[bytes | None]:
        """The values of a column as bytes; null stays null."""
        return texts_of_values(batch.column(name), f"{self._sink.described}: column {name!r}")
