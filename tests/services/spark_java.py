"""The Java of tests: one that starts Spark in half the CPU time, whoever starts it.

What a session of Snapline gives its Java (`snapline.spark.java_archive`) stands here in a script `bin/java`, before
Snapline's own, so that Masters, Workers, executors and Connect servers have it as well.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from pathlib import Path

from snapline.spark.java import SHIM_MARK, ensure_java
from snapline.spark.java_archive import start_options

DIRECTORY = Path(sys.prefix) / "share" / "snapline" / "java_of_tests"


def ensure_quick_java() -> None:
    """Let JAVA_HOME, for everything that this process starts, name a Java that starts fast."""
    home = ensure_java()
    if home.path.parent == DIRECTORY:
        return
    options = start_options(home, {})
    script = DIRECTORY / hashlib.sha256(f"{home.java}{options}".encode()).hexdigest()[:12] / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(
        f"#!/bin/sh\n{SHIM_MARK}\n# version {home.version}\n"
        f'set -- {options} "$@"\n'
        f'exec {shlex.quote(str(home.java))} "$@"\n'
    )
    fresh.chmod(0o755)
    fresh.replace(script)
    os.environ["JAVA_HOME"] = str(script.parent.parent)
