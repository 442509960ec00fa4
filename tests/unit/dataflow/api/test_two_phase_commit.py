"""What a two-phase sink function promises beyond the scenarios of tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction


class Ledger(TwoPhaseCommitSinkFunction):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self.number = 0
        self.failing = False

    def begin_transaction(self) -> str:
        self.number += 1
        return f"t{self.number}"

    def invoke_transaction(self, transaction: str, value: Any) -> None:
        self.calls.append(f"write {transaction} {value}")

    def pre_commit(self, transaction: str) -> None:
        self.calls.append(f"pre-commit {transaction}")

    def commit(self, transaction: str) -> None:
        self.calls.append(f"commit {transaction}")
        if self.failing:
            raise OSError(f"{transaction} cannot be committed")

    def abort(self, transaction: str) -> None:
        self.calls.append(f"abort {transaction}")

    def finish_processing(self, transaction: str) -> None:
        self.calls.append(f"finish {transaction}")

    def initialize_user_context(self) -> Any:
        return {"pool": 3}

    def finish_recovering_context(self, handled: Any) -> None:
        self.calls.append(f"handled {list(handled)}")


class Store:
    """One list state."""

    def __init__(self, elements: list[Any] | None = None) -> None:
        self.elements = elements or []

    def get_list_state(self, name: str, serializer: str = "json") -> Store:
        return self

    def get(self) -> list[Any]:
        return self.elements

    def update(self, values: list[Any]) -> None:
        self.elements = list(values)


class Context:
    """Of an initialisation or of a snapshot."""

    def __init__(self, store: Any, checkpoint_id: int = 0, restored: bool = False) -> None:
        self.operator_state_store: Any = store
        self.checkpoint_id = self.restored_checkpoint_id = checkpoint_id
        self.checkpoint_timestamp_ms = 0
        self.is_restored = restored


def started(store: Store, *, restored: bool = False, **options: Any) -> Ledger:
    function = Ledger(**options)
    function.initialize_state(Context(store, restored=restored))
    return function


def test_after_the_end_of_the_input_no_transaction_is_begun() -> None:
    """The last one is flushed, pre-committed and committed; close has nothing to abort."""
    function = started(Store())
    function.invoke("a")
    function.finish()
    function.snapshot_state(Context(Store(), 1))
    assert function.current_transaction is None
    assert function.pending_transactions == ((1, "t1"),)

    function.snapshot_state(Context(Store(), 2))
    function.notify_checkpoint_complete(2)
    function.close()
    assert function.calls == ["write t1 a", "finish t1", "pre-commit t1", "commit t1"]


def test_all_due_transactions_are_tried_before_the_first_failure_is_raised() -> None:
    """The task fails then, and the restored one commits again."""
    function = started(Store())
    for checkpoint_id in (1, 2):
        function.snapshot_state(Context(Store(), checkpoint_id))
    function.failing = True
    with pytest.raises(OSError, match="t1 cannot be committed"):
        function.notify_checkpoint_complete(2)

    assert function.calls[-2:] == ["commit t1", "commit t2"]


def test_the_user_context_lies_in_the_snapshot() -> None:
    """And the function learns which transactions recovery has handled."""
    store = Store()
    function = started(store)
    function.snapshot_state(Context(store, 1))
    again = started(Store(store.elements), restored=True)

    assert again.user_context == {"pool": 3}
    assert again.calls == ["commit t1", "abort t2", "handled ['t1', 't2']"]
    assert again.current_transaction == "t1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transaction_timeout_ms": -1}, "transaction_timeout_ms must not be negative"),
        ({"transaction_timeout_warning_ratio": 1.5}, "must lie between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(options: dict, message: str) -> None:
    """Where they are given, on the driver."""
    with pytest.raises(ValueError, match=message):
        Ledger(**options)


def test_a_transaction_near_its_timeout_is_warned_of() -> None:
    """By default in the log."""
    times = [0, 0, 501]
    function = started(
        Store(), transaction_timeout_ms=1000, transaction_timeout_warning_ratio=0.5, clock_ms=lambda: times.pop(0)
    )
    warnings: list[str] = []
    function.warn = warnings.append  # type: ignore[method-assign, assignment]
    function.snapshot_state(Context(Store(), 1))
    function.notify_checkpoint_complete(1)

    assert warnings == [
        "Transaction t1 has been open for 501 ms. This is close to or even exceeding the transaction timeout of 1000 ms."
    ]


def test_writing_before_initialize_state_is_an_error() -> None:
    """There is no transaction to write in."""
    with pytest.raises(RuntimeError, match="no transaction is open"):
        Ledger().invoke("a")
    with pytest.raises(RuntimeError, match="snapshot before initialize_state"):
        Ledger().snapshot_state(Context(Store(), 1))
