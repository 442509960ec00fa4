"""Sources, sinks, formats and functions of a declared job, made from their names.

Decides what a name means: a public class of `snapline.connectors`, or `module:name` of a module that the TaskManagers
have. Modules of a user are loaded in tasks only; the coordinator, which has to know the graph and nothing else, gets
objects that stand for them. Whoever writes a declaration may be somebody who may run no code of his choice: nothing is
called that is no class of the expected kind, and where pickles are not taken no module is imported but those that the
settings of the process name.
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
from snapline.dataflow.config import SECURITY_DECLARED_MODULES, SECURITY_PICKLED_JOBS
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.declared_payload import LoadingRules
from snapline.declared.declared_values import decode_options
from snapline.protos import declared_pb2 as pb

CONNECTORS = snapline.connectors.__all__
FUNCTIONS = (ProcessFunction, KeyedProcessFunction, KeyedBatchProcessFunction)
LOADING_SETTINGS = frozenset(
    {"plugin.library.paths", "sasl.kerberos.kinit.cmd", "ssl.engine.location", "ssl.providers"}
)
"""Settings of librdkafka that load a library or run a command."""
LOADING_ENDS = ("-impl", ".impl")
"""Ends of those properties of pyiceberg that name a class which is imported."""


class PartMaker:
    """Makes the objects that a declaration names. `rules`: of what it may name here. `loads_modules`: whether modules
    of a user may be imported, as in a task; else what they hold is stood for by objects that do nothing."""

    def __init__(self, rules: LoadingRules, *, loads_modules: bool) -> None:
        self._rules = rules
        self._loads_modules = loads_modules

    def make_source(self, source: pb.DeclaredSource, columns: pa.Schema) -> Source:
        """The source, whose splits are found by its own task. Raises JobDefinitionError for a name that is no
        source."""
        name = source.connector.name
        if self._is_elsewhere(name):
            return SourceInTasks(None, columns, name)
        return SourceInTasks(self._make(source.connector, Source), columns, name)

    def make_sink(self, connector: pb.DeclaredConnector) -> Sink:
        """The sink. Raises JobDefinitionError for a name that is none, and for a sink of a user's that commits
        together: what its graph looks like only its module says."""
        if self._is_elsewhere(connector.name):
            return SinkElsewhere()
        sink: Sink = self._make(connector, Sink)
        if _is_of_user(connector.name) and sink.commits_together:
            raise JobDefinitionError(
                f"{connector.name!r} commits what all subtasks wrote together, which sinks of a module cannot do in a declared job"
            )
        return sink

    def make_function(self, function: pb.DeclaredFunction, *, is_called: bool) -> Any:
        """The function, or the object whose methods are called; `is_called`: it is called itself, with rows."""
        name = function.name
        if not self._loads_modules:
            self._check_module(name)
            return _nothing if is_called else FunctionElsewhere()
        found = self._load(name)
        arguments = decode_options(function.arguments, self._make)
        if isinstance(found, type):
            if not (_has_calls(found) if is_called else issubclass(found, FUNCTIONS)):
                raise JobDefinitionError(f"{name!r} is no class of functions")
            return _made(name, found, arguments)
        if not (callable(found) if is_called else isinstance(found, FUNCTIONS)):
            raise JobDefinitionError(f"{name!r} is no function and no class of functions")
        if arguments and not is_called:
            raise JobDefinitionError(f"{name!r} is made already, and takes no arguments")
        return functools.partial(found, **arguments) if arguments else found

    def _make(self, connector: pb.DeclaredConnector, kind: type = object) -> Any:
        """An object of the kind. Raises JobDefinitionError before anything is called that is no class of it."""
        name = connector.name
        if _is_of_user(name):
            if not self._loads_modules:
                raise JobDefinitionError(f"{name!r}: a class of a module stands for a source or a sink only")
            made_from = self._load(name)
        elif name in CONNECTORS:
            made_from = getattr(snapline.connectors, name)
        else:
            near = get_close_matches(name, CONNECTORS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise JobDefinitionError(
                f"{name!r} is no name of snapline.connectors{hint}; a class of your own is said as 'module:Class'"
            )
        if not (isinstance(made_from, type) and issubclass(made_from, kind)):
            raise JobDefinitionError(f"{name!r} is no {'class' if kind is object else kind.__name__.lower()}")
        options = decode_options(connector.options, self._make)
        if not self._rules.takes_pickles:
            _check_settings(name, options)
        return _made(name, made_from, options)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether an object stands for what the name means, which is loaded in tasks only. Raises JobDefinitionError
        for a name that is not loaded there either."""
        if not _is_of_user(name) or self._loads_modules:
            return False
        self._check_module(name)
        return True

    def _load(self, name: str) -> Any:
        """What a module has under a name. Raises JobDefinitionError that says which of the two is missing, or may not
        be named."""
        module_name, attribute = self._check_module(name)
        try:
            found = getattr(import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            raise JobDefinitionError(
                f"{name!r}: the TaskManager has no module {error.name!r}: install it there, or start them with --py-files"
            ) from error
        except AttributeError as error:
            raise JobDefinitionError(f"{name!r}: module {module_name!r} has no {attribute!r}") from error
        home = str(getattr(found, "__module__", ""))
        if not self._rules.allows(home):  # a module that may be named has imported it from one that may not
            raise _not_allowed(name, home)
        return found

    def _check_module(self, name: str) -> tuple[str, str]:
        """The module that a name means, and what is meant in it. Raises JobDefinitionError for what is no such name,
        and for a module that may not be named here."""
        module_name, _, attribute = name.partition(":")
        if not module_name or not attribute:
            raise JobDefinitionError(f"{name!r} is no name of a function or class: say 'module:name'")
        if not self._rules.allows(module_name):
            raise _not_allowed(name, module_name)
        return module_name, attribute


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
        return self._source is None or self._source.bounded  # of one that is not known nobody is warned

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


def _has_calls(kind: type) -> bool:
    """Whether objects of a class can be called."""
    return any("__call__" in vars(each) for each in kind.__mro__)


def _not_allowed(name: str, module: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"{name!r}: declared jobs may not name what is in module {module!r} here; put it into {SECURITY_DECLARED_MODULES.key} of coordinators "
        "and TaskManagers, if it may be"
    )


def _check_settings(name: str, value: object) -> None:
    """Raise JobDefinitionError for a setting by which code is loaded or run, however deep it stands."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key in LOADING_SETTINGS or key == "impl" or str(key).endswith(LOADING_ENDS):
                raise JobDefinitionError(
                    f"{name}: {key} loads or runs code, which a declared job may not where {SECURITY_PICKLED_JOBS.key} is false"
                )
            if key == "uri" and "?" in str(each):
                raise JobDefinitionError(
                    f"{name}: uri has settings of a driver behind '?', which may load code, which a declared job may not where "
                    f"{SECURITY_PICKLED_JOBS.key} is false"
                )
            _check_settings(name, each)
    elif isinstance(value, list):
        for each in value:
            _check_settings(name, each)


def _made(name: str, made_from: Callable[..., object], options: Mapping[str, object]) -> object:
    try:
        return made_from(**options)
    except TypeError as error:
        raise JobDefinitionError(f"{name}: {error}") from error
