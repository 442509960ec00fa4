"""The state diagrams of the barrier handlers, drawn from the transition table."""

from __future__ import annotations

from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    TRANSITIONS,
    BarrierEvent,
    BarrierState,
)


def reachable(initial: BarrierState) -> tuple[BarrierState, ...]:
    """States of the handler that starts in this one, in the order in which the table leads to them."""
    found = [initial]
    for state in found:  # grows while it is walked
        for event in BarrierEvent:
            found += [target for target in TRANSITIONS.get((state, event), ()) if target not in found]
    return tuple(found)


def state_diagram(initial: BarrierState) -> str:
    """Mermaid source of one handler's diagram; events with the same effect share an arrow."""
    states = reachable(initial)
    lines = ["stateDiagram-v2", f"    [*] --> {initial.name}"]
    lines += [f"    {state.name}: {state.value}" for state in states]
    for state in states:
        for target in states:
            events = [event.value for event in BarrierEvent if target in TRANSITIONS.get((state, event), ())]
            if events:
                lines.append(f"    {state.name} --> {target.name}: {', '.join(events)}")
    return "\n".join(lines) + "\n"
