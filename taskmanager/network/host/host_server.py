"""How TaskManagers of one host find each other, and who of them is let in.

A TaskManager listens under its exchange address in the abstract names of Linux' sockets, which each network namespace
has for itself and which end with the process. Both sides have to be the same user, as the kernel says, to prove that
they know the cluster's secret, and to show a certificate where there are such. Then rows go in the clear, because they
do not leave the kernel. A listener of another user is not talked to. Where nobody listens under the name (another host,
another namespace, another system), the exchange goes over Flight.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable

from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.frames import ProtocolError, edge_of_descriptor, stream_descriptor
from snapline.taskmanager.network.host.greeting_proofs import (
    WHO_CONNECTS,
    WHO_LISTENS,
    drawn,
    knows_one,
    parted,
    proof_of,
)
from snapline.taskmanager.network.host.socket_messages import (
    MAX_BYTES,
    PatientWriter,
    SocketReader,
    SocketWriter,
    metadata_message,
)

GREETING_SECONDS = 10.0
"""How long each step of a greeting may take, however slowly its bytes come."""
CLOSE_SECONDS = 1.0
"""How long closing waits for the threads of connections that it has ended."""
ANSWER_SECONDS = 1.5
"""How long one attempt waits for the peer's answer."""
MAX_GREETING_BYTES = 1 << 14
MAX_REQUEST_BYTES = 1 << 18
"""What a consumer says once it was let in has no more: two names of 64 KiB at most."""
MAX_REASON = 300
"""Characters of what is logged of a refusal."""
MAX_NEWCOMERS = 64
"""So many may be connected that have not said who they are; more are closed at once."""
SEND_BUFFER_BYTES = 1 << 20
"""What the kernel is asked to take of batches that the peer has not read yet; it may take less."""
_BACKLOG = 64
_PAUSE_SECONDS = 0.05
_CREDENTIALS = struct.Struct("3i")
_WRONG_TOKEN = b"token"

OpenStream = Callable[[str, SocketReader, SocketWriter], None]
"""(edge, reader, writer): serve the stream, until it ends."""
Refused = Callable[[str, str], None]
"""(who, why): somebody was not let in. Called from any thread."""


def _name(address: str) -> str:
    return f"\0snapline-exchange/{address}"


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel says."""
    shown = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(shown)
    return process_id, user_id


def _is_own_user(connection: socket.socket) -> bool:
    return _peer_of(connection)[1] == os.geteuid()


def _end_tls(reader: SocketReader) -> None:
    """Both sides have shown who they are, and end TLS here."""
    if isinstance(reader.connection, ssl.SSLSocket):
        reader.connection.unwrap()
        reader.replace_connection(lambda wrapped: socket.socket(fileno=wrapped.detach()))
    reader.connection.settimeout(None)


class HostServer:
    """Listens for the TaskManagers of this host, from now until it is closed; does nothing where sockets have no such
    names, or the name is taken."""

    def __init__(self, address: str, security: ExchangeSecurity, open_stream: OpenStream, refused: Refused) -> None:
        self._address = address
        self._security = security
        self._open_stream = open_stream
        self._refused = refused
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._newcomers = 0
        #: All connections, and the threads that serve them.
        self._serving: dict[SocketReader, threading.Thread] = {}
        self._listener = _listen(address)
        self._thread = threading.Thread(target=self._accept, name="exchange-host", daemon=True)
        if self._listener is not None:
            self._thread.start()

    def stop_listening(self) -> None:
        """Let nobody in any more."""
        self._closed.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Listen no more, and end all connections, within a second."""
        self.stop_listening()
        with self._lock:
            serving = dict(self._serving)
        for reader in serving:
            reader.cancel()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in (self._thread, *serving.values()):
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or there is no file left
                self._closed.wait(_PAUSE_SECONDS)
                continue
            if not self._let_in(connection):
                connection.close()
        if listener is not None:
            listener.close()

    def _let_in(self, connection: socket.socket) -> bool:
        """Serve the connection on a thread of its own; False when it is to be closed."""
        peer = (0, -1)
        try:
            peer = _peer_of(connection)
            if peer[1] != os.geteuid():
                self._refuse(peer, "TaskManagers of another user are not let in by sockets of the host")
                return False
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            reader = SocketReader(connection, MAX_GREETING_BYTES, takes_batches=False)
            thread = threading.Thread(target=self._serve, args=(reader, peer), name="exchange-host-stream", daemon=True)
            with self._lock:
                if self._closed.is_set():
                    return False
                if self._newcomers < MAX_NEWCOMERS:
                    thread.start()  # it waits for the lock before it takes itself off
                    self._newcomers += 1
                    self._serving[reader] = thread
                    return True
        except (OSError, RuntimeError) as error:  # it has gone already, or no thread can be started
            self._refuse(peer, f"the connection cannot be served: {error}")
            return False
        self._refuse(peer, f"{MAX_NEWCOMERS} have not said who they are yet")
        return False

    def _refuse(self, peer: tuple[int, int], reason: str) -> None:
        """A user is the sender, because it can begin as many processes as it likes."""
        process_id, user_id = peer
        self._refused(f"user {user_id} of this host", f"process {process_id}: {reason[:MAX_REASON]}")

    def _serve(self, reader: SocketReader, peer: tuple[int, int]) -> None:
        """One connection, on its thread."""
        edge_id = ""
        try:
            try:
                edge_id = self._greet(reader, peer)
            except (OSError, StopIteration, ProtocolError) as error:
                if not self._closed.is_set():
                    self._refuse(peer, f"it did not say who it is: {str(error) or 'it has hung up'}")
            finally:
                with self._lock:
                    self._newcomers -= 1
            if edge_id:
                reader.max_bytes = MAX_REQUEST_BYTES
                self._open_stream(edge_id, reader, SocketWriter(reader.connection))
        except (ProtocolError, InvariantViolation) as error:
            self._refuse(peer, f"its stream was ended: {error}")
        finally:
            with self._lock:
                del self._serving[reader]
            reader.close()

    def _greet(self, reader: SocketReader, peer: tuple[int, int]) -> str:
        """The edge that is asked for; empty: nobody is let in."""
        security = self._security.current()
        reader.connection.settimeout(GREETING_SECONDS)
        if security.ca:
            context = security.of_sockets.server_context()
            reader.replace_connection(
                lambda plain: context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            )
            reader.connection.do_handshake()  # type: ignore[attr-defined]
        reader.deadline = time.monotonic() + GREETING_SECONDS
        number, asked = parted(bytes(reader.read_chunk().app_metadata))
        own = drawn()
        shown = (number + own, self._address, asked)
        proofs = b"".join(proof_of(token, WHO_LISTENS, *shown) for token in security.tokens)
        reader.connection.settimeout(GREETING_SECONDS)
        reader.connection.sendall(metadata_message(own + proofs))
        reader.deadline = time.monotonic() + GREETING_SECONDS
        proof = bytes(reader.read_chunk().app_metadata)
        reader.deadline = None
        reader.connection.settimeout(GREETING_SECONDS)
        refusal, edge_id = b"", ""
        if security.tokens and not knows_one(proof, security.tokens, WHO_CONNECTS, *shown):
            refusal = _WRONG_TOKEN
            self._refuse(peer, "wrong or missing token")
        else:
            try:
                edge_id = edge_of_descriptor(asked)
            except ProtocolError as error:
                refusal = str(error).encode()
                self._refuse(peer, str(error))
        reader.connection.sendall(metadata_message(refusal))
        _end_tls(reader)
        return edge_id


