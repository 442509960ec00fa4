"""Pointers to completed checkpoints, signed: only a coordinator of the cluster decides what a job goes on from."""

from __future__ import annotations

from collections.abc import Sequence

from snapline.coordinator.ha.high_availability import PointerStore
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.runtime.signing import NotSigned, Signer


class SignedPointers:
    """The pointers of one job in another store, each signed for its job (PointerStore)."""

    def __init__(self, pointers: PointerStore, job_id: JobID, signer: Signer) -> None:
        self._pointers = pointers
        self._name = f"pointers/{job_id}"
        self._signer = signer

    def add(self, checkpoint_id: CheckpointID, pointer: bytes) -> None:
        """Raises PointerExists when there is one with this id."""
        self._pointers.add(checkpoint_id, self._signer.seal(self._name, pointer))

    def contains(self, checkpoint_id: CheckpointID, pointer: bytes) -> bool:
        """Whether exactly this pointer is there, signed with the present key."""
        return self._pointers.contains(checkpoint_id, self._signer.seal(self._name, pointer))

    def remove(self, checkpoint_id: CheckpointID) -> bool:
        """Give the pointer up, as the store beneath does."""
        return self._pointers.remove(checkpoint_id)

    def load(self) -> Sequence[bytes]:
        """Return all of them. Raises NotSigned, naming the job, when somebody else wrote one."""
        try:
            return [self._signer.open(self._name, pointer) for pointer in self._pointers.load()]
        except NotSigned as error:
            raise NotSigned(f"a checkpoint's pointer below {self._name} {error}") from error

    @property
    def checkpoint_ids(self) -> Sequence[CheckpointID]:
        """The ids of all checkpoints that are pointed to, signed or not."""
        return self._pointers.checkpoint_ids

    def release(self) -> None:
        """Hold none of them any more, and delete none."""
        self._pointers.release()
