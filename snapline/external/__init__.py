"""Programs outside as tasks of a job: the reference client for Python.

It needs grpcio and protobuf and nothing else of what Snapline depends on: a service that takes part in checkpoints need
not have Spark or Arrow. What travels is in protos/external.proto; docs/external.md tells how to write a program, in
this and in other languages.
"""

from snapline.external.checkpoint_declined import CheckpointDeclined
from snapline.external.conversation import ExternalTask, FailedForGood, Rows, TaskContext
from snapline.external.participation import ParticipationRefused, participate
from snapline.external.uploads import Uploaded, upload

__all__ = [
    "CheckpointDeclined",
    "ExternalTask",
    "FailedForGood",
    "ParticipationRefused",
    "Rows",
    "TaskContext",
    "Uploaded",
    "participate",
    "upload",
]
