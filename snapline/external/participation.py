"""`participate`: a program takes part in a job until the job is over. The network around `Conversation`.

One thread reads what the coordinator says; everything else happens on the caller's thread: the task's steps, its
answers, and heartbeats, so that a task that hangs is found out. What breaks, or says nothing for longer than a
heartbeat may take, is tried again, after a pause, until the coordinator says that there is nothing to take part in.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from snapline.dataflow.config import SECURITY_SSL_EXCHANGE_HOSTNAME, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.external.conversation import LONGEST_PAUSE, PROTOCOL_VERSION, Conversation, ExternalTask
from snapline.protos import external_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from snapline.runtime.rpc.security import Security

log = logging.getLogger("snapline.external")
FOR_GOOD = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
"""Statuses that the same stream would end with again: no or another token, one for something else, and a coordinator
without external tasks."""
MAX_UNSENT = 16
"""A task that has put out so much that nobody has taken yet does no step."""
UNSENT_PAUSE = 0.01
"""After so many seconds it is looked at again."""
UNREGISTERED_SECONDS = 60.0
"""So long a TaskManager may say nothing to a program that registers there."""
MAX_QUEUED = 1_000
"""So many messages of the coordinator may wait for a task that is in a long step; more are not read."""


class ParticipationRefused(SnaplineError):
    """The coordinator does not let the program take part, and will not.

    >>> sl_external.participate(
    ...     sl_external.ExternalTask(), job="none", task_name="orders", coordinator="127.0.0.1:1", give_up_after=0
    ... )
    Traceback (most recent call last):
    snapline.external.participation.ParticipationRefused: ...
    """


def participate(
    task: ExternalTask,
    *,
    job: str,
    task_name: str,
    coordinator: str,
    program: str = "",
    settings: Mapping[str, str] | None = None,
    retry_pause: float = 1.0,
    give_up_after: float | None = None,
) -> str:
    """Run the task as `task_name` of the job with this id or name, through restarts of either side, and return when the
    job is over, with the coordinator's last word.

    `coordinator` is host:port; several, separated by commas, where several stand by. `settings` are `security.*`.
    `give_up_after`: so many seconds without being let in, None: never. Raises ParticipationRefused.

    >>> sl_external.participate(  # doctest: +SKIP
    ...     Counter(), job="fleet", task_name="orders", coordinator="127.0.0.1:6123"
    ... )
    'job 'fleet' (0f3a) is FINISHED'
    """
    from snapline.runtime.rpc.security import Security

    configuration = Configuration(settings or {})
    security = Security.from_configuration(configuration)
    exchange_hostname = configuration.get_option(SECURITY_SSL_EXCHANGE_HOSTNAME)
    register = pb.Register(
        protocol_version=PROTOCOL_VERSION,
        job=job,
        task=task_name,
        program=program,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    address, ticket, warned = coordinator, "", ""
    outside_since = time.monotonic()
    while True:
        conversation = Conversation(task)
        register.ticket = ticket
        asked = f"the TaskManager at {address}" if ticket else coordinator
        why, leader = _one_stream(conversation, register, address, security, exchange_hostname if ticket else "")
        conversation.lost(why)
        if ticket and not conversation.registered.resource_id and conversation.ended is None:
            if security.tls:
                why += f": its certificate has to carry what {SECURITY_SSL_EXCHANGE_HOSTNAME.key} says, or its address"
            if why != warned:
                warned = why
                log.warning("%s has not let the program in, which tries again: %s", asked, why)
        address, ticket = leader or coordinator, ""
        if conversation.registered.resource_id:
            outside_since = time.monotonic()
            log.info("the stream ended, registering again: %s", why)
        ended = conversation.ended
        if isinstance(ended, pb.Rejected):
            address, ticket = ended.address or address, ended.ticket
            if ticket:
                continue
            if ended.reason == pb.REJECTION_REASON_JOB_IS_OVER:
                return ended.detail
            if not ended.try_again:
                raise ParticipationRefused(ended.detail)
        if why.startswith(FOR_GOOD):
            raise ParticipationRefused(f"{asked} refuses the stream: {why}")
        if give_up_after is not None and time.monotonic() - outside_since >= give_up_after:
            raise ParticipationRefused(f"{asked} has not let the program in for {give_up_after:g} s: {why}")
        time.sleep(retry_pause)


def _one_stream(
    conversation: Conversation, register: pb.Register, address: str, security: Security, hostname: str
) -> tuple[str, str]:
    """From the registration to the end of the stream; returns why it ended, and the coordinator that leads, if this one
    said so."""
    import grpc

    from snapline.protos.external_pb2_grpc import ExternalTasksStub
    from snapline.runtime.rpc.grpc_channels import LEADER_METADATA_KEY, open_channel, reason_of

    said: queue.SimpleQueue[pb.FromProgram | None] = queue.SimpleQueue()
    heard: queue.Queue[pb.ToProgram | str] = queue.Queue(MAX_QUEUED)
    leaders: list[str] = []
    heard_at = time.monotonic()
    said.put(pb.FromProgram(register=register))

    def outgoing() -> Iterator[pb.FromProgram]:
        while (message := said.get()) is not None:
            yield message

    def read() -> None:
        nonlocal heard_at
        try:
            for message in call:
                heard_at = time.monotonic()
                heard.put(message)
            heard.put("the coordinator closed the stream")
        except grpc.RpcError as error:
            leaders.extend(str(value) for key, value in call.trailing_metadata() or () if key == LEADER_METADATA_KEY)
            heard.put(reason_of(error))

    has_ticket = bool(register.ticket)
    channel = open_channel(address, security, hostname, pings=not has_ticket)
    if has_ticket:
        call = _exchange(channel, register.ticket, outgoing())
    else:
        call = ExternalTasksStub(channel).Participate(outgoing(), metadata=security.metadata)
    reader = threading.Thread(target=read, name="external-reader", daemon=True)
    reader.start()
    try:
        why = _converse(conversation, heard, said, lambda: heard_at, UNREGISTERED_SECONDS if has_ticket else math.inf)
    finally:
        said.put(None)
        call.cancel()
        while reader.is_alive():  # it may wait for room in the queue
            try:
                heard.get(timeout=0.1)
            except queue.Empty:
                continue
        reader.join()
        channel.close()
    return why, "".join(leaders[:1])


def _exchange(channel: grpc.Channel, ticket: str, outgoing: Iterator[pb.FromProgram]) -> Any:
    """The same conversation with a TaskManager, within a stream of Arrow Flight."""
    target = pb.FlightTarget(type=2, cmd=b"snapline.external/1")

    def frames() -> Iterator[pb.FlightFrame]:
        yield pb.FlightFrame(flight_descriptor=target)
        for message in outgoing:
            yield pb.FlightFrame(app_metadata=message.SerializeToString())

    return channel.stream_stream(
        "/arrow.flight.protocol.FlightService/DoExchange",
        request_serializer=pb.FlightFrame.SerializeToString,
        response_deserializer=lambda data: pb.ToProgram.FromString(pb.FlightFrame.FromString(data).app_metadata),
    )(frames(), metadata=(("authorization", f"Ticket {ticket}"),))


def _converse(
    conversation: Conversation,
    heard: queue.Queue[pb.ToProgram | str],
    said: queue.SimpleQueue[pb.FromProgram | None],
    heard_at: Callable[[], float] = time.monotonic,
    unregistered_s: float = math.inf,
) -> str:
    """From its first message to its last; returns why the stream ended. `heard_at`: when a message came last;
    `unregistered_s`: how long none may come before the program is registered."""
    next_step = math.inf
    while True:
        silence_s = conversation.registered.heartbeat_timeout_ms / 1000 or unregistered_s
        until = min(next_step, heard_at() + silence_s)
        if next_step < math.inf and said.qsize() >= MAX_UNSENT:
            until = max(until, time.monotonic() + UNSENT_PAUSE)  # what is put out is not taken: no step now
        try:
            message = heard.get(timeout=min(LONGEST_PAUSE, max(0.0, until - time.monotonic())))
        except queue.Empty:
            if time.monotonic() >= heard_at() + silence_s and heard.empty():
                return f"nothing was heard for {silence_s:g} s"
            if said.qsize() >= MAX_UNSENT or time.monotonic() < next_step:
                continue
            pause, answers = conversation.work()
            next_step = math.inf if pause is None else time.monotonic() + pause
        else:
            if isinstance(message, str):
                ended = conversation.ended
                return message if ended is None else getattr(ended, "detail", "") or getattr(ended, "reason", "")
            took_steps = conversation.takes_steps
            answers = conversation.handle(message)
            if message.HasField("goodbye"):  # a TaskManager waits for the program to leave
                return message.goodbye.reason
            if message.HasField("complaint"):
                log.warning("the coordinator complains: %s", message.complaint.detail)
            if not conversation.takes_steps:
                next_step = math.inf
            elif not took_steps or message.HasField("run_task"):
                next_step = time.monotonic()
        for answer in answers:
            said.put(answer)
