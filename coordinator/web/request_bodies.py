"""What a request brings along, as JSON and of bounded size: the server of a coordinator holds it in memory."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

MAX_BODY_BYTES = 64 << 10
"""A request names a directory, an id or a number."""


BODY_SECONDS = 10.0
"""Within which all of it has to be there."""


class BodyRefused(ValueError):
    """The rest of a request's body is not read: `status` says whether it is too large or does not come."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


async def read_json(request: Request) -> dict[str, Any]:
    """The object in the body; empty for no body. Raises BodyRefused, and ValueError for anything but an object."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise BodyRefused(413, f"the body of a request may have {MAX_BODY_BYTES:,} bytes")
    except TimeoutError:
        raise BodyRefused(408, f"the body of a request has to come within {BODY_SECONDS:g} s") from None
    try:
        found = json.loads(bytes(body)) if body.strip() else {}
    except RecursionError:
        raise ValueError("the body of a request is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the body of a request has to be a JSON object")  # noqa: TRY004 - the client's mistake, not ours
    return found


def text_in(body: Mapping[str, Any], key: str) -> str:
    """A text; empty where there is none. Raises ValueError for anything else."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} has to be a text")
    return value or ""


def flag_in(body: Mapping[str, Any], key: str) -> bool:
    """True or false, and false where there is none. Raises ValueError for anything else: the text "false" is not
    false."""
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} has to be true or false")
    return bool(value)


def number_in(body: Mapping[str, Any], key: str) -> int:
    """A whole number, which has to be there. Raises ValueError for anything else."""
    value = body.get(key)
    if type(value) is not int:
        raise ValueError(f"{key} has to be a whole number")
    return value


def whole_number(parameter: str, given: str) -> int:
    """A whole number in a path or a query. Raises ValueError, naming the parameter, for anything else."""
    if re.fullmatch(r"-?[0-9]{1,18}", given) is None:
        raise ValueError(f"{parameter} = {given!r:.100} has to be a whole number")
    return int(given)
