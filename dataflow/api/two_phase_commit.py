"""A sink of the user's own with transactions in an outside system: what is written becomes visible once, or never.

Decides when a transaction is begun, pre-committed, committed and aborted, and what of it lies in the snapshot: one
transaction is open at any time; a snapshot pre-commits it and begins the next; the completion of checkpoint n commits
all those that were pre-committed at or before n, oldest first; a restored function commits again what the snapshot
holds as pre-committed, and aborts what it holds as open. It does not know how the outside system does any of it: that
is the subclass. Mirrors Flink's TwoPhaseCommitSinkFunction; a value is a whole batch, unless the sink was added
row-wise.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from snapline.dataflow.api.function_contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorListState,
)
from snapline.dataflow.api.functions import Function

_LOG = logging.getLogger("snapline.two_phase_commit")

STATE_NAME = "two-phase-commit-state"


class SinkFunction(Function, ABC):
    """Consumes what a stream brings (Flink: SinkFunction, RichSinkFunction). May be a CheckpointedFunction and a
    CheckpointListener as well.

    >>> class Printed(sl.SinkFunction):
    ...     def invoke(self, value):
    ...         print(value.num_rows, "rows")
    ...     def finish(self):
    ...         print("no more")
    >>> Printed().invoke(pa.RecordBatch.from_pydict({"n": [1, 2]}))
    2 rows
    """

    @abstractmethod
    def invoke(self, value: Any) -> None:
        """One batch, or one row when the sink was added row-wise."""

    def finish(self) -> None:
        """The input has ended: flush what is buffered. A last checkpoint follows, if checkpoints are taken."""


@dataclass(frozen=True, slots=True)
class TransactionHolder:
    """A transaction and when it was begun. `handle` is what `begin_transaction` returned."""

    handle: Any
    started_ms: int

    def elapsed_ms(self, now_ms: int) -> int:
        """How long it has been open."""
        return now_ms - self.started_ms


class TwoPhaseCommitSinkFunction(SinkFunction):
    """Subclass and implement `begin_transaction`, `invoke_transaction`, `pre_commit`, `commit` and `abort`.

    A transaction handle must be JSON-like: it lies in snapshots, and another process commits by it. After `pre_commit`
    the outside system must be able to commit even if this process is gone; `commit` must be idempotent, because a crash
    right after it repeats it.

    >>> class Files(sl.TwoPhaseCommitSinkFunction):
    ...     staged, visible = {}, {}
    ...     def begin_transaction(self):
    ...         name = f"t{len(self.staged)}"
    ...         self.staged[name] = []
    ...         return name
    ...     def invoke_transaction(self, transaction, value):
    ...         self.staged[transaction] += value.to_pylist()
    ...     def pre_commit(self, transaction):
    ...         print("flushed", transaction)
    ...     def commit(self, transaction):
    ...         self.visible[transaction] = self.staged[transaction]
    ...     def abort(self, transaction):
    ...         self.staged.pop(transaction, None)
    ...     def recover_and_commit(self, transaction):
    ...         self.commit(transaction)
    ...     def recover_and_abort(self, transaction):
    ...         self.abort(transaction)
    ...     def initialize_user_context(self):
    ...         return {"of": "nobody"}
    ...     def finish_recovering_context(self, handled):
    ...         print(self.user_context, handled)
    ...     def finish_processing(self, transaction):
    ...         pass
    ...     def warn(self, message):
    ...         print(message)
    >>> _ = orders.add_sink(Files(transaction_timeout_ms=60_000), uid="files")
    >>> Files().current_transaction, Files().pending_transactions
    (None, ())
    """

    # What holds of a subclass whose own __init__ does not call this one.
    transaction_timeout_ms: int | None = None
    ignore_failures_after_transaction_timeout: bool = False
    transaction_timeout_warning_ratio: float | None = None
    _clock_ms: Callable[[], int] | None = None
    _current: TransactionHolder | None = None
    _user_context: Any = None
    _finished = False
    _state: OperatorListState | None = None

    def __init__(
        self,
        *,
        transaction_timeout_ms: int | None = None,
        ignore_failures_after_transaction_timeout: bool = False,
        transaction_timeout_warning_ratio: float | None = None,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """`transaction_timeout_ms` is how long the outside system keeps a transaction that nobody commits. With
        `ignore_failures_after_transaction_timeout` a recovery goes on (and loses the transaction) when it comes too
        late."""
        if transaction_timeout_ms is not None and transaction_timeout_ms < 0:
            raise ValueError(f"transaction_timeout_ms must not be negative, got {transaction_timeout_ms}")
        ratio = transaction_timeout_warning_ratio
        if ratio is not None and not 0 <= ratio <= 1:
            raise ValueError(f"transaction_timeout_warning_ratio must lie between 0 and 1, got {ratio}")
        self.transaction_timeout_ms = transaction_timeout_ms
        self.ignore_failures_after_transaction_timeout = ignore_failures_after_transaction_timeout
        self.transaction_timeout_warning_ratio = ratio
        self._clock_ms = clock_ms
        self._pending: dict[int, TransactionHolder] = {}

    # --- what the subclass implements -------------------------------------------------------------------------------

    @abstractmethod
    def begin_transaction(self) -> Any:
        """Start one; returns its JSON-like handle."""

    @abstractmethod
    def invoke_transaction(self, transaction: Any, value: Any) -> None:
        """Write a batch (or row) in the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> None:
        """Flush, so that a later commit cannot fail for want of data. Nothing is written to the transaction after
        it."""

    @abstractmethod
    def commit(self, transaction: Any) -> None:
        """Make it visible. If it raises, the job restarts and `recover_and_commit` tries again."""

    @abstractmethod
    def abort(self, transaction: Any) -> None:
        """Undo it; nothing of it may ever be visible."""

    def recover_and_commit(self, transaction: Any) -> None:
        """Commit after a restart; the transaction may have been committed before. Default: `commit`."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        """Abort after a restart what was open in the snapshot. Default: `abort`."""
        self.abort(transaction)

    def initialize_user_context(self) -> Any:
        """A JSON-like value that lies in the snapshot beside the transactions (a pool of transactional ids, say)."""
        return None

    def finish_recovering_context(self, handled: Sequence[Any]) -> None:
        """Called after a restore with all transactions that were committed or aborted; clean up the others."""

    def finish_processing(self, transaction: Any) -> None:
        """The input has ended; flush into this transaction, the last one that gets data."""

    def warn(self, message: str) -> None:
        """A transaction comes near its timeout, or was given up. Default: the log `snapline.two_phase_commit`."""
        _LOG.warning("%s", message)

    @property
    def user_context(self) -> Any:
        """What `initialize_user_context` returned, or the snapshot held."""
        return self._user_context

    @property
    def current_transaction(self) -> Any:
        """Handle of the open transaction; None before the first and after the end of the input."""
        return self._current.handle if self._current else None

    @property
    def pending_transactions(self) -> tuple[tuple[int, Any], ...]:
        """(checkpoint id, handle) of what is pre-committed and not yet committed, oldest first."""
        return tuple((checkpoint_id, holder.handle) for checkpoint_id, holder in self._pending.items())

    # --- life -------------------------------------------------------------------------------------------------------

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """For the engine: begins the first transaction, and finishes those of a restored snapshot. A subclass that
        overrides it calls it."""
        self._state = context.operator_state_store.get_list_state(STATE_NAME)
        recovered_context = False
        for element in self._state.get() if context.is_restored else ():
            recovered_context |= self._recover(element)
        if not recovered_context:
            self._user_context = self.initialize_user_context()
        self._pending = {}
        self._current = self._begin()

    def invoke(self, value: Any) -> None:
        """For the engine: hands a batch (or row) to `invoke_transaction`."""
        if self._current is None:
            raise RuntimeError(f"{type(self).__name__}: no transaction is open; was initialize_state called?")
        self.invoke_transaction(self._current.handle, value)

    def finish(self) -> None:
        """For the engine: the input has ended."""
        self._finished = True
        if self._current is not None:
            self.finish_processing(self._current.handle)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """For the engine: pre-commits the open transaction, and begins the next."""
        if self._state is None:
            raise RuntimeError(f"{type(self).__name__}: snapshot before initialize_state")
        if self._current is not None:
            self.pre_commit(self._current.handle)
            self._pending[context.checkpoint_id] = self._current
        self._current = None if self._finished else self._begin()
        self._state.update([self._element()])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit what was pre-committed at or before the checkpoint. All are tried; the first failure is raised
        then."""
        failure: Exception | None = None
        for pending_id in [pending_id for pending_id in self._pending if pending_id <= checkpoint_id]:
            holder = self._pending.pop(pending_id)
            self._warn_if_timeout_almost_reached(holder)
            try:
                self.commit(holder.handle)
            except Exception as error:
                failure = failure or error  # the task fails; the restored one commits again
        if failure is not None:
            raise failure

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nothing: what was pre-committed for it is committed with the next checkpoint that completes."""

    def close(self) -> None:
        """Abort the open transaction. Those that are pre-committed must survive for a recovery."""
        if self._current is not None:
            current, self._current = self._current, None
            self.abort(current.handle)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._clock_ms() if self._clock_ms else time.time_ns() // 1_000_000

    def _begin(self) -> TransactionHolder:
        return TransactionHolder(self.begin_transaction(), self._now_ms())

    def _element(self) -> dict[str, Any]:
        current = self._current
        return {
            "open": None if current is None else [current.handle, current.started_ms],
            "pending": [[checkpoint_id, held.handle, held.started_ms] for checkpoint_id, held in self._pending.items()],
            "context": self._user_context,
        }

    def _recover(self, element: dict[str, Any]) -> bool:
        """Finish the transactions of one restored element (a rescaled function gets several, or none). Returns whether
        it held a user context."""
        self._user_context = element["context"]
        handled = []
        for _, handle, started_ms in element["pending"]:
            self._recover_and_commit(TransactionHolder(handle, started_ms))
            handled.append(handle)
        if element["open"] is not None:
            self.recover_and_abort(element["open"][0])
            handled.append(element["open"][0])
        if self._user_context is None:
            return False
        self.finish_recovering_context(handled)
        return True

    def _recover_and_commit(self, holder: TransactionHolder) -> None:
        self._warn_if_timeout_almost_reached(holder)
        try:
            self.recover_and_commit(holder.handle)
        except Exception as error:
            elapsed_ms = holder.elapsed_ms(self._now_ms())
            timeout_ms = self.transaction_timeout_ms
            if not self.ignore_failures_after_transaction_timeout or timeout_ms is None or elapsed_ms <= timeout_ms:
                raise
            self.warn(
                f"Transaction {holder.handle} could not be committed ({error}) and was given up: it was begun {elapsed_ms} ms "
                f"ago, and the transaction timeout is {timeout_ms} ms. Its data is lost; checkpoint more often, or raise the "
                "timeout of the outside system."
            )

    def _warn_if_timeout_almost_reached(self, holder: TransactionHolder) -> None:
        ratio, timeout_ms = self.transaction_timeout_warning_ratio, self.transaction_timeout_ms
        if ratio is None or timeout_ms is None:
            return
        elapsed_ms = holder.elapsed_ms(self._now_ms())
        if elapsed_ms > ratio * timeout_ms:
            self.warn(
                f"Transaction {holder.handle} has been open for {elapsed_ms} ms. This is close to or even exceeding the "
                f"transaction timeout of {timeout_ms} ms."
            )
