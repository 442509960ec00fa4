"""Imports gRPC so that the threads that wait for messages look for them themselves, which is for TaskManagers.

gRPC's own pool of threads (its event engine, the default in Python since 1.82) looks for work again 15, 19, 24, ... ms
after it has had some: thirty wake-ups a second in a TaskManager with a checkpoint a second. The way before that one,
which gRPC's maintainers name when the new one is in somebody's way, is GRPC_EXPERIMENTS=-event_engine_client,
-event_engine_listener. gRPC reads that once, when it is imported; it is not left in the environment, so that Flight
and child processes know nothing of it. A gRPC newer than those that were tried is left alone, because it may not know
these names any more, and whoever has set the variable has it as it is.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "GRPC_EXPERIMENTS"
WITHOUT_EVENT_ENGINE = "-event_engine_client,-event_engine_listener"
LAST_TRIED = (1, 85)
"""The newest minor version of gRPC that was seen to know both names and to work without them."""


def import_grpc_with_few_wake_ups(environ: MutableMapping[str, str] = os.environ) -> None:
    """Import gRPC with its former way of waiting, unless it is imported already, too new, or told otherwise."""
    if "grpc" in sys.modules or VARIABLE in environ or not is_tried(installed_version()):
        return
    environ[VARIABLE] = WITHOUT_EVENT_ENGINE
    try:
        importlib.import_module("grpc")
    finally:
        del environ[VARIABLE]


def is_tried(version: str) -> bool:
    """Whether a gRPC of this version was tried; one whose version is not known was not."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) <= LAST_TRIED


def installed_version() -> str:
    """Return the version of gRPC that an import would load; it is read without an import. Empty: not found."""
    spec = find_spec("grpc")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("_grpcio_metadata.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r'__version__ = "+([^"]+)"', text)
    return found[1] if found else ""
