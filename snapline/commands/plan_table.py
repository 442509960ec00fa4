"""`snapline plan` for people: a table of operators, then the verdict in one line."""

from __future__ import annotations

from snapline.commands.printing import echo, print_table
from snapline.plan import DROPPED, JobPlan, OperatorPlan


def print_plan(plan: JobPlan) -> None:
    """Everything that the plan says."""
    kind = plan.snapshot_type.lower().replace("_", " ")
    echo(f"{kind} {plan.checkpoint_id} of {plan.snapshot_job_name!r}, in {plan.snapshot}")
    print_table(("UID", "OPERATOR", "STATE", "PARALLELISM", "MAX", "SIZE", "HOLDS"), map(_row, plan.operators))
    for operator in plan.operators:
        if operator.problem:
            echo(f"{operator.uid}: {operator.problem}")
    if plan.would_start:
        dropped = sum(operator.verdict == DROPPED for operator in plan.operators)
        loss = f"; the state of {dropped} operators is dropped" if dropped else ""
        echo(f"{plan.job_name!r} would start from it{loss}")
    else:
        echo(f"{plan.job_name!r} would not start from it: {plan.refusal}")


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
