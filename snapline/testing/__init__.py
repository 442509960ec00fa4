"""What tests of a job need: a harness for one operator, a cluster within the test, a simulated one with faults,
scripted sources, and comparison without order.

`snapline.testing.fixtures` has the fixtures of pytest. Names are loaded when they are first asked for, so that
nothing of this costs a program that does not test. Mirrors Flink's flink-test-utils.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snapline.connectors.builtin.collection import CollectionSource, CollectSink
    from snapline.connectors.builtin.scripted import (
        Abort,
        AwaitCheckpoint,
        End,
        Pause,
        ScriptedAbort,
        ScriptedSource,
        Stall,
    )
    from snapline.testing.connectors import ConnectorReport, check_sink, check_source
    from snapline.testing.mini_cluster import MiniCluster, MiniJob
    from snapline.testing.operator_harness import HarnessError, HarnessSnapshot, OperatorHarness
    from snapline.testing.row_comparison import assert_same_rows
    from snapline.testing.simulated.user_job import SimulationError
    from snapline.testing.user_simulation import SimulationReport, simulate

__all__ = [
    "Abort",
    "AwaitCheckpoint",
    "CollectSink",
    "CollectionSource",
    "ConnectorReport",
    "End",
    "HarnessError",
    "HarnessSnapshot",
    "MiniCluster",
    "MiniJob",
    "OperatorHarness",
    "Pause",
    "ScriptedAbort",
    "ScriptedSource",
    "SimulationError",
    "SimulationReport",
    "Stall",
    "assert_same_rows",
    "check_sink",
    "check_source",
    "simulate",
]

_PLACES = {
    "snapline.connectors.builtin.collection": "CollectSink CollectionSource",
    "snapline.connectors.builtin.scripted": "Abort AwaitCheckpoint End Pause ScriptedAbort ScriptedSource Stall",
    "snapline.testing.connectors": "ConnectorReport check_sink check_source",
    "snapline.testing.mini_cluster": "MiniCluster MiniJob",
    "snapline.testing.operator_harness": "HarnessError HarnessSnapshot OperatorHarness",
    "snapline.testing.row_comparison": "assert_same_rows",
    "snapline.testing.simulated.user_job": "SimulationError",
    "snapline.testing.user_simulation": "SimulationReport simulate",
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'snapline.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
    return value
