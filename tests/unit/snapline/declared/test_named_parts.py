"""What a declared job names is checked before anything of it is called, and where pickles are not taken, before it is
imported."""

from __future__ import annotations

import os.path
import sys
from os.path import basename  # noqa: F401 - a declaration names it
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.declared_payload import LoadingRules, encode_payload, load_payload, translate_declared
from snapline.dataflow.graph.operator_specs import MapRowsSpec, SinkSpec
from tests.unit.snapline.declared.declared_jobs import job, operator, sink, source

HERE = __name__
NO_PICKLES = LoadingRules(takes_pickles=False)
OF_TESTS = LoadingRules(takes_pickles=False, modules=("tests.unit.snapline", "another"))
N = [{"name": "n", "type": "int64"}]
CALLS: list[str] = []


def called(**given: Any) -> None:
    """Note that a declaration had something called."""
    CALLS.append("called")


class Called:
    """Notes that a declaration had something made, and is no part of a job."""

    def __init__(self, **given: Any) -> None:
        CALLS.append("made")


class Times(sl.ProcessFunction):
    """Is a class of functions, and can be called, too."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def __call__(self, row: Any) -> Any:
        return {"n": self.times}

    def process_element(self, row: Any, context: Any) -> Any:
        yield {"n": self.times}


class OwnSink(DiscardingSink):
    """A sink of a user's."""


TWICE = Times(2)


def function(name: str, method: str = "map", **arguments: Any) -> dict[str, Any]:
    """An operator `f` with a function."""
    what = {"method": method, "name": name, "columns": N, "arguments": arguments}
    return operator("f", "orders", function=what)


def loaded(index: int, *operators: dict[str, Any], rules: LoadingRules | None = None) -> Any:
    """The specification of one of the operators that the job is built of, as a task loads it."""
    payload = encode_payload(job(*operators), index)
    return load_payload(payload) if rules is None else load_payload(payload, rules)


@pytest.mark.parametrize(
    ("line", "operators"),
    [
        (f"'{HERE}:called' is no source", [source(name=f"{HERE}:called", cmd={"stringValue": "id"}), sink("orders")]),
        (f"'{HERE}:Called' is no source", [source(name=f"{HERE}:Called"), sink("orders")]),
        (f"'{HERE}:called' is no sink", [source(), sink("orders", f"{HERE}:called")]),
        (f"'{HERE}:OwnSink' is no source", [source(name=f"{HERE}:OwnSink"), sink("orders")]),
        (f"'{HERE}:called' is no class",
         [source(paths={"stringValue": "/x"}, format={"object": {"name": f"{HERE}:called"}}), sink("orders")]),
        (f"'{HERE}:Called' is no class of functions", [source(), function(f"{HERE}:Called"), sink("f")]),
        (f"'{HERE}:Called' is no class of functions", [source(), function(f"{HERE}:Called", "process"), sink("f")]),
        (f"'{HERE}:called' is no function and no class of functions",
         [source(), function(f"{HERE}:called", "process"), sink("f")]),
        (f"'{HERE}:TWICE' is made already, and takes no arguments",
         [source(), function(f"{HERE}:TWICE", "process", times={"intValue": 3}), sink("f")]),
    ],
)  # fmt: skip
def test_nothing_is_called_that_is_no_class_of_its_kind(line: str, operators: list[dict[str, Any]]) -> None:
    """A source called subprocess:getoutput ran a command on each TaskManager before somebody saw that it is none."""
    CALLS.clear()
    with pytest.raises(JobDefinitionError, match=f": {line}$"):
        loaded(0, *operators)
    assert [] == CALLS


def test_functions_classes_and_objects_of_modules_are_what_they_were() -> None:
    """A function is called with rows only, and a class is made with its arguments."""
    mapped = loaded(2, source(), function(f"{HERE}:called", times={"intValue": 3}), sink("f"))
    made = loaded(2, source(), function(f"{HERE}:Times", "map", times={"intValue": 3}), sink("f"))
    there = loaded(2, source(), function(f"{HERE}:TWICE", "process"), sink("f"))

    assert isinstance(mapped, MapRowsSpec) and called is mapped.function.func  # type: ignore[attr-defined]
    assert 3 == made.function.times
    assert TWICE is there.function


