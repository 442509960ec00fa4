"""The task's input: gates with a barrier handler on them.

Decides nothing itself: it shows what concerns checkpoints to the handler, and hands to the task the elements that
operators see. After a restore it lets nothing new through before all data in flight that was restored, for any channel,
has been polled: otherwise new rows of a key could come before restored ones, which may be on another channel since the
job was rescaled. For the same reason it tells those behind it (`BarrierListener.inputs_recovered`) what is made of
restored data, and what is new. Mirrors Flink's CheckpointedInputGate with its UpstreamRecoveryTracker.
"""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.columnar.batch_bytes import BatchBytes
from snapline.dataflow.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfChannelState,
    EndOfPartition,
    EventAnnouncement,
)
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo
from snapline.taskmanager.network.channels.input_gate import BufferOrEvent, UnionInputGate


class CheckpointedInputGate:
    """Gates and handler of one task. All calls from the task's thread."""

    def __init__(self, gate: UnionInputGate, handler: CheckpointBarrierHandler, listener: BarrierListener) -> None:
        self.gate = gate
        self.handler = handler
        self._listener = listener
        self.batch_bytes = 0
        """Size of the last batch that was taken."""
        self._bytes = BatchBytes()
        #: Channels that wait at an EndOfChannelState for the others, and whether it is their last one.
        self._recovered: dict[InputChannelInfo, bool] = {}

    def process(self, polled: BufferOrEvent, now_ms: int) -> BufferOrEvent | None:
        """Take one element that was polled from the gates. Returns what the operators see of it; None when it concerned
        checkpoints only, and is done with. Raises OperatorFailure for a snapshot that an operator does not manage."""
        element = polled.element
        if isinstance(element, pa.RecordBatch):
            self.batch_bytes = self._bytes.of(element)
            self.handler.add_processed_bytes(self.batch_bytes)
            return polled
        match element:
            case CheckpointBarrier():
                self.handler.process_barrier(element, polled.channel, now_ms)
            case EventAnnouncement(barrier, sequence_number):
                self.handler.process_barrier_announcement(barrier, sequence_number, polled.channel, now_ms)
            case CancelCheckpointMarker():
                self.handler.process_cancellation_barrier(element, polled.channel, now_ms)
            case EndOfChannelState(is_last):
                self._recovered[polled.channel] = is_last
                self._resume_if_recovered()
            case EndOfPartition():
                self._resume_if_recovered()
                self.handler.process_end_of_partition(polled.channel, now_ms)
                return polled
            case _:
                return polled
        return None

    def _resume_if_recovered(self) -> None:
        """Once every channel has delivered its restored data, or ended, those go on that have more of it; when none
        has, all."""
        if not self._recovered or any(channel not in self._recovered for channel in self.gate.open_channels):
            return
        is_last = all(self._recovered.values())
        for channel in [channel for channel, is_its_last in self._recovered.items() if is_last or not is_its_last]:
            del self._recovered[channel]
            self.gate.resume_consumption(channel)
        self._listener.inputs_recovered(is_last=is_last)
