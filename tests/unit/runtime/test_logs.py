"""Log lines: keys of Spark's structured logs, secrets hidden, one line each."""

from __future__ import annotations

import errno
import io
import json
import logging

import pytest

from snapline.runtime.logs import (
    REDACTED,
    capture_standard_logging,
    change_level,
    logs_debug,
    make_logger,
    silent_logger,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_have_sparks_keys():
    """ts, level, msg, context, logger: what programs that read executor logs know."""
    out = io.StringIO()
    make_logger("jobmaster", stream=out).bind(job_id="j1").warning("checkpoint declined", checkpoint_id=7)
    (line,) = lines(out)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "WARN",
        "msg": "checkpoint declined",
        "context": {"job_id": "j1", "checkpoint_id": 7},
        "logger": "jobmaster",
    }


def test_secrets_are_never_written():
    """By the words that Spark redacts, at any depth."""
    out = io.StringIO()
    make_logger("x", stream=out).info(
        "settings", **{"security.auth.token": "geheim", "s3": {"secret-key": "geheim", "region": "eu"}}
    )
    assert "geheim" not in out.getvalue()
    assert lines(out)[0]["context"] == {"security.auth.token": REDACTED, "s3": {"secret-key": REDACTED, "region": "eu"}}


def test_an_exception_is_part_of_its_line():
    """Class, message and stack as data, still one line."""
    out = io.StringIO()
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        make_logger("x", stream=out).error("broke", exc_info=error)
    (line,) = lines(out)
    assert line["exception"]["class"] == "builtins.ZeroDivisionError"
    assert line["exception"]["msg"] == "division by zero"
    assert "Traceback" in line["exception"]["stacktrace"]


def test_a_terminal_gets_lines_for_people():
    """No JSON to read with the eyes."""
    out = Terminal()
    make_logger("x", stream=out).info("job finished", rows=5)
    assert out.getvalue().rstrip().endswith("INFO  x: job finished  rows=5")


def test_levels():
    """Debug lines are not written by default, and hot paths can ask before they compute one."""
    out = io.StringIO()
    make_logger("x", stream=out).debug("detail")
    assert out.getvalue() == ""
    assert logs_debug(make_logger("x", "DEBUG", out))
    assert not logs_debug(silent_logger())
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        make_logger("x", "loud")


def test_the_level_changes_while_it_is_written():
    """Of the logger and all that were bound from it, and of no other one; of a silent one, nothing does."""
    out, others = io.StringIO(), io.StringIO()
    logger, other = make_logger("x", stream=out), make_logger("y", stream=others)
    bound = logger.bind(task="t")
    change_level(logger, "DEBUG")
    bound.debug("detail")
    other.debug("detail")
    assert logs_debug(bound) and not logs_debug(other)
    assert (out.getvalue().count("detail"), others.getvalue()) == (1, "")
    change_level(bound, "error")
    logger.warning("unheard")
    logger.error("heard")
    assert [json.loads(line)["msg"] for line in out.getvalue().splitlines()] == ["detail", "heard"]
    change_level(silent_logger(), "DEBUG")
    assert not logs_debug(silent_logger())
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        change_level(logger, "loud")


def test_what_libraries_log_goes_the_same_way():
    """pykka, gRPC and kazoo speak through logging."""
    out = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        capture_standard_logging(make_logger("x", stream=out))
        capture_standard_logging(make_logger("x", stream=out))  # once, however often it is called
        logging.getLogger("kazoo.client").warning("lost %s", "connection")
        assert [(line["logger"], line["msg"]) for line in lines(out)] == [("kazoo.client", "lost connection")]
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_lines_of_json_steer_no_terminal():
    """Control characters above ASCII, ends of lines and turns of direction are spelled out: people look at logs."""
    out = io.StringIO()
    make_logger("page", stream=out).warning("refused \x9b2J\u2028\u202e")
    assert out.getvalue().isascii()
    assert [line["msg"] for line in lines(out)] == ["refused \x9b2J\u2028\u202e"]


def test_what_others_say_steers_no_terminal_and_makes_no_line():
    """The path of a request that the page breaks at is in the log of a coordinator that runs in a terminal."""
    out = Terminal()
    logger = make_logger("page", stream=out)
    logger.warning("refused", path="\x1b[2J\n12:00:00 INFO  page: all is well\r")
    try:
        raise ValueError("\x1b[31mred\nblue")
    except ValueError:
        logger.exception("task failed")
    first, *others = out.getvalue().split("\n")
    assert first.endswith("path=\\x1b[2J\\n12:00:00 INFO  page: all is well\\x0d")
    assert others[0].endswith("task failed")
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical", "exception"])
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(level):
    """A full disk below the log kept processes from starting, and a task whose failure was logged from ending."""
    getattr(make_logger("x", "debug", FullDisk()), level)("no room for this")
    closed = io.StringIO()
    closed.close()
    make_logger("x", stream=closed, as_json=True).error("nowhere to write this")
