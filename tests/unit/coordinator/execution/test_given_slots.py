"""GivenSlots: which slots a coordinator of this cluster has given, and which somebody has made up."""

from __future__ import annotations

import itertools
from functools import partial

from snapline.coordinator.execution.given_slots import ForgedSlot, GivenSlots
from snapline.coordinator.execution.slot_pool import OffersAnswered, SlotPool
from snapline.dataflow.ids import AllocationID, JobID, ResourceID
from snapline.dataflow.wire.messages import SlotOffer
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.rpc.security import Security

JOB, OTHER_JOB = JobID("job"), JobID("other-job")
TM, STRANGER = ResourceID("tm"), ResourceID("stranger")


def given_by(token: str) -> GivenSlots:
    numbers = itertools.count()
    return GivenSlots(lambda: f"a{next(numbers)}", lambda: Security(token).slot_signer)


def offer(allocation_id: str) -> SlotOffer:
    return SlotOffer(AllocationID(allocation_id), 0)


def test_what_is_given_is_given_to_one_job_on_one_task_manager() -> None:
    """Another coordinator of the cluster knows; as another's, for another job, or as a program's place it is none."""
    allocation = given_by("secret").give(JOB, TM)
    next_leader = given_by("secret")

    assert next_leader.is_given(JOB, TM, allocation)
    assert not next_leader.is_given(OTHER_JOB, TM, allocation)
    assert not next_leader.is_given(JOB, STRANGER, allocation)
    assert not next_leader.is_given(JOB, TM, allocation, "scores")
    assert not given_by("another").is_given(JOB, TM, allocation)


def test_what_is_made_up_is_not_given() -> None:
    """Whatever it looks like: of another spelling, one slot was as many as there are places."""
    given = given_by("secret")
    allocation = given.give(JOB, TM)
    changed = ("0" if allocation[-1] != "0" else "1") + allocation[1:]

    spellings = (
        allocation.upper(),
        allocation[:-64] + allocation[-64:].upper(),
        allocation[:-64] + " " + allocation[-64:],
    )
    for made_up in ("", "made-up", "a0", "ä" * 80, changed, allocation[:-1], allocation + "0", *spellings):
        assert not given.is_given(JOB, TM, AllocationID(made_up)), made_up


def test_the_place_of_a_program_is_for_one_external_task() -> None:
    """A name that runs on into the next part is another name."""
    given = given_by("secret")
    place = given.give(JOB, TM, "scores")

    assert given.is_given(JOB, TM, place, "scores")
    assert not given.is_given(JOB, TM, place) and not given.is_given(JOB, TM, place, "score")
    assert not given.is_given(JobID("jo"), ResourceID("btm"), place, "scores")


def test_the_secret_is_changed_in_two_steps() -> None:
    """While both are set, what either gave is given."""
    old, both, new = given_by("old"), given_by("new,old"), given_by("new")
    before, after = old.give(JOB, TM), both.give(JOB, TM)

    assert both.is_given(JOB, TM, before) and new.is_given(JOB, TM, after)
    assert not new.is_given(JOB, TM, before)


def test_a_credential_gives_nothing() -> None:
    """A function has its TaskManager's credential, and no key of slots is in it."""
    credential = sign_credential("secret", Identity(Role.TASK_MANAGER, name=TM))

    assert not given_by(credential).is_given(JOB, TM, AllocationID("made-up"))
    assert not given_by("secret").is_given(JOB, TM, given_by(credential).give(JOB, TM))


def test_without_a_secret_each_offer_is_believed() -> None:
    """Nobody is asked who he is in such a cluster."""
    assert given_by("").is_given(JOB, STRANGER, AllocationID("made-up"))


def test_a_pool_takes_no_slot_that_nobody_gave() -> None:
    """It answers as for any slot that it does not need, and remembers who it was for the log."""
    given = given_by("secret")
    pool = SlotPool(100, partial(given.is_given, JOB))
    pool.set_required(2)
    allocation = given.give(JOB, TM)
    made_up, stolen = offer("made-up"), offer(allocation)

    assert pool.offer_slots(STRANGER, [made_up, stolen], 0) == OffersAnswered((), (AllocationID("made-up"), allocation))
    assert pool.last_forged == ForgedSlot(2, STRANGER)
    assert pool.offer_slots(TM, [stolen], 0) == OffersAnswered((allocation,), ())
