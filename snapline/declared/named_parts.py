"""Sources, sinks, formats and functions of a declared job, made from their names.

Decides what a name means: a public class of `snapline.connectors`, or `module:name` of a module that the TaskManagers
have. Modules of a user are loaded in tasks only; the coordinator, which has to know the graph and nothing else, gets
objects that stand for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import pyarrow as pa

import snapline.connectors
from snapline.connectors.builtin.hybrid_source import HybridEnumerator, HybridReader
from snapline.dataflow.api.connector_api import (
    Committer,
    Sink,
    SinkWriter,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.process_function import ProcessFunction
from snapline.dataflow.errors import JobDefinitionError
from snapline.declared.declared_values import decode_options
from snapline.protos import declared_pb2 as pb


class PartMaker:
    """Makes the objects that a declaration names. `loads_modules`: whether modules of a user may be imported, as in a
    task; else what they hold is stood for by objects that do nothing."""

    def __init__(self, *, loads_modules: bool) -> None:
        self._loads_modules = loads_modules

    def make_source(self, source: pb.DeclaredSource, columns: pa.Schema) -> Source:
        """The source, whose splits are found by its own task. Raises JobDefinitionError for a name that is no
        source."""
        name = source.connector.name
        if _is_of_user(name) and not self._loads_modules:
            return SourceInTasks(None, columns, name)
        return SourceInTasks(_must_be(Source, self._make(source.connector), name), columns, name)

    def make_sink(self, connector: pb.DeclaredConnector) -> Sink:
        """The sink. Raises JobDefinitionError for a name that is none, and for a sink of a user's that commits
        together: what its graph looks like only its module says."""
        if _is_of_user(connector.name) and not self._loads_modules:
            return SinkElsewhere()
        sink = _must_be(Sink, self._make(connector), connector.name)
        if _is_of_user(connector.name) and sink.commits_together:
            raise JobDefinitionError(
                f"{connector.name!r} commits what all subtasks wrote together, which sinks of a module cannot do in a declared job"
            )
        return sink

    def make_function(self, function: pb.DeclaredFunction, *, is_called: bool) -> Any:
        """The function, or the object whose methods are called; `is_called`: it is called itself."""
        if not self._loads_modules:
            return _nothing if is_called else FunctionElsewhere()
        found = _load(function.name)
        arguments = decode_options(function.arguments, self._make)
        if isinstance(found, type):
            return _made(function.name, found, arguments)
        if not callable(found):
            raise JobDefinitionError(f"{function.name!r} is no function and no class")
        return functools.partial(found, **arguments) if arguments else found

    def _make(self, connector: pb.DeclaredConnector) -> object:
        name = connector.name
        if _is_of_user(name):
            if not self._loads_modules:
                raise JobDefinitionError(f"{name!r}: a class of a module stands for a source or a sink only")
            made_from = _load(name)
        elif name in snapline.connectors.__all__:
            made_from = getattr(snapline.connectors, name)
        else:
            near = get_close_matches(name, snapline.connectors.__all__, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise JobDefinitionError(
                f"{name!r} is no name of snapline.connectors{hint}; a class of your own is said as 'module:Class'"
            )
        return _made(name, made_from, decode_options(connector.options, self._make))


class SourceInTasks(Source):
    """A source of a declared job: its splits are found when the job runs, by one task, because nobody looks into it
    before. `source` is None where only the graph of the job is needed."""

    def __init__(self, source: Source | None, columns: pa.Schema, name: str) -> None:
        self._source = source
        self._columns = columns
        self._name = name

    @property
    def _made(self) -> Source:
        if self._source is None:
            raise JobDefinitionError(f"{self._name!r} is a source of the TaskManagers, and this is none")
        return self._source

    @property
    def bounded(self) -> bool:
        return self._made.bounded

    def schema(self) -> pa.Schema:
        return self._columns

    @property
    def sets_bad_rows_aside(self) -> bool:
        return self._made.sets_bad_rows_aside

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return ()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        self._check_columns()
        return HybridEnumerator([self._made])

    @property
    def splits_at_once(self) -> int | None:
        return self._made.splits_at_once

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return HybridReader([self._made], context, self._columns.names)

    def _check_columns(self) -> None:
        """Compare what was declared with what the source says of itself."""
        found = self._made.schema()
        if found is None:
            return
        types = {field.name: field.type for field in found}
        for field in self._columns:
            if types.get(field.name) != field.type:
                raise JobDefinitionError(
                    f"{self._name}: column {field.name!r} is declared as {field.type}, and is {types.get(field.name, 'missing')}; the "
                    f"source has {', '.join(f'{name}: {kind}' for name, kind in types.items())}"
                )


class SinkElsewhere(Sink):
    """Stands for a sink of a user's module where only the graph of the job is needed."""

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        raise JobDefinitionError("this sink writes in TaskManagers only")

    def create_committer(self, context: SourceContextInfo) -> Committer | None:
        raise JobDefinitionError("this sink commits in TaskManagers only")


class FunctionElsewhere(ProcessFunction, KeyedProcessFunction, KeyedBatchProcessFunction):
    """Stands for a function of a user's module where only the graph of the job is needed."""

    def process_element(self, row: Any, context: Any) -> Any:
        """Process nothing, because no row comes here."""

    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        """Process nothing, because no batch comes here."""


def _nothing(_value: object) -> None:
    """Stand for a function that is called, where only the graph of the job is needed."""


def _is_of_user(name: str) -> bool:
    return ":" in name


def _load(name: str) -> Any:
    """What a module has under a name. Raises JobDefinitionError that says which of the two is missing."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise JobDefinitionError(f"{name!r} is no name of a function or class: say 'module:name'")
    try:
        return getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise JobDefinitionError(
            f"{name!r}: the TaskManager has no module {error.name!r}: install it there, or start them with --py-files"
        ) from error
    except AttributeError as error:
        raise JobDefinitionError(f"{name!r}: module {module_name!r} has no {attribute!r}") from error


def _made(name: str, made_from: Callable[..., object], options: Mapping[str, object]) -> object:
    try:
        return made_from(**options)
    except TypeError as error:
        raise JobDefinitionError(f"{name}: {error}") from error


def _must_be(kind: type, value: object, name: str) -> Any:
    if not isinstance(value, kind):
        raise JobDefinitionError(f"{name!r} is no {kind.__name__.lower()}")
    return value
