"""SlotPool: the slots that a job has, against the number that it needs.

Declarative: the job says how many slots it needs in all, TaskManagers offer what the ResourceManager gave to the job,
and an offer is accepted while the pool has less than needed. A slot is FREE or RESERVED (something of the job is
assigned to it). Free slots beyond the need go back after `slot.idle.timeout`. Knows neither tasks nor connections; who
loses what when a TaskManager goes is in the answers. Mirrors Flink's DefaultDeclarativeSlotPool; slots of TaskManagers
are all alike, so a requirement is a number. What no coordinator has given (`given_slots`) is never taken. A program
outside is a slot of its own kind, which only its external task can use, and which the ResourceManager never hears of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from snapline.coordinator.execution.given_slots import ForgedSlot, IsGiven
from snapline.dataflow.ids import AllocationID, ResourceID
from snapline.dataflow.wire.messages import SlotOffer, SlotsHeld
from snapline.runtime.cores.machine import check

MAX_GIVEN_BACK = 1_024
"""The slots that were given back last, so many, are not taken again."""


@dataclass(frozen=True, slots=True)
class AllocatedSlot:
    """One slot of the pool."""

    allocation_id: AllocationID
    resource_id: ResourceID
    slot_number: int
    external_task: str = ""
    """The external task that alone can use it; empty: a TaskManager's."""


@dataclass(frozen=True, slots=True)
class OffersAnswered:
    """Which offers the pool took."""

    accepted: tuple[AllocationID, ...]
    rejected: tuple[AllocationID, ...]


