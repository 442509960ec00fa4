"""Payloads of operators: a pickle, or what an operator of a declared job is, in protobuf (`protos/declared.proto`).

Decides which of the two some bytes are. A declared job is built again from its declaration wherever one of its
operators runs, by the face of Snapline, which lies above this room: it is found by its name, as a pickle finds it. No
counterpart in Flink, whose clients in other languages submit SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import cloudpickle

from snapline.dataflow.config import SECURITY_DECLARED_MODULES, SECURITY_PICKLED_JOBS, Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.jobgraph import DECLARED, JobGraph
from snapline.protos import declared_pb2

BUILDER = "snapline.declared.job_builder"


@dataclass(frozen=True, slots=True)
class LoadingRules:
    """What a process loads of what jobs bring or name, which its own settings say, and never those of a job."""

    takes_pickles: bool = True
    """Whether a pickle is read, and with it any module is imported."""
    modules: tuple[str, ...] = ()
    """Modules of which, and below which, a declared job may name what it likes where no pickle is read."""

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> LoadingRules:
        """Read the settings of a process. Raises ConfigurationError."""
        modules = configuration.get_option(SECURITY_DECLARED_MODULES).split(",")
        return cls(
            configuration.get_option(SECURITY_PICKLED_JOBS), tuple(each.strip() for each in modules if each.strip())
        )

    def allows(self, module: str) -> bool:
        """Whether a declared job may name what is in a module."""
        return self.takes_pickles or any(module == each or module.startswith(f"{each}.") for each in self.modules)


ALL_ALLOWED = LoadingRules()


def translate_declared(job: declared_pb2.DeclaredJob, rules: LoadingRules = ALL_ALLOWED) -> JobGraph:
    """The graph of a declared job; no code of a user runs. Raises JobDefinitionError with one line for whatever cannot
    be built, or names what the rules do not allow."""
    return import_module(BUILDER).translate_declared(job, rules)


def encode_payload(job: declared_pb2.DeclaredJob, node_id: int) -> bytes:
    """The payload of one operator of a declared job, by its position among the operators that the job is built of."""
    return DECLARED + declared_pb2.DeclaredPayload(job=job, node_id=node_id).SerializeToString(deterministic=True)


def load_payload(payload: bytes, rules: LoadingRules = ALL_ALLOWED) -> Any:
    """The specification of an operator. Raises whatever its modules raise when they are imported, and
    JobDefinitionError for a declaration that cannot be built, and for what the rules do not allow."""
    if not payload.startswith(DECLARED):
        if not rules.takes_pickles:
            raise JobDefinitionError(
                f"a pickle is not read here, because {SECURITY_PICKLED_JOBS.key} is false; declare the job, or allow pickles in the "
                "TaskManager's settings"
            )
        return cloudpickle.loads(payload)
    declared = declared_pb2.DeclaredPayload.FromString(payload[len(DECLARED) :])
    return import_module(BUILDER).build_spec(declared.job, declared.node_id, rules)
