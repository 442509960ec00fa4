"""Every public name has a docstring with an example, and the examples run."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.client import ClusterClient
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.config import Configuration
from tests.services.public_face import documented_names, public_objects

WITHOUT_EXAMPLE = frozenset(
    """EmbeddedCluster EmbeddedCluster.recovers_jobs EmbeddedCluster.check EmbeddedCluster.close SparkHandle SparkHandle.settings
    open_spark run_in read""".split()
)
"""They need Spark. The list may only become shorter."""

ORDERS = [
    {"shop": "a", "customer": "x", "cents": 120, "coupon": None, "at": 0},
    {"shop": "b", "customer": "y", "cents": 80, "coupon": "spring", "at": 1_000},
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def surroundings(tmp_path) -> dict[str, object]:
    """What the examples in docstrings begin with; docs/reference.md says it to readers."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    time = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    schema = pa.schema(
        [
            ("shop", pa.string()),
            ("customer", pa.string()),
            ("cents", pa.int64()),
            ("coupon", pa.string()),
            ("at", pa.int64()),
        ]
    )
    connectors = importlib.import_module("snapline.connectors")
    orders = env.from_source(
        connectors.CollectionSource.of_rows(ORDERS, schema=schema), time, uid="orders", name="orders"
    )
    return {
        "sl": sl,
        "sl_connectors": connectors,
        "sl_external": importlib.import_module("snapline.external"),
        "sl_state": importlib.import_module("snapline.state"),
        "sl_testing": importlib.import_module("snapline.testing"),
        "pa": pa,
        "pc": pc,
        "np": np,
        "timedelta": dt.timedelta,
        "env": env,
        "orders": orders,
        "tmp": str(tmp_path),
    }


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """Of a coordinator that runs, and has no TaskManagers."""
    place = tmp_path_factory.mktemp("coordinator")
    settings = {"execution.checkpointing.dir": str(place)}
    coordinator = CoordinatorProcess.start(settings=settings, log_to=place / "log")
    yield Configuration({"jobmanager.rpc.address": coordinator.address})
    coordinator.stop()


def examples() -> Iterator[tuple[str, doctest.DocTest]]:
    """One for each docstring that has one."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name, value in public_objects():
        module = importlib.import_module(value.__module__)
        for found in finder.find(value, name, module=module, globs={}):
            if found.examples:
                yield found.name, found


@pytest.mark.parametrize("example", [pytest.param(example, id=name) for name, example in examples()])
def test_an_example_in_a_docstring_runs(example, configuration, tmp_path, request):
    """As it stands there, with what it says coming out."""
    example.globs = surroundings(tmp_path)
    if re.search(r"\bclient(_configuration)?\b", "".join(one.source for one in example.examples)):
        example.globs["client_configuration"] = configuration
        example.globs["client"] = ClusterClient.from_configuration(example.globs["client_configuration"])
        request.addfinalizer(example.globs["client"].close)
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    said: list[str] = []
    runner.run(example, out=said.append, clear_globs=False)
    assert "" == "".join(said)


def test_every_public_name_has_a_docstring():
    """Classes, functions, methods and properties; a method of a contract may have the contract's."""
    assert [] == [name for name, text, _ in documented_names() if not text]


def has_example(name: str, text: str, of_class: str) -> bool:
    """An example of its own, or one of its class that uses it."""
    member = name.rpartition(".")[2]
    used = re.compile(rf"^(>>>|\.\.\.) .*(\.{member}\b|def {member}\b|\b{member} = )", re.MULTILINE)
    return ">>>" in text or used.search(of_class) is not None


def test_every_public_name_has_an_example():
    """But for those of the list, which are all still without one."""
    assert set(WITHOUT_EXAMPLE) == {name for name, *texts in documented_names() if not has_example(name, *texts)}
