"""Positions that are published with their checkpoint. What Flink asserts of them is in tests/conformance."""

from __future__ import annotations

import pytest

from snapline.connectors.kafka.offsets import CheckpointedOffsets


def test_a_partition_never_goes_back() -> None:
    """A later checkpoint that was taken at an earlier position (after a reset of the source) publishes nothing of
    it."""
    offsets = CheckpointedOffsets()
    offsets.update({"p": 9, "q": 1})
    offsets.snapshot(1)
    offsets.update({"p": 5, "q": 2})
    offsets.snapshot(2)

    assert offsets.notify_checkpoint_complete(1) == {"p": 9, "q": 1}
    assert offsets.notify_checkpoint_complete(2) == {"q": 2}


def test_an_aborted_checkpoint_publishes_nothing() -> None:
    """The next one covers it."""
    offsets = CheckpointedOffsets({"p": 1})
    offsets.snapshot(1)
    offsets.notify_checkpoint_aborted(1)

    assert offsets.pending_checkpoints == ()
    assert offsets.notify_checkpoint_complete(1) is None
    assert offsets.current == {"p": 1}


def test_the_number_of_pending_checkpoints_is_bounded() -> None:
    """The oldest are forgotten first."""
    offsets = CheckpointedOffsets({"p": 1}, max_pending=2)
    for checkpoint_id in (1, 2, 3):
        offsets.snapshot(checkpoint_id)

    assert offsets.pending_checkpoints == (2, 3)
    with pytest.raises(ValueError, match="max_pending must be positive"):
        CheckpointedOffsets(max_pending=0)


def test_after_the_end_everything_is_ignored() -> None:
    """Snapshots and notifications may still come."""
    offsets = CheckpointedOffsets({"p": 1})
    offsets.snapshot(1)
    offsets.stop()

    assert not offsets.is_running
    assert offsets.snapshot(2) is None
    assert offsets.notify_checkpoint_complete(1) is None
