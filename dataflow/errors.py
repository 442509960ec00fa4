"""Errors that a user can act on. Their text is one line that names the culprit and the way out.

Whatever reaches a user as another exception is a defect of ours. Commands print the text, not a traceback.
"""

from __future__ import annotations


class SnaplineError(Exception):
    """Base of all errors meant for users."""


class JobDefinitionError(SnaplineError):
    """The job cannot run as written: unknown column, missing uid, function that cannot be pickled, wrong parallelism."""


class InvalidArgument(JobDefinitionError, ValueError, TypeError):
    """A window, trigger, aggregate or watermark strategy cannot be what it is declared as."""


class ConnectorError(SnaplineError):
    """An input cannot be read or an output not be written."""
