"""How much a single request may say: what a client asks for fits into a page of text, and only one that brings a job
may be larger. Longer texts would be repeated in the answer, the audit log and the log of refusals."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

MAX_REQUEST_BYTES = 1 << 20
"""What a request has at most that brings no job."""
MAX_TEXT_BYTES = 1 << 13
"""What a name, id, path or reason in such a request has at most."""
BRINGS_A_JOB = frozenset({"SubmitJobRequest", "SubmitDeclaredJobRequest"})


def refuse_bytes(method: str, size: int, *, may_submit: bool) -> str:
    """Why a request of a method (`/package.Service/Method`) with so many bytes is not decoded, in one line; empty: it
    is. Two bytes of it can be a message within it, which takes fifty in memory."""
    name = f"{method.rpartition('/')[2]}Request"
    if name not in BRINGS_A_JOB:
        return _too_large(name, size)
    if may_submit or size <= MAX_REQUEST_BYTES:
        return ""
    return f"{name} has {size} bytes, and this credential is for one job only, so that it submits none"


def refuse_size(request: Any) -> str:
    """Why the request is not looked at, in one line with the field; empty: it is."""
    if not isinstance(request, Message) or request.DESCRIPTOR.name in BRINGS_A_JOB:
        return ""
    if too_large := _too_large(request.DESCRIPTOR.name, request.ByteSize()):
        return too_large
    for field, value in request.ListFields():
        if isinstance(value, (str, bytes)) and len(value) > MAX_TEXT_BYTES:
            name = f"{request.DESCRIPTOR.name}.{field.name}"
            return f"{name} has {len(value)} characters; {MAX_TEXT_BYTES} are the most that it may have"
    return ""


def _too_large(name: str, size: int) -> str:
    if size <= MAX_REQUEST_BYTES:
        return ""
    return f"{name} has {size} bytes; {MAX_REQUEST_BYTES} are the most that a request has"
