"""`python -m tests.scenarios [--rewrite] [FILE...]`: play transcripts; with --rewrite write down what came out."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.scenarios.transcript import differences, parse, play, render, transcripts
from tests.scenarios.worlds import FOLDER, world_of


def main(arguments: list[str]) -> int:
    """Exit code 1 when something differs."""
    rewrite = "--rewrite" in arguments
    files = [Path(a) for a in arguments if a != "--rewrite"] or transcripts(FOLDER)
    failed = 0
    for path in files:
        blocks = parse(path.read_text(encoding="utf-8"))
        played = play(blocks, world_of(path))
        found = differences(blocks, played)
        if rewrite:
            path.write_text(render(played), encoding="utf-8")
        elif found:
            failed += 1
            print("\n".join([str(path), *found]))
    print(f"{len(files)} transcripts" + (", rewritten" if rewrite else f", {failed} differ"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
