"""Errors that a user can act on. Their text is one line that names the culprit and the way out.

Whatever reaches a user as another exception is a defect of ours. Commands print the text, not a traceback.
"""

from __future__ import annotations


class SnaplineError(Exception):
    """Base of all errors meant for users.

    >>> try:
    ...     env.from_source(sl.ParquetSource("nowhere.parquet"), uid="flights")
    ... except sl.SnaplineError as error:
    ...     print(type(error).__name__)
    ConnectorError
    """


class JobDefinitionError(SnaplineError):
    """The job cannot run as written: unknown column, missing uid, function that cannot be pickled, wrong parallelism.

    >>> orders.key_by("shopp")
    Traceback (most recent call last):
    snapline.dataflow.errors.JobDefinitionError: key_by: there is no column 'shopp'; did you mean 'shop'? Columns: shop, customer, cents, coupon, at
    """


class InvalidArgument(JobDefinitionError, ValueError, TypeError):
    """What a program gives to a window, trigger, aggregate, join, watermark strategy or operator cannot be what it is.

    >>> sl.TumblingEventTimeWindows(0)
    Traceback (most recent call last):
    snapline.dataflow.errors.InvalidArgument: a window's size must be positive, got 0 ms
    """


class ConnectorError(SnaplineError):
    """An input cannot be read or an output not be written.

    >>> sl.ParquetSource([])
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: ParquetSource: no path given
    """


class StateError(SnaplineError):
    """State cannot be declared, used or restored as asked.

    >>> sl.ValueStateDescriptor("total")
    Traceback (most recent call last):
    snapline.dataflow.errors.StateError: ...
    """
