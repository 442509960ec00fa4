"""Functions over the partitions of an ordinary PySpark job that go on in the middle after a failure.

`resumable` is the door; what a partition does is in `snapline.embed.partition_run`, where its progress lies is in
`snapline.embed.partition_log`. Partitions exchange nothing, so any set of their own checkpoints is a consistent cut: no
coordinator takes part (decision 131).
"""

from snapline.embed.partition_log import PartitionProgress, ResumableError
from snapline.embed.resumable_functions import Resumable, ResumableFunction, resumable

__all__ = ["PartitionProgress", "Resumable", "ResumableError", "ResumableFunction", "resumable"]
