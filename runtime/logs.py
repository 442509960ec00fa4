"""Structured logs: one JSON object per line, or lines for people on a terminal.

Keys are those of Spark's structured logging (`ts`, `level`, `msg`, `logger`, `context`, `exception`), so that executor
logs of both can be read by one program. No process-wide configuration: the composition root makes one logger with
`make_logger` and hands bound children on (`logger.bind(job_id=...)`). Values under names that look like secrets are
never written.

`capture_standard_logging` sends what libraries say through `logging` (pykka, gRPC, kazoo) the same way; only a process
of ours does that, never a user's driver.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from snapline.dataflow.config import is_secret

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Logger: TypeAlias = "FilteringBoundLogger"

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for the tab and the end of a line, what turns the direction of a line or ends it, and halves
of characters, which nobody can print."""

REDACTED = "*********(redacted)"
TASK_FAILED = "task failed"
"""The message of a task that fails, with job, task, attempt and cause; left out where somebody else tells it."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def redact(values: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with the values of secret-looking names replaced, nested mappings too."""
    return {
        key: REDACTED if is_secret(key) else redact(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def make_logger(
    name: str,
    level: str = "info",
    stream: TextIO | None = None,
    *,
    as_json: bool | None = None,
    without: Collection[str] = (),
) -> Logger:
    """A logger that writes to `stream` (standard error). JSON unless the stream is a terminal. `without`: messages that
    somebody else tells. Raises ValueError for an unknown level."""
    import structlog  # loads much, and a local run that has nothing to say does without

    if level.lower() not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: one of {', '.join(LEVELS)}")
    out = sys.stderr if stream is None else stream
    json_lines = not out.isatty() if as_json is None else as_json
    render = _render_json if json_lines else _render_line

    def leave_out(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if values.get("event") in without:
            raise structlog.DropEvent
        return values

    logger: Logger = structlog.wrap_logger(
        _LosingLogger(structlog.WriteLogger(out).msg),
        processors=[leave_out, _shape, render] if without else [_shape, render],
        wrapper_class=type("AdjustableLogger", (structlog.make_filtering_bound_logger(LEVELS[level.lower()]),), {}),
        cache_logger_on_first_use=False,
    ).bind(logger=name)
    return logger


class _LosingLogger:
    """A logger that loses the lines which cannot be written, as on a full disk, so that whoever logs goes on."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def __getattr__(self, level: str) -> Callable[[str], None]:
        """Return what writes a line, whatever its level is."""
        return self._write_or_lose

    def _write_or_lose(self, line: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._write(line)


def change_level(logger: Logger, level: str) -> None:
    """Let a logger of `make_logger`, and all that are bound from it, write from this level on. Raises ValueError for an
    unknown level. A logger of another kind stays as it is."""
    import structlog

    if level.lower() not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: one of {', '.join(LEVELS)}")
    its_class = type(logger)
    if its_class.__name__ == "AdjustableLogger":  # no other class is of one logger alone
        for name, method in vars(structlog.make_filtering_bound_logger(LEVELS[level.lower()])).items():
            if not name.startswith("__"):
                setattr(its_class, name, method)


def silent_logger() -> Logger:
    """A logger that writes nothing, for tests and embedded use.

    >>> from snapline.sidecar import silent_logger
    >>> silent_logger().warning("nobody reads this")
    """
    import structlog

    logger: Logger = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[lambda *_: ""],
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
    ).bind()
    return logger


def logs_debug(logger: Logger) -> bool:
    """Whether debug lines are written; ask before computing them on a hot path."""
    return bool(logger.is_enabled_for(logging.DEBUG))


def _shape(_logger: Any, method: str, values: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Order of the keys, time, redaction, exception."""
    said: dict[str, Any] = dict(values)
    name, message, error = said.pop("logger", ""), said.pop("event", ""), said.pop("exc_info", None)
    line: dict[str, Any] = {
        "ts": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": {"warn": "WARN", "warning": "WARN", "exception": "ERROR", "critical": "FATAL"}.get(
            method, method.upper()
        ),
        "msg": str(message),
    }
    if said:
        line["context"] = redact(said)
    if error:
        line["exception"] = _exception(error if isinstance(error, BaseException) else sys.exc_info()[1])
    line["logger"] = name
    return line


def _exception(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {}
    return {
        "class": f"{type(error).__module__}.{type(error).__qualname__}",
        "msg": str(error),
        "stacktrace": "".join(traceback.format_exception(error)),
    }


def _render_json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> str:
    return harmless_json(line, separators=(",", ":"))


def harmless_json(value: Any, **options: Any) -> str:
    r"""The value as JSON in one line, in which control characters are escaped; `options` are those of `json.dumps`.

    >>> harmless_json({"word": "größe\x9b31m"})
    '{"word": "größe\\u009b31m"}'
    """
    text = json.dumps(value, default=str, ensure_ascii=False, **options)
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def harmless(text: str) -> str:
    r"""The text with its control characters spelled out.

    >>> harmless("red:\x1b[31m")
    'red:\\x1b[31m'
    """
    return _STEERS.sub(lambda found: f"\\{'x' if ord(found[0]) < 256 else 'u'}{ord(found[0]):02x}", text)


def _render_line(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> str:
    context = " ".join(f"{key}={value}" for key, value in line.get("context", {}).items())
    text = f"{line['ts'][11:23]} {line['level']:<5} {line['logger']}: {line['msg']}{'  ' if context else ''}{context}"
    text = harmless(text).replace("\n", "\\n")  # what others say is within one line
    trace = line["exception"].get("stacktrace", "").rstrip() if "exception" in line else ""
    return f"{text}\n{harmless(trace)}" if "exception" in line else text


class _ToStructlog(logging.Handler):
    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._structured = logger

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        values = {"exc_info": error} if error else {}
        self._structured.bind(logger=record.name).log(record.levelno, record.getMessage(), **values)


def capture_standard_logging(logger: Logger, level: str = "warning") -> None:
    """Send the standard library's logging to `logger`, from `level` up. For processes that are ours."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _ToStructlog)]:
        root.removeHandler(handler)
    root.addHandler(_ToStructlog(logger))
    root.setLevel(LEVELS[level.lower()])
