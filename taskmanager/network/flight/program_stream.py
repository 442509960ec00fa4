"""The stream of a program outside in a task with rows: DoExchange with messages of protos/external.proto.

Three threads while it lives: Flight's own, which reads, one that sends, and one that asks for heartbeats and finds out
that none is answered. A program that is silent, does not read, or does not leave when it is told goodbye loses its
connection: a read or write that waits for it could not be ended otherwise.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from snapline.dataflow.wire.field_counts import refuse_many_fields
from snapline.dataflow.wire.program_limits import PROTOCOL_VERSION
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.message_budget import MessageBudget
from snapline.runtime.cores.request_bounds import refuse_size
from snapline.taskmanager.programs.offered_places import OfferedPlace, OfferedPlaces, no_place

COMMAND = b"snapline.external/1"
"""What the descriptor of such a stream says."""
MAX_NAME = 60
"""Letters of what a program calls itself."""
MAX_WAITING = 1_000
"""Messages that wait for the program; one that talks and does not read would have ever more."""
END_SECONDS = 5.0
"""How long a program may take to leave when it was told goodbye."""


class ProgramStream:
    """One stream, from its registration to its end (StreamOfProgram)."""

    def __init__(self, places: OfferedPlaces, end_connection: Callable[[], object]) -> None:
        self._places = places
        self._end_connection = end_connection
        self._changed = threading.Condition()
        self._to_program: deque[pb.ToProgram] = deque()
        self._goodbye = ""
        """Why the stream ends; empty: it does not."""
        self._is_over = False
        self._place: OfferedPlace | None = None
        """The place that the program has."""
        self._heard_at = time.monotonic()
        self._is_read = True
        """False: what the program has said waits for the task, so that its silence means nothing."""

    # --- from other threads -------------------------------------------------------------------------------------------

    def say(self, message: pb.ToProgram) -> None:
        """Send it, after what was said before; a program that does not read what waits already is given up."""
        with self._changed:
            if len(self._to_program) < MAX_WAITING:
                self._to_program.append(message)
            else:
                self._goodbye = self._goodbye or f"{MAX_WAITING} messages wait for it, which it does not read"
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Say goodbye after what was said before, and end the stream."""
        with self._changed:
            self._goodbye = self._goodbye or reason
            self._changed.notify_all()

    shut_down = end

    # --- the thread of the call ---------------------------------------------------------------------------------------

    def serve(self, reader: Any, writer: Any) -> None:
        """Until the program has ended the stream, or nobody wants it any more."""
        sender = threading.Thread(target=self._send, args=(writer,), name="program-send", daemon=True)
        watcher = threading.Thread(target=self._watch, name="program-watch", daemon=True)
        watcher.start()  # before the first word, which may never come
        place = None
        try:
            place = self._place = self._register(self._read(reader))
            sender.start()
            budget = MessageBudget(time.monotonic())
            while place is not None and not self._goodbye and (message := self._read(reader)) is not None:
                self._hear(place, message)
                if seconds := budget.spend(1, time.monotonic()):
                    with self._changed:
                        self._changed.wait_for(lambda: bool(self._goodbye), seconds)
        finally:
            if place is not None:
                place.left(self, self._goodbye or "its stream ended")
            self.end("the stream is over")
            if sender.ident is not None:
                sender.join()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            watcher.join()

    def _register(self, first: pb.FromProgram | None) -> OfferedPlace | None:
        """The place that the program has from now on; None: it was told why it has none, or is gone."""
        if first is None or first.WhichOneof("message") != "register":
            self.end("the first message has to be Register")
            return None
        if too_large := refuse_size(first.register):
            self.end(too_large)
            return None
        settings = self._places.settings
        named = "".join(letter for letter in first.register.program if letter.isalnum() or letter in "-_.")[:MAX_NAME]
        registered = pb.Registered(
            protocol_version=PROTOCOL_VERSION,
            job_id=first.register.ticket.partition(":")[0],
            resource_id=f"external-{uuid.uuid4().hex[:12]}" + (f"-{named}" if named else ""),
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
            max_state_bytes=settings.max_state_bytes,
        )
        found = self._places.find(first.register)
        if not isinstance(found, pb.Rejected):
            self.say(pb.ToProgram(registered=registered))
            for place in found:
                if place.join(self):
                    return place
            self._to_program.clear()
            found = no_place(first.register.task)
        self.say(pb.ToProgram(rejected=found))
        self.end(found.detail)
        return None

    def _read(self, reader: Any) -> pb.FromProgram | None:
        from pyarrow import flight

        try:
            chunk = reader.read_chunk()
            said = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
            refuse_many_fields(said, pb.FromProgram)
            return pb.FromProgram.FromString(said)
        except DecodeError:
            self.end("a message is none of external.proto")
        except (StopIteration, flight.FlightError, pa.ArrowException):
            pass  # the program has ended the stream, or its connection is lost
        return None

    def _hear(self, place: OfferedPlace, message: pb.FromProgram) -> None:
        self._heard_at = time.monotonic()
        kind = message.WhichOneof("message")
        if kind == "register":
            self.end("Register was said already: one stream is one program, open another one")
        elif kind != "heartbeat":
            self._is_read = False
            place.said(self, message)
            self._heard_at = time.monotonic()
            self._is_read = True

    # --- the sender's thread ------------------------------------------------------------------------------------------

    def _send(self, writer: Any) -> None:
        from pyarrow import flight

        was_rejected = False
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._to_program) or bool(self._goodbye))
                    message = self._to_program.popleft() if self._to_program else None
                if message is None:
                    break
                was_rejected = message.HasField("rejected")
                writer.write_metadata(message.SerializeToString())
            if not was_rejected:
                writer.write_metadata(pb.ToProgram(goodbye=pb.Goodbye(reason=self._goodbye)).SerializeToString())
        except (flight.FlightError, pa.ArrowException):
            return  # the program is gone: the thread of the call learns it from its own end

    # --- the watcher's thread -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        settings = self._places.settings
        while not self._is_over:
            with self._changed:
                ends = bool(self._goodbye)
                seconds = END_SECONDS if ends else settings.heartbeat_interval_ms / 1000
                self._changed.wait_for(lambda ends=ends: self._is_over or bool(self._goodbye) != ends, seconds)  # type: ignore[misc]
                if self._is_over or bool(self._goodbye) != ends:
                    continue
            if ends:
                self._end_connection()
                continue
            silent_ms = (time.monotonic() - self._heard_at) * 1000
            if self._is_read and silent_ms >= settings.heartbeat_timeout_ms:
                why = f"no heartbeat for {settings.heartbeat_timeout_ms} ms"
                if self._place is not None:
                    self._place.left(self, why)
                self.end(why)
            elif self._place is not None:
                self.say(pb.ToProgram(heartbeat=pb.Heartbeat()))
