"""How many files, and so connections, a process may have open.

The soft limit of most shells and services is 1,024, which is meant for programs that use `select()`. A coordinator or
relay has one connection for each TaskManager, and somebody who opens a thousand silent ones must not keep others out. A
TaskManager has a file for each 32 MiB of state that memory has no room for.
"""

from __future__ import annotations

import contextlib
import resource

MAX_OPEN_FILES = 1 << 16
"""Files that a coordinator or relay asks for; tens of thousands of TaskManagers would each hold a connection."""


def raise_file_limit() -> None:
    """Let this process open as many files as the system permits: each connection is one, and the usual soft limit of
    1,024 is meant for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # where the system permits fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
