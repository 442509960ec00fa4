"""What settings of Snapline were called in Flink 1: for those whose name there resembles another setting of today."""

from __future__ import annotations

NAMES_OF_FLINK_1 = {
    "state.backend.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
    "state.backend.incremental": "execution.checkpointing.incremental",
    "state.checkpoints.dir": "execution.checkpointing.dir",
    "state.savepoints.dir": "execution.checkpointing.savepoint-dir",
    "state.storage.fs.memory-threshold": "execution.checkpointing.data-inline-threshold",
}
"""The name of today for each."""
