"""Sources of an alignment group keep step: none reads on from where it is further ahead than the group allows.

Knows the true positions of all sources, and when the JobMaster has answered whom; what it answered is the product's
affair. A source that was answered may go as far ahead of the slowest as the drift says, counted at that instant: of
those that had reported to the same JobMaster until then and that it runs. Before its first answer it reads only what
gives it a watermark. An attempt that nobody has opened is one that a stranger has made up, which is answered while a
JobMaster waits for what runs. A pause that never ends is found by the end that the job does not come to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from snapline.dataflow.api.watermarks import WatermarkAlignmentParams
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import AlignWatermarks
from snapline.runtime.cores.connections import Send
from snapline.testing.simulated.world import Violation


class AlignmentOracle:
    """Of one job (SourceWatch)."""

    def __init__(
        self,
        params: WatermarkAlignmentParams,
        owns: Callable[[str], bool],
        is_live: Callable[[str, ExecutionAttemptID], bool],
    ) -> None:
        """`owns`: whether a job id is of this job. `is_live`: whether the JobMaster of this name runs the attempt."""
        self._params = params
        self._owns = owns
        self._is_live = is_live
        self._reached: dict[str, dict[str, int]] = {}
        """By attempt: its unfinished splits."""
        self._reported: dict[str, dict[ExecutionAttemptID, None]] = {}
        """By session of the JobMaster."""
        self._allowed: dict[str, int] = {}

    # --- sources ------------------------------------------------------------------------------------------------------

    def opened(self, attempt: str, splits: Mapping[str, int | None]) -> None:
        """It begins."""
        self._reached[attempt] = {split_id: _or_lowest(watermark_ms) for split_id, watermark_ms in splits.items()}

    def reads(self, attempt: str, split_id: str) -> None:
        """Raises Violation."""
        reached_ms, allowed_ms = self._reached[attempt][split_id], self._allowed.get(attempt, MIN_WATERMARK_MS)
        if reached_ms > allowed_ms:
            raise Violation(f"source {attempt} reads on in {split_id} at {reached_ms}, and may not beyond {allowed_ms}")

    def has_read(self, attempt: str, split_id: str, watermark_ms: int | None) -> None:
        """It is further, or at the end of the split."""
        splits = self._reached[attempt]
        if watermark_ms is None:
            del splits[split_id]
        else:
            splits[split_id] = watermark_ms

    # --- JobMasters ---------------------------------------------------------------------------------------------------

    def observe(self, name: str, effects: list[Any]) -> None:
        """What a core wants."""
        for effect in effects:
            if type(effect) is Send and type(effect.envelope.message) is AlignWatermarks:
                message = effect.envelope.message
                if self._owns(message.job_id) and str(message.attempt_id) in self._reached:
                    self._answered(name, effect.envelope.leader_session_id, message.attempt_id)

    def _answered(self, name: str, session: str, attempt_id: ExecutionAttemptID) -> None:
        reported = self._reported.setdefault(session, {})
        reported[attempt_id] = None
        group = [each for each in reported if each == attempt_id or self._is_live(name, each)]
        least_ms = min(self._of_source(str(each)) for each in group)
        attempt, allowed_ms = str(attempt_id), min(least_ms + self._params.max_drift_ms, MAX_WATERMARK_MS)
        self._allowed[attempt] = max(self._allowed.get(attempt, MIN_WATERMARK_MS), allowed_ms)

    def _of_source(self, attempt: str) -> int:
        return min(self._reached[attempt].values(), default=MAX_WATERMARK_MS)


def _or_lowest(watermark_ms: int | None) -> int:
    return MIN_WATERMARK_MS if watermark_ms is None else watermark_ms
