"""`python -m tests.fuzz --minutes 60`: draws inputs for every target, one after the other, and keeps what they find.

A finding is a file in `tests/fuzz/findings`, named by its target; the test beside this replays all of them. Exit code
1: there is a new one. How many inputs each target has had is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import TARGETS, Target

FINDINGS = Path(__file__).parent / "findings"
BATCH = 200
SECONDS_A_READ = 10
"""Of CPU: others use the machine, too."""
SECONDS_A_WAIT = 300
"""By the clock: a reader that waits for something hangs."""
MEMORY_BYTES = 256 << 20
"""More than before the first input is a finding."""


class TookTooLong(Exception):
    """A reader hangs."""


def try_one(target: Target, data: bytes) -> str:
    """Why the input is a finding, with the stack; empty: it was read, or refused as it should be."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS_A_READ)
    signal.alarm(SECONDS_A_WAIT)
    try:
        target.read(data)
    except target.refusals:
        pass
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return ""


def keep(name: str, data: bytes) -> Path:
    """Write a finding down, once."""
    path = FINDINGS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz until the time is over; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Draw inputs that nobody sends.")
    parser.add_argument("--minutes", type=float, default=10.0, help="of CPU, over all targets")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    given = parser.parse_args(arguments)
    for kind in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(kind, _raise_took_too_long)
    print(f"seed {given.seed}", flush=True)
    rng = random.Random(given.seed)
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    until = time.process_time() + given.minutes * 60
    while time.process_time() < until:
        for name in given.targets or TARGETS:
            for _ in range(BATCH):
                data = TARGETS[name].draw(rng)
                why = try_one(TARGETS[name], data)
                last_line = f"{name}: {why.strip().splitlines()[-1]}" if why else ""
                if why and last_line not in seen:
                    seen.add(last_line)
                    print(f"{keep(name, data)}: {why}", flush=True)
            counts[name] += BATCH
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    print(f"{counts.total():,} inputs, {len(seen)} findings, memory grew by {grown >> 20} MiB")
    return 1 if seen or grown > MEMORY_BYTES else 0


def _raise_took_too_long(_number: int, _frame: FrameType | None) -> None:
    raise TookTooLong(f"longer than {SECONDS_A_READ} s of CPU, or {SECONDS_A_WAIT} s of waiting")


if __name__ == "__main__":
    sys.exit(main())
