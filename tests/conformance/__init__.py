"""What Flink's own tests assert about checkpointing, replayed against the production cores.

`python -m tests.conformance PATH...` replays files or folders in the format of `scenarios/README.md`. For each kind of
scenario there is one adapter, `tests/conformance/kinds/<kind>.py`, with `replay(scenario) -> list[str]`: one line per
expectation that was not met. An adapter builds the real component, feeds the steps and compares; it raises `Skipped`
for what this implementation documents otherwise.
"""

from __future__ import annotations


class Skipped(Exception):
    """The scenario does not apply; says why."""
