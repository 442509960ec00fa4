"""States that a function declares are found without running anything of it."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.state import (
    MIGRATED_METADATA,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
    descriptor_of,
)
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.snapshot.declared_states import declared_names, declared_schema, declared_states
from snapline.dataflow.snapshot.state_format import KEY_COLUMN, STATE_COLUMN, column_role

IN_GLOBALS = ValueStateDescriptor("in globals", pa.int64())
UNUSED = ValueStateDescriptor("unused", pa.int64())
RUN: list[str] = []


def dangerous() -> pa.DataType:
    """What must not run."""
    RUN.append("dangerous")
    return pa.int64()


class Base(KeyedProcessFunction):
    """With a state of its own."""

    in_class = ListStateDescriptor("in class", pa.string())

    def process_element(self, row, context):
        """Nothing."""


class Everything(Base):
    """Every place where a descriptor may stand."""

    def __init__(self) -> None:
        RUN.append("init")
        self.in_object = ValueStateDescriptor("in object", pa.int64())
        self.several = {"x": ValueStateDescriptor("in a dictionary", pa.int64())}
        self.fields = [("a", pa.int64())]

    def open(self, context) -> None:
        """As in Flink's examples."""
        RUN.append("open")
        ttl = StateTtlConfig(dt.timedelta(hours=1))
        kind = pa.struct(self.fields)
        self.one = context.get_state(ValueStateDescriptor("in an expression", kind, ttl=ttl))
        self.two = context.get_map_state(
            MapStateDescriptor("with a migration", pa.string(), pa.int64(), migrate=lambda old: old.cast("int64"))
        )
        self.three = context.get_state(ValueStateDescriptor("not to be known", dangerous()))
        self.four = context.get_state(IN_GLOBALS)


def test_descriptors_are_found_where_users_write_them() -> None:
    """In attributes, classes, globals and expressions; user code that would have to run for it is left alone."""
    RUN.clear()
    function = Everything()
    states = {state.name: state for state in declared_states(function)}
    assert sorted(states) == [
        "in a dictionary", "in an expression", "in class", "in globals", "in object", "with a migration",
    ]  # fmt: skip
    assert states["in an expression"] == ValueStateDescriptor(
        "in an expression", pa.struct([("a", pa.int64())]), ttl=StateTtlConfig(dt.timedelta(hours=1))
    )
    assert states["with a migration"].migrate is not None
    assert RUN == ["init"]