class SlotPool:
    """The slots of one job."""

    def __init__(self, idle_timeout_ms: int, is_given: IsGiven) -> None:
        """An empty pool that needs nothing. `is_given`: whether a coordinator has given what is offered."""
        self._idle_timeout_ms = idle_timeout_ms
        self.is_given = is_given
        self.last_forged: ForgedSlot | None = None
        self.required = 0
        """How many slots of TaskManagers the job needs."""
        self.least = 0
        """With how many of these it runs, where it can use more; 0: it needs all."""
        self.programs_required: Mapping[str, int] = {}
        """How many programs outside the job needs, by external task."""
        self._slots: dict[AllocationID, AllocatedSlot] = {}
        self._counts: dict[str, int] = {}
        """How many slots there are, by external task."""
        self._free_since_ms: dict[AllocationID, int] = {}
        """All and only the free slots, and since when they are, longest first."""
        self._by_resource: dict[ResourceID, dict[AllocationID, None]] = {}
        self._given_back: dict[AllocationID, None] = {}
        """Whoever has not heard that he has them back, because the connection was lost, offers them once more."""
        self._held: tuple[SlotsHeld, ...] | None = ()
        """`held`, until the slots change: it is asked for after every event of a job."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of slots, free or not."""
        return len(self._slots)

    def __contains__(self, allocation_id: AllocationID) -> bool:
        """Whether the slot is in the pool."""
        return allocation_id in self._slots

    def __iter__(self) -> Iterator[AllocatedSlot]:
        """Iterate over all slots of the pool, free and assigned."""
        return iter(self._slots.values())

    @property
    def missing(self) -> int:
        """How many slots are needed and not there."""
        return self.lacks(self.required, self.programs_required)

    def lacks(self, slots: int, programs: Mapping[str, int]) -> int:
        """How many more it would take to have so many of each kind."""
        return max(0, slots - self.count()) + sum(
            max(0, number - self.count(task)) for task, number in programs.items()
        )

    def shortage(self, slots: int, programs: Mapping[str, int], note: str = "") -> str:
        """What there is, and how many of each kind there should be; `note` is said of the slots of TaskManagers."""
        said = [f"{slots} required, {self.count()} available{note}"] if slots > self.count() or not programs else []
        said += [
            f"external task {task!r} has {self.count(task)} of {number} programs"
            for task, number in programs.items()
            if self.count(task) < number
        ]
        return "; ".join(said)

    def count(self, external_task: str = "") -> int:
        """How many slots there are for an external task; empty: those of TaskManagers."""
        return self._counts.get(external_task, 0)

    def _surplus(self, external_task: str) -> int:
        required = self.programs_required.get(external_task, 0) if external_task else self.required
        return self.count(external_task) - required

    @property
    def free(self) -> Sequence[AllocatedSlot]:
        """The free slots, longest free first."""
        return [self._slots[allocation_id] for allocation_id in self._free_since_ms]

    @property
    def free_count(self) -> int:
        """How many slots are free."""
        return len(self._free_since_ms)

    def get(self, allocation_id: AllocationID) -> AllocatedSlot | None:
        """The slot with this id, if it is in the pool."""
        return self._slots.get(allocation_id)

    def allocations_of(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """The slots on one TaskManager."""
        return tuple(self._by_resource.get(resource_id, ()))

    def has_slot(self, resource_id: ResourceID, allocation_id: AllocationID) -> bool:
        """Whether this TaskManager's slot is here."""
        return allocation_id in self._by_resource.get(resource_id, ())

    @property
    def held(self) -> tuple[SlotsHeld, ...]:
        """How many slots there are on each TaskManager; the same object until that changes."""
        if self._held is None:
            self._held = tuple(
                SlotsHeld(resource_id, len(slots))
                for resource_id, slots in self._by_resource.items()
                if not self._slots[next(iter(slots))].external_task
            )
        return self._held

    # --- moving -------------------------------------------------------------------------------------------------------

    def set_required(self, required: int, programs: Mapping[str, int] | None = None, least: int = 0) -> bool:
        """How many slots of TaskManagers the job needs from now on, and how many programs for each external task
        (None: as before); says whether that is something else than before. `least`: with how many slots it runs."""
        check(required >= 0, "a job cannot need a negative number of slots")
        wanted = self.programs_required if programs is None else programs
        changed = (required, wanted) != (self.required, self.programs_required)
        self.required, self.programs_required, self.least = required, wanted, least
        return changed

    def offer_slots(
        self,
        resource_id: ResourceID,
        offers: Iterable[SlotOffer],
        now_ms: int,
        in_use: Collection[AllocationID] = (),
    ) -> OffersAnswered:
        """Take what is needed, and what is `in_use` by tasks of a former leader, however much that is. A slot that is
        here already is accepted again: the TaskManager may repeat itself. One that was given back is not, nor one that
        nobody has given."""
        accepted: list[AllocationID] = []
        rejected: list[AllocationID] = []
        for offer in offers:
            known = self._slots.get(offer.allocation_id)
            if known is not None:
                (accepted if known.resource_id == resource_id else rejected).append(offer.allocation_id)
            elif not self.is_given(resource_id, offer.allocation_id, offer.external_task):
                self.last_forged = ForgedSlot.after(self.last_forged, resource_id)
                rejected.append(offer.allocation_id)
            elif (
                self._surplus(offer.external_task) < 0 or offer.allocation_id in in_use
            ) and offer.allocation_id not in self._given_back:
                slot = AllocatedSlot(offer.allocation_id, resource_id, offer.slot_number, offer.external_task)
                self._slots[slot.allocation_id] = slot
                self._counts[slot.external_task] = self.count(slot.external_task) + 1
                self._free_since_ms[slot.allocation_id] = now_ms
                self._by_resource.setdefault(resource_id, {})[slot.allocation_id] = None
                self._held = None
                accepted.append(offer.allocation_id)
            else:
                rejected.append(offer.allocation_id)
        return OffersAnswered(tuple(accepted), tuple(rejected))

    def reserve(self, allocation_id: AllocationID) -> AllocatedSlot:
        """Something is assigned to a free slot."""
        check(allocation_id in self._free_since_ms, f"slot {allocation_id[:8]} is not free")
        del self._free_since_ms[allocation_id]
        return self._slots[allocation_id]

    def free_reserved(self, allocation_id: AllocationID, now_ms: int) -> None:
        """Nothing is assigned to the slot any more."""
        check(allocation_id in self._slots, f"slot {allocation_id[:8]} is not in the pool")
        check(allocation_id not in self._free_since_ms, f"slot {allocation_id[:8]} is free already")
        self._free_since_ms[allocation_id] = now_ms

    def remove(self, allocation_id: AllocationID) -> AllocatedSlot | None:
        """The slot does not exist any more, or is given back."""
        slot = self._slots.pop(allocation_id, None)
        if slot is None:
            return None
        self._held = None
        self._counts[slot.external_task] -= 1
        self._free_since_ms.pop(allocation_id, None)
        of_resource = self._by_resource[slot.resource_id]
        del of_resource[allocation_id]
        if not of_resource:
            del self._by_resource[slot.resource_id]
        return slot

    def release_task_manager(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """A TaskManager is gone: its slots leave the pool (Flink: releaseSlots)."""
        slots = (self.remove(allocation_id) for allocation_id in self.allocations_of(resource_id))
        return tuple(slot for slot in slots if slot is not None)

    def leave(self, resource_id: ResourceID) -> None:
        """The slots on this TaskManager will be given back: once they have gone, they do not come again."""
        self._take_no_more(self.allocations_of(resource_id))

    def give_back(self, allocations: Iterable[AllocationID]) -> tuple[AllocatedSlot, ...]:
        """These slots leave the pool for good, and are the TaskManager's again."""
        slots = [slot for allocation_id in allocations if (slot := self.remove(allocation_id)) is not None]
        self._take_no_more(slot.allocation_id for slot in slots)
        return tuple(slots)

    def _take_no_more(self, allocations: Iterable[AllocationID]) -> None:
        self._given_back |= dict.fromkeys(allocations)
        while len(self._given_back) > MAX_GIVEN_BACK:
            del self._given_back[next(iter(self._given_back))]

    def release_idle(self, now_ms: int) -> tuple[AllocatedSlot, ...]:
        """Give up free slots beyond the need that have been free for the idle timeout."""
        released: list[AllocationID] = []
        surplus = {task: self._surplus(task) for task in self._counts}
        for allocation_id, since_ms in list(self._free_since_ms.items()):
            if now_ms - since_ms < self._idle_timeout_ms:
                break
            task = self._slots[allocation_id].external_task
            if surplus[task] > 0:
                surplus[task] -= 1
                released.append(allocation_id)
        return self.give_back(released)

    def next_idle_release_ms(self) -> int | None:
        """When `release_idle` will have something to do, None while there is nothing beyond the need."""
        if all(self._surplus(task) <= 0 for task in self._counts):
            return None
        for allocation_id, since_ms in self._free_since_ms.items():
            if self._surplus(self._slots[allocation_id].external_task) > 0:
                return since_ms + self._idle_timeout_ms
        return None
