"""Plants the faults, one after the other, in jobs of real processes, and prints what named the cause of each
after how long, as a table for docs/operations.md.

    python -m tests.faults [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.faults.planted_faults import FAULTS, LIMIT_SECONDS, PlantedFault, why_not


def main(names: list[str]) -> int:
    """Print the table; 1 when a cause was not named within the limit."""
    late = 0
    print("| fault | after | `why` said |")
    print("| --- | --- | --- |")
    for name in names or FAULTS:
        fault = FAULTS[name]
        missing = why_not(fault)
        if missing:
            print(f"| {name} | - | NOT PLANTED: {missing} |")
            continue
        with tempfile.TemporaryDirectory() as directory:
            begin = time.monotonic()
            try:
                with PlantedFault(Path(directory), fault) as planted:
                    cause = planted.wait_for_cause()
            except AssertionError as error:
                late += 1
                print(f"| {name} | NEVER | {error} |", flush=True)
                continue
        late += cause.after_seconds > LIMIT_SECONDS
        place = "" if cause.is_first else "(not first) "
        line = cause.finding.summary.replace("|", "\\|").replace("\n", " ")
        print(f"| {name} | {cause.after_seconds:.0f} s | {place}{cause.finding.kind}: {line} |", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s in all", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