def _listen(address: str) -> socket.socket | None:
    if not sys.platform.startswith("linux"):
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_name(address))
        listener.listen(_BACKLOG)
    except OSError:  # the name is taken, or is too long for one
        listener.close()
        return None
    return listener


def connect_on_host(address: str, edge_id: str, security: ExchangeSecurity) -> tuple[SocketReader, SocketWriter] | None:
    """A stream of that edge; None when no TaskManager of this user listens on this host under the address. Raises
    TimeoutError when it does not answer, PermissionError when one side does not know the token of the other,
    ssl.SSLError when it does not accept its certificate, ProtocolError when the other speaks another version,
    ConnectionError or StopIteration when it ends."""
    if not sys.platform.startswith("linux"):
        return None
    reader = SocketReader(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), MAX_GREETING_BYTES, takes_batches=False)
    try:
        reader.connection.settimeout(ANSWER_SECONDS)
        try:
            reader.connection.connect(_name(address))
            is_own = _is_own_user(reader.connection)
        except OSError:
            is_own = False
        if not is_own:
            reader.close()
            return None
        if security.ca:
            host = security.hostname or address.rpartition(":")[0].strip("[]")
            context = security.of_sockets.client_context()
            reader.replace_connection(
                lambda plain: context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
            )
            reader.connection.do_handshake()  # type: ignore[attr-defined]
        _prove(reader, address, stream_descriptor(edge_id), security.tokens)
        reader.deadline = time.monotonic() + ANSWER_SECONDS
        answer = bytes(reader.read_chunk().app_metadata)
        reader.deadline = None
        _end_tls(reader)
    except BaseException:
        reader.close()
        raise
    if answer:
        reader.close()
        if answer == _WRONG_TOKEN:
            raise PermissionError("wrong or missing token: see security.auth.token")
        raise ProtocolError(answer.decode(errors="replace"))
    reader.max_bytes, reader.takes_batches = MAX_BYTES, True
    return reader, PatientWriter(reader.connection)


def _prove(reader: SocketReader, address: str, asked: bytes, tokens: tuple[str, ...]) -> None:
    """Ask for the stream, and prove that the first of the tokens is known. Raises PermissionError when the listener
    does not prove that it knows one."""
    number = drawn()
    reader.connection.sendall(metadata_message(number + asked))
    reader.deadline = time.monotonic() + ANSWER_SECONDS
    others, proofs = parted(bytes(reader.read_chunk().app_metadata))
    shown = (number + others, address, asked)
    proof = b"".join(proof_of(token, WHO_CONNECTS, *shown) for token in tokens[:1])
    reader.connection.settimeout(ANSWER_SECONDS)
    reader.connection.sendall(metadata_message(proof))  # in any case: the log of the other side says what is wrong
    if tokens and not knows_one(proofs, tokens, WHO_LISTENS, *shown):
        raise PermissionError("the listener does not know the token: see security.auth.token")
