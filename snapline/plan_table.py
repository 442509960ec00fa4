"""`snapline plan` for people: a table of operators, then the verdict in one line."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from snapline.plan import DROPPED, JobPlan, OperatorPlan


def print_plan(plan: JobPlan, console: Console) -> None:
    """Everything that the plan says."""
    kind = plan.snapshot_type.lower().replace("_", " ")
    console.print(
        f"{kind} {plan.checkpoint_id} of {plan.snapshot_job_name!r}, in {plan.snapshot}", highlight=False, markup=False
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("UID", "OPERATOR", "STATE", "PARALLELISM", "MAX", "SIZE", "HOLDS"):
        table.add_column(column)
    for operator in plan.operators:
        table.add_row(*_row(operator))
    console.print(table)
    for operator in plan.operators:
        if operator.problem:
            console.print(f"{operator.uid}: {operator.problem}", highlight=False, markup=False)
    if plan.would_start:
        dropped = sum(operator.verdict == DROPPED for operator in plan.operators)
        loss = f"; the state of {dropped} operators is dropped" if dropped else ""
        console.print(f"{plan.job_name!r} would start from it{loss}", highlight=False, markup=False)
    else:
        console.print(f"{plan.job_name!r} would not start from it: {plan.refusal}", highlight=False, markup=False)


def _row(operator: OperatorPlan) -> list[str]:
    return [
        operator.uid,
        operator.name,
        operator.verdict if not operator.problem else f"{operator.verdict} (refused)",
        _change(operator.snapshot_parallelism, operator.job_parallelism),
        _change(operator.snapshot_max_parallelism, operator.job_max_parallelism),
        f"{operator.state_size_bytes:,} B" if operator.state_size_bytes else "-",
        ", ".join(f"{state.name} ({state.kind}, {state.elements:,})" for state in operator.states) or "-",
    ]


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None or before == after:
        return str(before if after is None else after)
    return f"{before} -> {after}"
