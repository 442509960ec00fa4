"""The golden jobs have everything that the API can put into a job; what needs a world of its own is in the simulator's
jobs."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import snapline
from tests.golden import forms, job, test_bad_rows, verbs
from tests.integration import test_external_rows
from tests.simulation import workload

NO_OPERATORS = frozenset(
    """uid name node set_parallelism set_max_parallelism slot_sharing_group check_columns
    check_event_time add_operator named_aggregates""".split()
)
STREAMS = (
    snapline.DataStream,
    snapline.KeyedStream,
    snapline.WindowedStream,
    snapline.ConnectedStreams,
    snapline.JoinedStreams,
    snapline.BroadcastConnectedStream,
)
JOBS = (job, forms, verbs, test_bad_rows)
OUTSIDE = frozenset(
    {"SinkFunction", "TwoPhaseCommitSinkFunction", "CheckpointedFunction", "StateDescriptor", "ResumableFunction"}
)
"""They write to a world that is looked at afterwards, are not called by their name, or are no part of a job."""
SINKS = "add_sink"
PROGRAMS = {"via_external", "to_external"}
"""Operators that are programs of their own, which tests/integration/test_external_rows.py starts and kills."""


def names_in(*modules: object) -> set[str]:
    """All names and attributes that the modules' source uses."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse(Path(inspect.getfile(module)).read_text())):  # type: ignore[arg-type]
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return found


@pytest.mark.parametrize("stream", STREAMS)
def test_every_method_that_adds_to_the_graph(stream: type) -> None:
    """An operator that is new has to come into a golden job, too."""
    public = {name for name, value in vars(stream).items() if not name.startswith("_") and callable(value)}
    assert public - NO_OPERATORS - {SINKS} - PROGRAMS <= names_in(*JOBS)


def test_every_window_state_aggregate_and_function() -> None:
    """By the names under which users import them."""
    kinds = ("Windows", "Trigger", "StateDescriptor", "Function")
    named = {name for name in snapline.__all__ if name.endswith(kinds)} - {"Function"}
    aggregates = {
        name for module, names in snapline._PLACES.items() if module == "snapline.aggregates" for name in names.split()
    }
    assert (named | aggregates) - OUTSIDE <= names_in(*JOBS)
    assert {"TwoPhaseCommitSinkFunction"} <= names_in(workload)


def test_programs_have_a_test_of_their_own() -> None:
    """They need a process outside of the cluster."""
    assert names_in(test_external_rows) >= PROGRAMS