class OneOfTwo(KeyedProcessFunction):
    """Takes one state or another, under one name."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact

    def open(self, context) -> None:
        """The second descriptor is that of most programs."""
        self.other = context.get_state(ValueStateDescriptor("other", pa.int64()))
        if self.exact:
            self.seen = context.get_list_state(ListStateDescriptor("seen", pa.string()))
        else:
            self.seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, row, context):
        """Nothing."""


def test_a_name_that_is_declared_in_two_ways_is_not_said_in_one() -> None:
    """The program could not be restored from its own savepoint, for a branch that never runs."""
    assert [state.name for state in declared_states(OneOfTwo(exact=False))] == ["other"]
    assert declared_names(OneOfTwo(exact=False)) == {"other", "seen"}


KIND = pa.string()


class GivesANameSeveralValues(KeyedProcessFunction):
    """Uses one name for several types, and one that means something else outside."""

    def open(self, context: Any) -> None:
        """As a program that grew may do."""
        KIND = pa.int64()
        self.local = context.get_state(ValueStateDescriptor("local", KIND))
        kind = pa.int64()
        self.first = context.get_state(ValueStateDescriptor("first", kind))
        kind = pa.string()
        self.second = context.get_state(ValueStateDescriptor("second", kind))

    def process_element(self, row: Any, context: Any) -> None:
        """Nothing."""


def test_a_name_of_several_values_stands_for_none_of_them() -> None:
    """The program could not be restored from its own savepoint, because the last value was taken for each of them, and
    one outside of the method for one within."""
    assert declared_states(GivesANameSeveralValues()) == (ValueStateDescriptor("local", pa.int64()),)


def test_where_one_state_is_not_known_nobody_says_that_these_are_all() -> None:
    """A function over batches was refused its snapshot as that of another, since its other names were taken for all."""
    assert declared_names(GivesANameSeveralValues()) == frozenset()


class TakesATypeFromElsewhere(KeyedProcessFunction):
    """Imports, where it is opened, what is called as something outside."""

    def open(self, context: Any) -> None:
        """As a function does whose module is slow to load."""
        from pyarrow import int64 as KIND

        self.count = context.get_state(ValueStateDescriptor("count", KIND))

    def process_element(self, row: Any, context: Any) -> None:
        """Nothing."""


def test_what_a_method_imports_is_not_what_has_that_name_outside() -> None:
    """The state was taken for one of texts, and its own snapshot was refused."""
    assert declared_states(TakesATypeFromElsewhere()) == ()


STATES = ModuleType("states")
STATES.total = ValueStateDescriptor("in a module", pa.int64())  # type: ignore[attr-defined]


class TakesStatesOfAModule(KeyedBatchProcessFunction):
    """With one state more than at first, which was in the module."""

    def process_batch(self, keys: Any, batch: Any, state: Any) -> None:
        """The sum of two."""
        state.put(STATES.total, pc.add(state.get(STATES.total), state.get(IN_GLOBALS)))


def test_states_that_lie_in_a_module_are_found() -> None:
    """The function did not start from a snapshot with the first one, since it was known to ask for the other alone."""
    assert declared_names(TakesStatesOfAModule()) == {"in a module", "in globals"}


def test_closures_and_functions_without_source() -> None:
    """A descriptor of an enclosing function; a class that was typed in has no source, its attributes are found."""
    local = ValueStateDescriptor("local", pa.int64())

    class Closed(KeyedBatchProcessFunction):
        def process_batch(self, keys, batch, state):
            state.put(local, state.get(local))

    assert declared_states(Closed()) == (local,)
    scope: dict[str, object] = {"__name__": "typed", "Base": Base, "D": ValueStateDescriptor("typed in", pa.int64())}
    exec("class Typed(Base):\n    kept = D\n    def open(self, context):\n        pass\n", scope)
    assert {state.name for state in declared_states(scope["Typed"]())} == {"typed in", "in class"}  # type: ignore[operator]
    assert declared_states(lambda row: row) == ()


def test_what_the_coordinator_is_told() -> None:
    """Columns as in a file of keyed state; a migration is a mark, not code."""
    states = (ValueStateDescriptor("v", pa.int64(), migrate=lambda old: old), IN_GLOBALS)
    schema = declared_schema(states, [pa.field("k", pa.dictionary(pa.int32(), pa.string()))])
    assert [column_role(field) for field in schema] == [KEY_COLUMN, STATE_COLUMN, STATE_COLUMN]
    assert schema.field("k").type == pa.string()
    assert descriptor_of(schema.field("v")) == states[0]
    assert [MIGRATED_METADATA in field.metadata for field in schema] == [False, True, False]
    assert len(declared_schema(states, [pa.field("k", pa.list_(pa.int64()))])) == 0


def test_descriptors_are_found_by_the_short_name_of_the_package() -> None:
    """Its public names load when they are first asked for: also then, and without running anything of the user's."""
    program = (
        "import sys, pyarrow as pa, snapline as sl\n"
        "class Counted(sl.KeyedProcessFunction):\n"
        "    def open(self, context):\n"
        "        self.n = context.get_state(sl.ValueStateDescriptor('n', pa.int64()))\n"
        "    def process_element(self, row, context):\n"
        "        return []\n"
        "from snapline.dataflow.snapshot.declared_states import declared_states\n"
        "vars(sl).pop('ValueStateDescriptor', None)\n"
        "print([state.name for state in declared_states(Counted())])\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "counted.py")
        script.write_text(program)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)

    assert ("['n']\n", "") == (done.stdout, done.stderr)


def test_a_variable_around_a_function_may_have_no_value_yet() -> None:
    """One that is set later, or not any more, as the name of an exception, kept the job from being submitted."""
    state = ValueStateDescriptor("around", pa.int64())

    class Around(Base):
        def process_element(self, row: object, context: object) -> Any:
            return [later, state]

    assert {each.name for each in declared_states(Around())} == {"around", "in class"}
    later = "now it has one"
    assert Around().process_element({}, None) == [later, state]
