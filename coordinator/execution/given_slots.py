"""GivenSlots: the ids of allocations, which prove that a coordinator of this cluster has given the slot.

Decides what an allocation id is: something drawn, and a signature of it that is true for one job, on one TaskManager,
for slots or for one external task. A ResourceManager signs what it gives, and a JobMaster takes no offer without that,
so that nobody is sent a job's tasks whom no coordinator has chosen for them: not even who has a TaskManager's
credential, as functions have. The key is derived from the cluster's secret, so that the next leader, and a JobMaster in
another process, can look as well. A cluster without a secret signs nothing and believes each offer. Flink's
AllocationID is drawn at random, and believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapline.dataflow.ids import AllocationID, JobID, ResourceID
from snapline.runtime.signing import DIGEST_BYTES, UNSIGNED, Signer

PROOF_DIGITS = 2 * DIGEST_BYTES
"""Hexadecimal digits of the signature, at the end of the id."""


IsGiven = Callable[[ResourceID, AllocationID, str], bool]
"""Whether a coordinator has given this allocation, on this TaskManager, for this external task (empty: for slots)."""


@dataclass(frozen=True, slots=True)
class ForgedSlot:
    """A TaskManager has named an allocation of a job that no coordinator has given it."""

    number: int
    """Rises by one with each."""
    resource_id: ResourceID

    @classmethod
    def after(cls, last: ForgedSlot | None, resource_id: ResourceID) -> ForgedSlot:
        """Return what is remembered when another one is named after the last."""
        return cls(1 if last is None else last.number + 1, resource_id)


class GivenSlots:
    """Draws allocation ids, and tells those that were drawn for this cluster from others. Thread-safe if `draw` and
    `signer` are."""

    def __init__(self, draw: Callable[[], str], signer: Callable[[], Signer] = lambda: UNSIGNED) -> None:
        """`draw` gives text that never repeats; `signer` has the keys of the moment."""
        self._draw = draw
        self._signer = signer

    def give(self, job_id: JobID, resource_id: ResourceID, external_task: str = "") -> AllocationID:
        """Return the id of a new allocation: for this job, on this TaskManager or program, for slots or for programs of
        one external task."""
        drawn = self._draw()
        proof = self._signer().sign(_name(job_id, resource_id, external_task), drawn.encode())
        return AllocationID(drawn + proof.hex())

    def is_given(
        self, job_id: JobID, resource_id: ResourceID, allocation_id: AllocationID, external_task: str = ""
    ) -> bool:
        """Whether a coordinator has given this allocation: to this job, on this TaskManager or program."""
        drawn, digits = allocation_id[:-PROOF_DIGITS], allocation_id[-PROOF_DIGITS:]
        try:
            proof = bytes.fromhex(digits)
        except ValueError:
            proof = b""
        if proof.hex() != digits:  # another spelling would be another slot
            proof = b""
        name = _name(job_id, resource_id, external_task)
        return self._signer().is_signed(name, drawn.encode(), proof)


ANYTHING_IS_GIVEN = GivenSlots(lambda: "")
"""Believes each offer, for a JobMaster that nobody but its own TaskManagers can reach."""


def _name(job_id: JobID, resource_id: ResourceID, external_task: str) -> str:
    return f"slot:{len(job_id)}:{job_id}:{len(resource_id)}:{resource_id}:{external_task}"
