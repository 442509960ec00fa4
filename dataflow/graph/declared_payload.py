"""Payloads of operators: a pickle, or what an operator of a declared job is, in protobuf (`protos/declared.proto`).

Decides which of the two some bytes are. A declared job is built again from its declaration wherever one of its
operators runs, by the face of Snapline, which lies above this room: it is found by its name, as a pickle finds it. No
counterpart in Flink, whose clients in other languages submit SQL.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import cloudpickle

from snapline.dataflow.graph.jobgraph import DECLARED, JobGraph
from snapline.protos import declared_pb2

BUILDER = "snapline.declared.job_builder"


def translate_declared(job: declared_pb2.DeclaredJob) -> JobGraph:
    """The graph of a declared job; no code of a user runs. Raises JobDefinitionError with one line for whatever cannot
    be built."""
    return import_module(BUILDER).translate_declared(job)


def encode_payload(job: declared_pb2.DeclaredJob, node_id: int) -> bytes:
    """The payload of one operator of a declared job, by its position among the operators that the job is built of."""
    return DECLARED + declared_pb2.DeclaredPayload(job=job, node_id=node_id).SerializeToString(deterministic=True)


def load_payload(payload: bytes) -> Any:
    """The specification of an operator. Raises whatever its modules raise when they are imported, and
    JobDefinitionError for a declaration that cannot be built."""
    if not payload.startswith(DECLARED):
        return cloudpickle.loads(payload)
    declared = declared_pb2.DeclaredPayload.FromString(payload[len(DECLARED) :])
    return import_module(BUILDER).build_spec(declared.job, declared.node_id)
