"""A barrier handler whose calls are written down, as text, in order: what it asks of the gates and tells its listener.

Channels are called C0, C1, ... by their index. Milliseconds and bytes of a trigger stand behind it when they are not 0.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeVar

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener, CheckpointableInput, InputState
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

HandlerT = TypeVar("HandlerT", bound=CheckpointBarrierHandler, covariant=True)


class MakeHandler(Protocol[HandlerT]):
    """One of the functions of `handler_factory`, or the class of a handler, with its further arguments."""

    def __call__(self, inputs: CheckpointableInput, listener: BarrierListener) -> HandlerT:
        """Make a handler that calls these two."""
        ...


class RecordedCalls:
    """The gates and the listener of one handler (CheckpointableInput, BarrierListener)."""

    def __init__(self, *channels: InputChannelInfo) -> None:
        self.channel_infos = channels
        self.calls: list[str] = []
        self.details: list[str] = []
        """What was said in words, of each abort and decline."""
        self.triggered_at_ms: list[int] = []
        """When the checkpoint was triggered, of each abort and decline."""
        self.timers: dict[Hashable, int] = {}

    def block_consumption(self, channel: InputChannelInfo) -> None:
        self.calls.append(f"block C{channel.channel_index}")

    def resume_consumption(self, channel: InputChannelInfo) -> None:
        self.calls.append(f"resume C{channel.channel_index}")

    def hold_consumption(self, channel: InputChannelInfo) -> None:
        self.calls.append(f"hold C{channel.channel_index}")

    def release_consumption(self, channel: InputChannelInfo) -> None:
        self.calls.append(f"release C{channel.channel_index}")

    def convert_to_priority(self, channel: InputChannelInfo, sequence_number: int) -> None:
        self.calls.append(f"prioritize number {sequence_number} of C{channel.channel_index}")

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        self.calls.append(f"remember for {barrier.checkpoint_id}")

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> InputState:
        self.calls.append(f"stop remembering for {checkpoint_id}")
        return {}

    def trigger_checkpoint_on_barrier(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, now_ms: int
    ) -> None:
        shown = [
            f"aligned in {metrics.alignment_duration_ms} ms" if metrics.alignment_duration_ms else "",
            f"{metrics.checkpoint_start_delay_ms} ms late" if metrics.checkpoint_start_delay_ms else "",
            f"{metrics.bytes_processed_during_alignment} bytes" if metrics.bytes_processed_during_alignment else "",
        ]
        assert metrics.unaligned is barrier.options.is_unaligned
        kind = "unaligned" if metrics.unaligned else "aligned"
        self.calls.append(", ".join(filter(None, (f"trigger {barrier.checkpoint_id} {kind}", *shown))))

    def all_barriers_received(
        self, checkpoint_id: CheckpointID, alignment_duration_ms: int, bytes_processed_during_alignment: int
    ) -> None:
        measured = f"{alignment_duration_ms} ms, {bytes_processed_during_alignment} bytes"
        self.calls.append(f"all barriers of {checkpoint_id}: {measured}")

    def finish_input(self, checkpoint_id: CheckpointID, batches: InputState) -> None:
        self.calls.append(f"inputs of {checkpoint_id} are known")

    def abort_checkpoint_on_barrier(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        timestamp_ms: int = 0,
    ) -> None:
        self.details.append(detail)
        self.triggered_at_ms.append(timestamp_ms)
        self.calls.append(f"abort {checkpoint_id}: {reason.name if reason else 'the JobMaster knows'}")

    def decline_overtaken_checkpoint(self, checkpoint_id: CheckpointID, detail: str, timestamp_ms: int) -> None:
        self.details.append(detail)
        self.triggered_at_ms.append(timestamp_ms)
        self.calls.append(f"decline {checkpoint_id}")

    def inputs_recovered(self, *, is_last: bool) -> None:
        self.calls.append(f"recovered{', the last' if is_last else ''}")

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        self.timers[key] = at_ms
        self.calls.append(f"timer at {at_ms} ms")

    def cancel_timer(self, key: Hashable) -> None:
        self.timers.pop(key, None)
        self.calls.append("no timer")

    def take_calls(self) -> list[str]:
        """What was called since the last look."""
        calls, self.calls = self.calls, []
        return calls


class RecordedHandler(RecordedCalls):
    """A handler; each event answers with the calls that it led to."""

    def __init__(self, make: MakeHandler[CheckpointBarrierHandler], *channels: InputChannelInfo) -> None:
        super().__init__(*channels)
        self.handler = make(self, self)

    def process_barrier(self, barrier: CheckpointBarrier, channel: InputChannelInfo, now_ms: int) -> list[str]:
        self.handler.process_barrier(barrier, channel, now_ms)
        return self.take_calls()

    def process_barrier_announcement(
        self, barrier: CheckpointBarrier, sequence_number: int, channel: InputChannelInfo, now_ms: int
    ) -> list[str]:
        self.handler.process_barrier_announcement(barrier, sequence_number, channel, now_ms)
        return self.take_calls()

    def process_cancellation_barrier(
        self, marker: CancelCheckpointMarker, channel: InputChannelInfo, now_ms: int
    ) -> list[str]:
        self.handler.process_cancellation_barrier(marker, channel, now_ms)
        return self.take_calls()

    def process_end_of_partition(self, channel: InputChannelInfo, now_ms: int) -> list[str]:
        self.handler.process_end_of_partition(channel, now_ms)
        return self.take_calls()

    def process_abort_notification(self, checkpoint_id: CheckpointID, now_ms: int) -> list[str]:
        self.handler.process_abort_notification(checkpoint_id, now_ms)
        return self.take_calls()

    def timer_fired(self, key: Hashable, now_ms: int) -> list[str]:
        self.handler.timer_fired(key, now_ms)
        return self.take_calls()

    def add_processed_bytes(self, size_bytes: int) -> None:
        self.handler.add_processed_bytes(size_bytes)
