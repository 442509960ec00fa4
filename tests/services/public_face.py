"""What Snapline gives to users: the modules that they import, and every class, function and method in them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType

PUBLIC_MODULES = (
    "snapline",
    "snapline.client",
    "snapline.connectors",
    "snapline.external",
    "snapline.sidecar",
    "snapline.state",
    "snapline.testing",
)
"""All that a user imports; everything else is ours, and may change from one version to the next."""
BESIDE_ALL = {"snapline": ("max", "min", "sum")}
"""Public names that a star import leaves out."""
INNER = frozenset(
    """DataStream.node DataStream.check_columns DataStream.check_event_time DataStream.add_operator KeyedStream.named_aggregates
    StreamExecutionEnvironment.configuration_with ClusterClient.report_workers ClusterClient.state_of_task_manager
    KafkaSink.producer_settings KafkaSource.consumer_settings TwoPhaseCommitSinkFunction.initialize_state TwoPhaseCommitSinkFunction.invoke TwoPhaseCommitSinkFunction.finish
    TwoPhaseCommitSinkFunction.snapshot_state TwoPhaseCommitSinkFunction.notify_checkpoint_complete
    TwoPhaseCommitSinkFunction.notify_checkpoint_aborted TwoPhaseCommitSinkFunction.close""".split()
)
"""Methods of public classes that only Snapline calls; their docstrings are not in the reference."""


def public_objects() -> Iterator[tuple[str, type | FunctionType]]:
    """Every public object of ours once, by its full name."""
    seen: set[int] = set()
    for module in PUBLIC_MODULES:
        found = importlib.import_module(module)
        for name in (*found.__all__, *BESIDE_ALL.get(module, ())):
            value = getattr(found, name)
            of_ours = getattr(value, "__module__", "").startswith("snapline.") and "protos" not in value.__module__
            if id(value) not in seen and of_ours and isinstance(value, (type, FunctionType)):
                seen.add(id(value))
                yield f"{module}.{name}", value


def documented_names() -> Iterator[tuple[str, str, str]]:
    """Each public class, function and method: its name, its docstring, and those of its class and contracts."""
    for full_name, value in public_objects():
        bases = value.__mro__[1:] if isinstance(value, type) else ()
        contracts = "\n".join(
            inspect.cleandoc(base.__doc__ or "") for base in bases if base.__module__.startswith("snapline")
        )
        own = inspect.cleandoc(value.__doc__ or "")
        name = full_name.rpartition(".")[2]
        yield name, own, own
        if isinstance(value, type):
            yield from documented_members(name, value, f"{own}\n{contracts}")


def documented_members(name: str, owner: type, of_class: str) -> Iterator[tuple[str, str, str]]:
    """The public methods and properties of a class."""
    for member, raw in vars(owner).items():
        function = getattr(raw, "fget", None) or getattr(raw, "__func__", raw)
        if not member.startswith("_") and isinstance(function, FunctionType) and f"{name}.{member}" not in INNER:
            yield f"{name}.{member}", inspect.cleandoc(function.__doc__ or inherited(owner, member)), of_class


def inherited(owner: type, member: str) -> str:
    """The docstring of the contract whose method this one is."""
    return next((getattr(base, member).__doc__ or "" for base in owner.__mro__[1:] if hasattr(base, member)), "")
