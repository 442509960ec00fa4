"""The figures of several queues as those of one: what waits adds up, and the fullest queue says how full they are.

Back-pressure comes from one full queue however empty the others are, so a mean would hide it. Mirrors the gauges of
Flink's NettyShuffleMetricFactory, whose usage is that of a pool that all channels share.
"""

from __future__ import annotations

from collections.abc import Sequence

from snapline.dataflow.wire.messages import QueueFigures


def together(queues: Sequence[QueueFigures]) -> QueueFigures:
    """The figures of all these queues.

    >>> together([QueueFigures(1, 100, 0.25, 3), QueueFigures(4, 400, 1.0, 0)])
    QueueFigures(batches=5, size_bytes=500, usage=1.0, credits=3)
    """
    return QueueFigures(
        sum(queue.batches for queue in queues),
        sum(queue.size_bytes for queue in queues),
        max((queue.usage for queue in queues), default=0.0),
        sum(queue.credits for queue in queues),
    )
