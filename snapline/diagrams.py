"""State diagrams for the documentation, drawn from the tables that the code itself checks.

A page has pairs of markers, `<!-- diagram: NAME -->` and `<!-- end -->`; what stands between them is replaced.

    python -m snapline.diagrams docs/checkpoints.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from snapline.coordinator.checkpoint.pending_checkpoint import PENDING_CHECKPOINT_TRANSITIONS, PendingCheckpointStatus
from snapline.coordinator.execution.execution_graph import EXECUTION_TRANSITIONS, JOB_STATUS_TRANSITIONS
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.taskmanager.checkpointing.barrier_states import BarrierState
from snapline.taskmanager.checkpointing.barrier_states.diagram import state_diagram

_MARKED = re.compile(r"(<!-- diagram: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class UnknownDiagram(ValueError):
    """A page asks for a diagram that nobody draws."""


def draw(initial: Enum, transitions: Mapping[Any, Collection[Any]]) -> str:
    """Mermaid source of a table of states and those that may follow; labelled where the table says when."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial.name}"]
    for state, targets in transitions.items():
        for target in sorted(targets, key=list(transitions).index):
            label = f": {targets[target]}" if isinstance(targets, Mapping) else ""
            lines.append(f"    {state.name} --> {target.name}{label}")
    lines += [f"    {state.name} --> [*]" for state, targets in transitions.items() if not targets]
    return "\n".join(lines) + "\n"


DIAGRAMS: dict[str, Callable[[], str]] = {
    "job-status": lambda: draw(JobStatus.CREATED, JOB_STATUS_TRANSITIONS),
    "execution-state": lambda: draw(ExecutionState.CREATED, EXECUTION_TRANSITIONS),
    "pending-checkpoint": lambda: draw(PendingCheckpointStatus.PENDING, PENDING_CHECKPOINT_TRANSITIONS),
    "barrier-handler-aligned": lambda: state_diagram(BarrierState.WAITING_FOR_FIRST_BARRIER),
    "barrier-handler-unaligned": lambda: state_diagram(BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED),
    "barrier-handler-alternating": lambda: state_diagram(BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER),
}
"""The diagrams by the name in the marker."""


def render(page: str) -> str:
    """The page with its diagrams drawn anew. Raises UnknownDiagram."""

    def drawn(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in DIAGRAMS:
            raise UnknownDiagram(f"there is no diagram {name!r}; there are {', '.join(DIAGRAMS)}")
        return f"{found[1]}```mermaid\n{DIAGRAMS[name]()}```\n{found[3]}"

    return _MARKED.sub(drawn, page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the diagrams of these pages."""
    for name in sys.argv[1:] if arguments is None else arguments:
        page = Path(name)
        page.write_text(render(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
