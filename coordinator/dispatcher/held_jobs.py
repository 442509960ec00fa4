"""Which stored jobs this Snapline cannot start, and what their owners are told.

The operators of a job travel as pickles, which name modules of Snapline. A job that was stored when those had other
names cannot be unpickled by any TaskManager of this version: it would fail, and what is stored of it would be deleted.
It is held instead. Mirrors nothing of Flink's, whose JobGraph fails to deserialize and takes the Dispatcher with it.
"""

from __future__ import annotations

import pickletools

from snapline.coordinator.dispatcher.events import HeldJob
from snapline.dataflow.graph.jobgraph import JobGraph

FORMER_MODULES = frozenset({"dataflow.operator_specs"})
"""Where the specs of operators were. Whoever moves `snapline.dataflow.graph.operator_specs` adds its present name."""


def former_module(graph: JobGraph) -> str:
    """The former module of Snapline under which the graph's operators are pickled; empty: they are not."""
    for vertex in graph.vertices:
        for operator in vertex.operators:
            module = _module_of_spec(operator.payload)
            if module in FORMER_MODULES:
                return module
    return ""


def hold(graph: JobGraph, module: str, checkpoint: str, unknown: str = "") -> HeldJob:
    """`checkpoint`: directory of its latest completed one; empty: it has none. `unknown`: why that is not known."""
    why = f"its latest checkpoint is not known, {unknown}" if unknown else "it has completed no checkpoint"
    way_on = (
        f"start its program again, with the present names, from its latest checkpoint: snapline run --from-savepoint {checkpoint} "
        "PROGRAM"
        if checkpoint
        else f"{why}: cancel it (snapline cancel {graph.job_id}) and start its program again, with the present names"
    )
    return HeldJob(
        graph,
        f"job {graph.name!r} ({graph.job_id}) was stored by an earlier Snapline, whose names it is pickled under ({module}), and is not "
        f"started; {way_on}",
    )


def _module_of_spec(payload: bytes) -> str:
    """The first text of a pickle of an object: the module of its class. Nothing is unpickled."""
    try:
        return next((argument for _, argument, _ in pickletools.genops(payload) if isinstance(argument, str)), "")
    except ValueError:  # no pickle, which is for whoever unpickles it to say
        return ""
