"""The watermark of an input with several channels, and of a task with several inputs: the minimum over those that take
part.

Decides when the combined watermark rises, and when the input as a whole is idle. An idle channel does not hold the
minimum back; one that becomes active again joins once its watermark is not behind what has been emitted. A channel that
has ended, or has said the last watermark, is like one that is idle for good: it does not end the input for those that
are idle and may come back. The last watermark goes on when all channels are over, idle ones too. The combined watermark
never goes back. Mirrors Flink's StatusWatermarkValve, which drops the last watermark of an idle channel, and passes on
that of any other while some are idle, and its CombinedWatermarkStatus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.lowest_watermark import LowestWatermark


@dataclass(slots=True)
class _Channel:
    watermark_ms: int = MIN_WATERMARK_MS
    is_active: bool = True
    is_aligned: bool = True
    """Whether its watermark counts; False while it is idle, or active again but behind."""
    has_ended: bool = False
    """Whether nothing more comes: the partition has ended, or the last watermark was said."""


class StatusWatermarkValve:
    """Combines the watermarks and statuses of the channels of one logical input."""

    def __init__(self, number_of_channels: int) -> None:
        check(number_of_channels > 0, "an input has at least one channel")
        self._channels = [_Channel() for _ in range(number_of_channels)]
        self._aligned = LowestWatermark()
        for channel_index in range(number_of_channels):
            self._aligned.set(channel_index, MIN_WATERMARK_MS)
        self._last_watermark_ms = MIN_WATERMARK_MS
        self._status = WatermarkStatus.ACTIVE
        self._has_last = False
        """Whether a channel has said the last watermark."""

    def input_watermark(self, channel_index: int, watermark: Watermark) -> list[Watermark | WatermarkStatus]:
        """A channel's watermark. One that is not higher than its last, or of an idle channel, is ignored, unless it is
        the last of all."""
        if watermark.timestamp_ms == MAX_WATERMARK_MS:
            self._has_last = True
            return self.channel_ended(channel_index)
        channel = self._channels[channel_index]
        if not channel.is_active or channel.has_ended or watermark.timestamp_ms <= channel.watermark_ms:
            return []
        channel.watermark_ms = watermark.timestamp_ms
        if not channel.is_aligned and channel.watermark_ms >= self._last_watermark_ms:
            channel.is_aligned = True
        if channel.is_aligned:
            self._aligned.set(channel_index, channel.watermark_ms)
        return self._advance()

    def input_status(self, channel_index: int, status: WatermarkStatus) -> list[Watermark | WatermarkStatus]:
        """A channel became idle, or active again."""
        channel = self._channels[channel_index]
        if channel.has_ended or channel.is_active is (status is WatermarkStatus.ACTIVE):
            return []
        if status is WatermarkStatus.IDLE:
            return self._leave(channel_index)
        channel.is_active = True
        channel.is_aligned = channel.watermark_ms >= self._last_watermark_ms
        if channel.is_aligned:
            self._aligned.set(channel_index, channel.watermark_ms)
        if self._status is WatermarkStatus.IDLE:
            self._status = WatermarkStatus.ACTIVE
            return [WatermarkStatus.ACTIVE]
        return self._advance()

    def channel_ended(self, channel_index: int) -> list[Watermark | WatermarkStatus]:
        """Nothing more comes from this channel: it holds nobody back."""
        channel = self._channels[channel_index]
        if channel.has_ended:
            return []
        channel.has_ended = True
        if all(other.has_ended for other in self._channels):
            return [Watermark(MAX_WATERMARK_MS)] if self._has_last else []
        if not channel.is_active:
            return []
        return self._leave(channel_index)

    def _leave(self, channel_index: int) -> list[Watermark | WatermarkStatus]:
        """The channel takes part no longer."""
        channel = self._channels[channel_index]
        self._aligned.remove(channel_index)
        channel.is_active = channel.is_aligned = False
        if any(other.is_active for other in self._channels):
            return self._advance()
        # All are idle: first everything that any of them had reached, because nobody waits any more.
        effects: list[Watermark | WatermarkStatus] = []
        highest_ms = max(other.watermark_ms for other in self._channels)
        if highest_ms > self._last_watermark_ms:
            self._last_watermark_ms = highest_ms
            effects.append(Watermark(highest_ms))
        self._status = WatermarkStatus.IDLE
        return [*effects, WatermarkStatus.IDLE]

    def _advance(self) -> list[Watermark | WatermarkStatus]:
        lowest = self._aligned.lowest
        if lowest is None or lowest[0] <= self._last_watermark_ms:
            return []
        self._last_watermark_ms = lowest[0]
        return [Watermark(self._last_watermark_ms)]


@dataclass(slots=True, eq=False)
class _Input:
    valve: StatusWatermarkValve
    watermark_ms: int = MIN_WATERMARK_MS
    takes_part: bool = True
    is_over: bool = False
    """Whether it has said the last watermark."""


class InputValves:
    """Combines the inputs of a join or of a function of two streams, with a valve for the channels of each. Unlike a
    channel, an input that becomes active again holds the watermark back at once, so that its rows are not late only
    because it was silent."""

    def __init__(self, input_of_channel: Sequence[int]) -> None:
        """`input_of_channel`: which input each channel of the task belongs to."""
        valves = {index: StatusWatermarkValve(channels) for index, channels in Counter(input_of_channel).items()}
        self._inputs = {index: _Input(valve) for index, valve in valves.items()}
        positions = {index: count() for index in self._inputs}
        #: The input of each channel, and its position there.
        self._places = [(self._inputs[index], next(positions[index])) for index in input_of_channel]
        self._last_watermark_ms = MIN_WATERMARK_MS
        self._status = WatermarkStatus.ACTIVE

    def input_watermark(self, channel_index: int, watermark: Watermark) -> list[Watermark | WatermarkStatus]:
        """What all inputs together say to a channel's watermark, which counts in its input first."""
        of_input, position = self._places[channel_index]
        return self._combined(of_input, of_input.valve.input_watermark(position, watermark))

    def input_status(self, channel_index: int, status: WatermarkStatus) -> list[Watermark | WatermarkStatus]:
        """What all inputs together say when a channel becomes idle, or active again."""
        of_input, position = self._places[channel_index]
        return self._combined(of_input, of_input.valve.input_status(position, status))

    def channel_ended(self, channel_index: int) -> list[Watermark | WatermarkStatus]:
        """What all inputs together say when nothing more comes from this channel."""
        of_input, position = self._places[channel_index]
        return self._combined(of_input, of_input.valve.channel_ended(position))

    def _combined(
        self, of_input: _Input, outputs: Sequence[Watermark | WatermarkStatus]
    ) -> list[Watermark | WatermarkStatus]:
        """What an input has said, one after the other."""
        effects: list[Watermark | WatermarkStatus] = []
        for output in outputs:
            if isinstance(output, WatermarkStatus):
                of_input.takes_part = output is WatermarkStatus.ACTIVE
            elif output.timestamp_ms == MAX_WATERMARK_MS:
                of_input.takes_part, of_input.is_over = False, True
            else:
                of_input.watermark_ms = output.timestamp_ms
            effects += self._advance()
        return effects

    def _advance(self) -> list[Watermark | WatermarkStatus]:
        inputs = self._inputs.values()
        if all(each.is_over for each in inputs):
            return [Watermark(MAX_WATERMARK_MS)]
        taking_part = [each.watermark_ms for each in inputs if each.takes_part]
        # When all are idle nobody waits any more for what any of them had reached.
        reached_ms = min(taking_part) if taking_part else max(each.watermark_ms for each in inputs)
        risen = [Watermark(reached_ms)] if reached_ms > self._last_watermark_ms else []
        self._last_watermark_ms = max(self._last_watermark_ms, reached_ms)
        status = WatermarkStatus.ACTIVE if taking_part else WatermarkStatus.IDLE
        changed = [status] if status is not self._status else []
        self._status = status
        return [*changed, *risen] if taking_part else [*risen, *changed]
