"""How far the channels of an edge are in event time, and when one that is ahead waits for the one that is behind.

What a channel is ahead of the others lies in windows and joins until they have come there, and is in every snapshot. So
a channel that is ahead by more than its operator finds tolerable is not read for a moment, although the one that is
behind has nothing to read: its producer waits meanwhile, and leaves the processor to others. Decides when that is worth
it: as long as the one behind catches up so fast that it is there within ten looks. Where it does not, because its rows
come slowly or are of another time altogether, twice the lead is tolerated from then on, until the lead has become less
by itself. All waits together take a fifth of the time at most, so that a source which is slower for good does not set
the pace of the others. Channels that have ended, are idle, or have said no watermark yet, are never waited for. Pure:
it knows neither rows nor threads. Flink's watermark alignment holds sources back for good where the user asks for it;
this holds channels back for half a second at most, and needs no asking.
"""

from __future__ import annotations

from collections.abc import Collection

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.taskmanager.network.channels.lowest_watermark import LowestWatermark

LOOK_MS = 50
"""A look is so long after the one before it."""
LOOKS = 10
"""A wait has so many looks at most: at each, the one that is behind has to have made good this part of what it was
behind."""


MOST_MS = LOOKS * LOOK_MS
"""So much may be waited without a pause, if nobody has waited for a while."""
EARNING = 4
"""A millisecond of waiting is earned by so many without."""


class LeadLimit:
    """The watermarks of the channels of one edge. Not thread-safe."""

    def __init__(self, channels: int, tolerated_ms: int | None) -> None:
        """`tolerated_ms`: a channel may be ahead by so much; None: by any time."""
        self.reached_ms = [MIN_WATERMARK_MS] * channels
        """The last watermark of each channel."""
        self._least_ms = tolerated_ms
        self._tolerated_ms = tolerated_ms or 0
        self._waited_for = LowestWatermark()
        """The channels that have said a watermark, and are neither idle nor over."""
        self._left = [False] * channels
        """Whether a channel is idle or has ended."""
        self._furthest_ms = MIN_WATERMARK_MS
        """The highest watermark of all."""
        self._look_ms: int | None = None
        """When the next look at the wait is due; None: nobody waits."""
        self._left_ms = float(MOST_MS)
        """So much may be waited still."""
        self._asked_ms: int | None = None
        """When the gate asked last."""
        self._wanted_lead_ms = 0
        """The greatest lead with which the wait goes on at the next look."""
        self._step_ms = 0

    # --- what the channels say ----------------------------------------------------------------------------------------

    def rises(self, channel: int, watermark_ms: int) -> None:
        """The channel has come so far."""
        self.reached_ms[channel] = watermark_ms
        if self._least_ms is None:
            return
        if watermark_ms == MAX_WATERMARK_MS:
            self.leaves(channel)
        elif not self._left[channel]:
            self._furthest_ms = max(self._furthest_ms, watermark_ms)
            self._waited_for.set(channel, watermark_ms)
            self._forget(self._least_ms)

    def leaves(self, channel: int) -> None:
        """Nobody waits for this channel: it is idle, or has ended."""
        self._left[channel] = True
        self._waited_for.remove(channel)

    def returns(self, channel: int) -> None:
        """The channel is not idle any more."""
        self._left[channel] = False
        if self.reached_ms[channel] > MIN_WATERMARK_MS:
            self._waited_for.set(channel, self.reached_ms[channel])

    def _forget(self, least_ms: int) -> None:
        """What was tolerated once is not tolerated any more where the lead has become less."""
        lowest = self._waited_for.lowest
        if lowest is not None:
            self._tolerated_ms = max(least_ms, min(self._tolerated_ms, 2 * (self._furthest_ms - lowest[0])))

    # --- what the gate asks -------------------------------------------------------------------------------------------

    def wait_until(self, first: Collection[int], line: Collection[int], now_ms: int) -> int | None:
        """Until when no channel is read; None: they are read now. `line`: all that have something to read. `first`:
        some of them, of which the next would be."""
        passed_ms = 0 if self._asked_ms is None else max(0, now_ms - self._asked_ms)
        self._asked_ms = now_ms
        if self._look_ms is None:
            self._left_ms = min(MOST_MS, self._left_ms + passed_ms / EARNING)
        else:
            self._left_ms -= passed_ms
        may_wait = self._left_ms >= (LOOK_MS if self._look_ms is None else 0)
        self._look_ms = self._next_look_ms(first, line, now_ms) if may_wait else None
        return self._look_ms

    def _next_look_ms(self, first: Collection[int], line: Collection[int], now_ms: int) -> int | None:
        lowest = self._waited_for.lowest
        if lowest is None or lowest[1] in line or any(self._left[channel] for channel in first):
            return None
        lead_ms = min(self.reached_ms[channel] for channel in first) - lowest[0]
        least_ms = self._least_ms or 0
        if lead_ms <= (self._tolerated_ms if self._look_ms is None else least_ms):
            return None
        if self._look_ms is None:
            self._step_ms = max(1, (lead_ms - least_ms) // LOOKS)
        elif now_ms < self._look_ms:
            return self._look_ms
        elif lead_ms > self._wanted_lead_ms:
            self._tolerated_ms = 2 * lead_ms
            return None
        self._wanted_lead_ms = lead_ms - self._step_ms
        return now_ms + LOOK_MS

    def go_on(self) -> None:
        """End the wait, if there is one."""
        self._look_ms = None