@pytest.mark.parametrize(
    "operators",
    [
        [source(name="this:Source"), sink("orders")],
        [source(), sink("orders", "this:Sink")],
        [source(), function("this:f"), sink("f")],
        [source(), function("this:F", "process"), sink("f")],
    ],
    ids=["source", "sink", "called", "function"],
)
def test_without_pickles_no_module_is_imported(operators: list[dict[str, Any]]) -> None:
    """The coordinator refuses the job, and a TaskManager that is given it imports nothing."""
    line = (
        r"'this:\w+': declared jobs may not name what is in module 'this' here; put it into security\.declared-modules of "
        "coordinators and TaskManagers, if it may be$"
    )
    sys.modules.pop("this", None)
    for rules in (NO_PICKLES, OF_TESTS):
        with pytest.raises(JobDefinitionError, match=line):
            translate_declared(job(*operators), rules)
        with pytest.raises(JobDefinitionError, match=line):
            loaded(0, *operators, rules=rules)
    assert "this" not in sys.modules


def test_modules_that_the_settings_name_may_be_named() -> None:
    """With those below them; not those whose names begin alike, and not what they have imported from others."""
    declared = [source(), function(f"{HERE}:Times", "process"), sink("f", f"{HERE}:OwnSink")]
    translate_declared(job(*declared), OF_TESTS)
    assert isinstance(loaded(3, *declared, rules=OF_TESTS), SinkSpec)

    for modules in ((), ("tests.unit.snap",), ("tests.unit.snapline.declared.test_named_parts.x",)):
        with pytest.raises(JobDefinitionError, match=f"may not name what is in module '{HERE}' here"):
            loaded(3, *declared, rules=LoadingRules(takes_pickles=False, modules=modules))
    with pytest.raises(JobDefinitionError, match=f"may not name what is in module '{os.path.__name__}' here"):
        loaded(2, source(), function(f"{HERE}:basename"), sink("f"), rules=OF_TESTS)


@pytest.mark.parametrize(
    "setting",
    [
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
        "py-io-impl",
        "auth.impl",
    ],
)
def test_without_pickles_no_setting_of_a_library_loads_code(setting: str) -> None:
    """A library that Kafka's client loads, or a command that it runs, is code of whoever declares the job."""
    nested = {"options": {"options": {setting: {"stringValue": "/tmp/evil.so"}}}}
    text = {"stringValue": "localhost:1"}
    options: dict[str, Any] = {"bootstrap_servers": text, "settings": {"options": {"options": {"nested": nested}}}}
    from_kafka = job(source(name="KafkaSource", topics=text, **options), sink("orders"))
    to_kafka = job(source(), sink("orders", "KafkaSink", topic=text, **options))
    line = f": Kafka(Source|Sink): {setting} loads or runs code, which a declared job may not"

    for declared in (from_kafka, to_kafka):
        with pytest.raises(JobDefinitionError, match=line):
            translate_declared(declared, NO_PICKLES)
        with pytest.raises(JobDefinitionError, match=line):
            load_payload(encode_payload(declared, 0), NO_PICKLES)


def test_without_pickles_a_catalogue_has_no_settings_of_its_driver() -> None:
    """A catalogue in PostgreSQL hands what stands behind the mark to libpq, which loads a library for a key."""
    uri = {"stringValue": "postgresql+psycopg://host/db?sslcert=/etc/any.pem&sslkey=/tmp/evil.so:key"}
    catalog = {"options": {"options": {"type": {"stringValue": "sql"}, "uri": uri}}}
    declared = job(source(), sink("orders", "IcebergSink", catalog=catalog, table={"stringValue": "shop.orders"}))

    for refuses in (
        lambda: translate_declared(declared, NO_PICKLES),
        lambda: load_payload(encode_payload(declared, 0), NO_PICKLES),
    ):
        with pytest.raises(
            JobDefinitionError, match=r": IcebergSink: uri has settings of a driver behind '\?', which may"
        ):
            refuses()


def test_connectors_of_snapline_need_no_setting() -> None:
    """They are named without a module, on coordinators and TaskManagers."""
    declared = job(source(), sink("orders"))

    assert translate_declared(declared, NO_PICKLES).vertices
    assert isinstance(load_payload(encode_payload(declared, 2), NO_PICKLES).sink, DiscardingSink)


def test_a_process_without_pickles_reads_none() -> None:
    """Whoever hands it one, and whatever the coordinator is told."""
    payload = cloudpickle.dumps(pa.schema([]))

    assert pa.schema([]) == load_payload(payload)
    with pytest.raises(
        JobDefinitionError, match=r"a pickle is not read here, because security\.pickled-jobs\.allowed is false"
    ):
        load_payload(payload, NO_PICKLES)


def test_the_rules_are_settings_of_the_process() -> None:
    """Everything may be loaded unless they say so."""
    given = {"security.pickled-jobs.allowed": "false", "security.declared-modules": "shop.jobs, other ,"}

    assert LoadingRules() == LoadingRules.from_configuration(Configuration({}))
    assert LoadingRules(False, ("shop.jobs", "other")) == LoadingRules.from_configuration(Configuration(given))
