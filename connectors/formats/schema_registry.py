"""Avro in Confluent's wire format: each value names the schema that it was written with, by its id in a registry.

Decides that a value is read with the schema of its writer and resolved to the one that the job knows, so that columns
stay as they are while writers move on; that schemas are asked for once and kept; that an id which the registry does not
know, or whose schema makes no sense, makes a bad row; and that a registry which cannot be reached fails the job.
Mirrors Flink's ConfluentRegistryAvroDeserializationSchema.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.avro_bounds import bound_decimals, check_schema
from snapline.connectors.formats.row_format import BadValue
from snapline.dataflow.errors import ConnectorError

MAGIC = 0
HEADER_BYTES = 5
TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 << 20
"""No schema is longer; a registry, or what stands at its address, that says more is not believed."""
NOT_FOUND = 404


class UnknownSchema(ValueError):
    """An id that no registry gave out."""


class ConfluentAvroFormat(AvroFormat):
    """One Avro datum a row, behind the id of its schema, as Confluent's serializers write it.

    The registry is asked when the first value is decoded or encoded, and each schema once.

    >>> record = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
    >>> avro = sl_connectors.ConfluentAvroFormat(record, registry="http://127.0.0.1:8081", subject="numbers-value")
    >>> avro.schema.names
    ['n']
    """

    def __init__(self, schema: str | Mapping[str, Any], *, registry: str, subject: str = "") -> None:
        """`schema`: of the columns; values that were written with another one are resolved to it. `registry`: its
        address, with `user:password@` if it wants them. `subject`: under which a sink registers the schema,
        `<topic>-value` by custom."""
        super().__init__(schema)
        try:
            parts = urllib.parse.urlsplit(registry)
            if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.path:
                raise ValueError("write http://host:port")
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            host = host if parts.port is None else f"{host}:{parts.port}"
        except ValueError as error:
            before, _, without_login = str(registry).rpartition("@")
            advice = "write http://host:port, with letters such as / # ? of a login as %2F %23 %3F"
            why = advice if before else str(error)  # which shows what it takes for a port
            raise ConnectorError(
                f"ConfluentAvroFormat: registry is no address of http or https: {without_login!r} ({why})"
            ) from None
        self._registry = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        login = f"{urllib.parse.unquote(parts.username or '')}:{urllib.parse.unquote(parts.password or '')}"
        self._login = base64.b64encode(login.encode()).decode() if parts.username else ""
        self._subject = subject
        self._writers: dict[int, Any] = {}
        self._unusable: dict[int, str] = {}
        """What is wrong with a schema of the registry, so that it is asked for once."""
        self._unknown: set[int] = set()
        """Ids that the registry does not know, among the values that are decoded now: a schema may yet come."""
        self._own_id: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was asked for."""
        return {**super().__getstate__(), "_writers": {}, "_unusable": {}, "_unknown": set(), "_own_id": None}

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[BadValue]]:
        """Decode as any format does, and ask for an id that nobody knows once, however many values name it."""
        self._unknown.clear()
        return super().decode(values)

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Decode each value with the schema that it was written with, and resolve it to the job's.

        Raises ValueError for a value in another format, and UnknownSchema for an id that the registry does not have.
        """
        import fastavro

        bound_decimals()
        own = self.parsed_schema()
        data, end = io.BytesIO(b"".join(values)), 0
        rows: list[Any] = []
        for value in values:
            if len(value) < HEADER_BYTES or value[0] != MAGIC:
                raise ValueError(
                    "not in Confluent's wire format: it does not begin with a zero byte and the id of a schema"
                )
            writer = self._writer(int.from_bytes(value[1:HEADER_BYTES], "big"))
            data.seek(end + HEADER_BYTES)
            end += len(value)
            try:
                rows.append(fastavro.schemaless_reader(data, writer, own))
            except fastavro.read.SchemaResolutionError as error:
                raise ValueError(f"its schema does not resolve to the job's: {error}") from error
            if data.tell() != end:
                raise ValueError(f"the Avro datum is {end - data.tell()} bytes shorter than the value")
        return self.batch_of(rows)

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        """Encode each row behind the id under which the registry has the job's schema; it is registered once.

        Raises ConnectorError without a subject.
        """
        if self._own_id is None:
            if not self._subject:
                raise ConnectorError(
                    "ConfluentAvroFormat: to write, say subject=, under which the schema is registered"
                )
            where = f"/subjects/{urllib.parse.quote(self._subject, safe='')}/versions"
            own_id = self._ask(where, {"schema": json.dumps(self.avro_schema)}).get("id")
            if not isinstance(own_id, int) or not 0 <= own_id < 1 << 32:
                raise ConnectorError(f"the schema registry at {self._registry} gives {own_id!r} for an id of a schema")
            self._own_id = own_id
        header = bytes([MAGIC]) + self._own_id.to_bytes(4, "big")
        return [None if value is None else header + value for value in super().encode(batch)]

    def _writer(self, schema_id: int) -> Any:
        """The schema that a value was written with."""
        if schema_id in self._unusable:
            raise ValueError(self._unusable[schema_id])
        if schema_id not in self._writers:
            answer = None if schema_id in self._unknown else self._ask(f"/schemas/ids/{schema_id}")
            if answer is None:
                self._unknown.add(schema_id)
                raise UnknownSchema(f"schema id {schema_id} is unknown to the registry at {self._registry}")
            try:
                self._writers[schema_id] = _schema_of(answer)
            except (IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
                self._unusable[schema_id] = (
                    f"schema id {schema_id} cannot be used ({type(error).__name__}: {first_line(error)})"
                )
                raise ValueError(self._unusable[schema_id]) from error
        return self._writers[schema_id]

    def _ask(self, path: str, body: Any = None) -> Any:
        """The object that is the answer, or None when there is no such schema. Raises ConnectorError when nobody
        answers, or with something else."""
        from http.client import HTTPException
        from urllib.error import HTTPError  # 30 ms, which no other format needs
        from urllib.request import Request, urlopen

        request = Request(  # noqa: S310 - http or https, see the constructor
            self._registry + path, None if body is None else json.dumps(body).encode()
        )
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        if self._login:
            request.add_header("Authorization", f"Basic {self._login}")
        try:
            with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
                answer = json.loads(_bounded(response))
            if not isinstance(answer, dict):
                raise ValueError(f"it says {str(answer)[:100]!r}, which is no answer to {path}")  # noqa: TRY004 - as for nonsense
            return answer
        except HTTPError as error:
            said = ""
            with error, contextlib.suppress(HTTPException, OSError):
                if error.code == NOT_FOUND and body is None:
                    return None
                said = " ".join(error.read(1000).decode(errors="replace").split())[:200]
            raise ConnectorError(
                f"the schema registry at {self._registry} refuses {path}: {error.code} {said}"
            ) from error
        except (HTTPException, OSError, RecursionError, ValueError) as error:
            raise ConnectorError(
                f"the schema registry at {self._registry} does not answer ({first_line(error)}); check its address, and that it runs"
            ) from error


def _bounded(response: Any) -> bytes:
    """All that the registry says. Raises ValueError when that is more than any schema takes."""
    said: bytes = response.read(MAX_ANSWER_BYTES + 1)
    if len(said) > MAX_ANSWER_BYTES:
        raise ValueError(f"it says more than {MAX_ANSWER_BYTES} bytes")
    return said


def _schema_of(answer: Mapping[str, Any]) -> Any:
    """The schema that a registry answers with. Raises many kinds of errors for one that makes no sense."""
    import fastavro

    if (kind := answer.get("schemaType", "AVRO")) != "AVRO":
        raise ValueError(f"it is of {kind}, not of Avro")
    try:
        parsed = fastavro.parse_schema(json.loads(answer["schema"]))
    except fastavro.schema.SchemaParseException as error:
        raise ValueError(str(error)) from error
    check_schema(parsed)
    return parsed
