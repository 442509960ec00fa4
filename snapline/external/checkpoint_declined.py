"""How a program outside says that it cannot take part in a checkpoint."""

from __future__ import annotations


class CheckpointDeclined(Exception):
    """Raised by `ExternalTask.snapshot`: the task cannot take part in this checkpoint, which is aborted for all.

    >>> class Busy(sl_external.ExternalTask):
    ...     def snapshot(self, checkpoint_id):
    ...         raise sl_external.CheckpointDeclined("an upload is under way")
    """
