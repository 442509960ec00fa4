"""`python -m tests.conformance PATH...`: a line for each scenario that fails, then the totals; exit code 1 on
failures."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance.replay import VENDORED, UnreadableScenarios, files_of, replay, scenarios_of


def main(arguments: list[str]) -> int:
    """Without arguments: the vendored scenarios. Exit code 2 when nothing could be replayed."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    passed = failed = skipped = 0
    try:
        files = list(files_of([Path(argument) for argument in arguments] or [VENDORED]))
        scenarios = [scenario for path in files for scenario in scenarios_of(path)]
    except UnreadableScenarios as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not scenarios:
        print("error: no scenarios there; they are .yaml or .json files", file=sys.stderr)
        return 2
    for scenario in scenarios:
        outcome = replay(scenario)
        if outcome.skipped:
            skipped += 1
        elif outcome.failures:
            failed += 1
            more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
            print(f"{outcome.scenario_id}: {outcome.failures[0]}{more}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
