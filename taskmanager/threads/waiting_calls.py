"""What a thread waits for, read off its stack: a lock, or an answer of somebody else.

Decides by the innermost frames: those of Python's own modules for threads, futures, queues, sockets and processes say
it by their names. What waits in C leaves no frame of its own, so there the call that the innermost frame is about to
come back from says it, by the name that was looked up for it; the sources need not be there. Pure.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Sequence
from types import CodeType

LOCK, ANSWER = "lock", "answer"
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):\d+\)$")
_THREADING = "/threading.py"
_LOCKS = ("Semaphore.", "BoundedSemaphore.", "_RLock.", "Condition.__enter__", "Condition._acquire_restore", "Barrier.")
_WAITS = ("Condition.wait", "Event.wait", "Thread.join", "Thread._wait_for_tstate_lock")
_ANSWER_FILES = re.compile(
    r"/(?:socket|ssl|selectors|subprocess|http/client|queue|multiprocessing/connection|multiprocessing/queues|"
    r"asyncio/\w+|concurrent/futures/_base)\.py$"
)
_WITH = "with"
_LOCK_CALLS = frozenset({_WITH, "acquire", "acquire_lock", "flock", "lockf"})
_ANSWER_CALLS = frozenset(
    {
        "recv",
        "recv_into",
        "recvfrom",
        "recvmsg",
        "accept",
        "connect",
        "getaddrinfo",
        "poll",
        "select",
        "result",
        "wait",
        "waitpid",
    }
)
_LOADS = ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


def waits_for(frames: Sequence[str], call: str) -> str:
    """`lock`, `answer`, or nothing when the thread works, or waits for the clock.

    `frames` are outermost first, each `function (file:line)`; `call` is what the innermost one has called.

    >>> waits_for(["ask (job.py:3)", "Future.result (/usr/lib/python3.11/concurrent/futures/_base.py:451)"], "wait")
    'answer'
    >>> waits_for(["count (job.py:3)"], "with")
    'lock'
    >>> waits_for(["count (job.py:3)"], "sum")
    ''
    """
    found = _FRAME.match(frames[-1]) if frames else None
    if found is None:
        return ""
    if found["file"].endswith(_THREADING):
        functions = [inner["function"] for inner in map(_FRAME.match, reversed(frames)) if inner is not None]
        within = [name for name in functions[:4] if name.startswith(_LOCKS + _WAITS)]
        if any(name.startswith(_LOCKS) for name in within):
            return LOCK
        return ANSWER if within else ""
    if _ANSWER_FILES.search(found["file"]):
        return ANSWER
    return LOCK if call in _LOCK_CALLS else ANSWER if call in _ANSWER_CALLS else ""


def call_of(code: CodeType, last_instruction: int) -> str:
    """The name of what a frame has called and waits for: `acquire` for `self.lock.acquire()`, `with` when it enters a
    block; nothing when it calls nothing."""
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset > last_instruction:
            break
        before.append(instruction)
    if not before:
        return ""
    last = before[-1]
    if last.opname == "BEFORE_WITH" or (last.opname.startswith("CALL") and before[-2].opname == "LOAD_SPECIAL"):
        return _WITH
    if "CALL" not in last.opname or last.positions is None:
        return ""
    begins = last.positions[0], last.positions[2]
    for instruction in reversed(before):
        positions = instruction.positions
        if instruction.opname in _LOADS and positions is not None and (positions[0], positions[2]) == begins:
            return str(instruction.argval)
    return ""
