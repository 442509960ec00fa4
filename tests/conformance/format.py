"""What a scenario may say: the keys of scenarios/README.md, by kind.

A scenario with a key that is not listed here is not replayed: an adapter would pass over it in silence. Values are the
adapters' business, but for the operation of a step, of which there is exactly one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

COMMON = frozenset(
    ("id", "kind", "title", "origin", "versions", "tier", "notes", "config", "steps", "cases", "final"),
)


@dataclass(frozen=True, slots=True)
class Steps:
    """A kind whose steps are played in order on one instance."""

    config: frozenset[str]
    operations: frozenset[str]
    modifiers: frozenset[str]
    expectations: frozenset[str]


def _steps(config: str, operations: str, modifiers: str, expectations: str) -> Steps:
    return Steps(*(frozenset(words.split()) for words in (config, operations, modifiers, expectations)))


FINAL = {
    "barrier_handler": frozenset(("triggered", "aborted", "emitted", "inflight", "latest_id")),
    "coordinator": frozenset(("pending", "retained")),
}
"""What `final` may state; the other kinds have none."""

STEPS: dict[str, Steps] = {
    "barrier_handler": _steps(
        "handler channels end_of_partition start_ms mailbox",
        "data barrier cancel eop advance drain poll run_mailbox",
        "ch type ts timeout_ms unaligned local hold receive_only direct",
        "triggered alignment aborted may_abort emitted blocked latest_id pending pending_ids all_barriers_received inflight "
        "alignment_ms start_delay_ms",
    ),
    "coordinator": _steps(
        "tasks interval_ms timeout_ms min_pause_ms max_concurrent max_retained max_queued max_queued_periodic retention unaligned "
        "tolerable_failures start_ms initial_delay_ms first_id hooks stop_during_id",
        "trigger run ack decline advance start_scheduler stop_scheduler job_status shutdown task_state fail_task abort_all "
        "id_counter_fails_next store_fails_next complete_hook fail_hook",
        "",
        "pending retained sent trigger_options requests queued triggering discarded returns job_failures hook_calls error "
        "periodic_timer",
    ),
    "request_decider": _steps(
        "max_concurrent max_queued max_queued_periodic min_pause_ms pending start_ms last_completion_ms",
        "submit poll pending advance abort_all",
        "triggering",
        "chosen failed queued reschedule_ms",
    ),
    "failure_manager": _steps("tolerable_failures", "fail success sync_savepoint_failed construct", "", "failed error"),
    "id_counter": _steps(
        "impl",
        "start get get_and_increment set_count concurrent_increments shutdown reopen",
        "",
        "value persisted sorted_values_from sorted_values_to duplicates",
    ),
    "pending_checkpoint": _steps(
        "type tasks hooks coordinators",
        "ack ack_hook ack_coordinator abort finalize set_canceller can_be_subsumed future operator_states master_states "
        "unacknowledged_coordinators construct",
        "",
        "result fully_acknowledged hooks_acknowledged future discarded discarded_state canceller_cancelled accepted value count "
        "values error",
    ),
    "completed_store": _steps(
        "max_retained impl stores persisted_unordered unreadable",
        "add latest all shutdown recover construct",
        "store",
        "retained latest discarded persisted error",
    ),
    "restore": _steps(
        "store tasks max_parallelism max_parallelism_explicit user_ids prefer_checkpoint hooks hook_answers",
        "restore restore_savepoint checkpoint add_hook shutdown",
        "",
        "restored error max_parallelism next_id retained assigned identity tasks_with_state hook_calls hook_states accepted",
    ),
    "shared_state": _steps(
        "max_retained",
        "register unregister complete drop suspend_and_restore",
        "",
        "refs canonical discarded error",
    ),
    "stats": _steps(
        "history",
        "pending complete fail restored snapshot sample complete_unknown fail_unknown",
        "type",
        "counts history latest_completed latest_savepoint latest_failed latest_restored summary_count summary same_as "
        "in_progress_at_least",
    ),
    "checkpoint_plan": _steps("vertices edges", "plan", "", "trigger wait_for fully_finished error"),
    "heartbeat": _steps(
        "role timeout_ms interval_ms payloads auto_reply start_ms failed_rpcs_until_unreachable",
        "monitor unmonitor receive request advance last_heartbeat target_goes_silent stop construct",
        "delivery",
        "reported replies requests_sent timeouts value unreachable error",
    ),
    "priority_deque": _steps(
        "", "add prioritize poll peek get_and_remove clear", "priority", "content num_priority polled peeked error"
    ),
    "subpartition": _steps(
        "",
        "add poll resume finish release timeout",
        "type priority",
        "polled backlog inflight blocked accepted queued error",
    ),
    "subtask": _steps(
        "operators unaligned running max_remembered_aborts",
        "perform async_done notify_complete notify_aborted notify_aborted_range abort_on_barrier init_checkpoint set_running "
        "initialize",
        "",
        "actions remembered_aborts running_async accepted state_manager_notified channel_writer_started",
    ),
    "two_phase_commit": _steps(
        "transaction_timeout_ms ignore_failures_after_timeout warning_ratio",
        "open write snapshot notify_complete notify_aborted crash restore restore_states close clock",
        "save_as failing_commits",
        "calls committed pending state error warnings leftovers",
    ),
    "source_offsets": _steps(
        "commit_mode",
        "offsets snapshot notify_complete snapshot_many restored stop emit checkpoint_requested_between_emit_and_offset",
        "then_offset",
        "state pending committed pending_count pending_first ignored one_of",
    ),
}

CASES: dict[str, dict[str, frozenset[str]]] = {
    kind: {operation: frozenset(keys.split()) for operation, keys in operations.items()}
    for kind, operations in {
        "properties": {
            "retention": "type policy",
            "needs_alignment": "type exactly_once unaligned",
            "handler_for": "mode unaligned",
            "is_preflight": "reason",
            "match": "first second",
        },
        "heartbeat_topology": {"pair": "peers", "lost_peer": "observer lost"},
        "key_groups": {
            "ranges": "max_parallelism parallelism",
            "operator_index": "max_parallelism parallelism",
            "range": "first last",
            "intersect": "a b",
            "offsets_intersect": "range offsets with_range",
            "default_max_parallelism": "parallelism",
            "redistribute_keyed_state": "max_parallelism old_parallelism new_parallelism",
            "hash": "key_hash max_parallelism",
            "key": "key key_type max_parallelism",
            "property_range_contains_index": "max_parallelism parallelism",
            "property_stable_key_group": "keys max_parallelism parallelisms",
        },
        "operator_state": {"redistribute": "old new_parallelism compare", "property_repartition": "runs seed"},
        "channel_state": {
            "subtask_mapping": "mapper old new",
            "repartition": "mapper old_states new",
            "invert": "mapping",
            "ambiguous_targets": "mapping",
            "restore_without_rescaling": "old new elements",
        },
        "pipeline": {"invariants": ""},
    }.items()
}


def problems(scenario: dict[str, Any]) -> list[str]:
    """A line for everything in the scenario that no adapter looks at."""
    kind = scenario["kind"]
    found = _strangers("-", "the scenario", scenario, COMMON)
    if kind in STEPS:
        if not scenario.get("steps"):
            found.append("step -: expected steps, got none")
        return found + _problems_of_steps(scenario, STEPS[kind])
    if not scenario.get("cases"):
        found.append("step -: expected cases, got none")
    return found + _problems_of_cases(scenario, CASES[kind])


def _problems_of_steps(scenario: dict[str, Any], known: Steps) -> list[str]:
    found = _strangers("-", "config", scenario.get("config") or {}, known.config)
    found += _strangers("final", "final", scenario.get("final") or {}, FINAL.get(scenario["kind"], ()))
    for number, step in enumerate(scenario.get("steps", ())):
        found += _strangers(number, "the step", step, known.operations | known.modifiers | {"expect"})
        if operation_of(step, known) is None:
            found.append(f"step {number}: expected exactly one operation, got {sorted(step)}")
        found += _strangers(number, "expect", step.get("expect") or {}, known.expectations)
    return found


def _problems_of_cases(scenario: dict[str, Any], known: dict[str, frozenset[str]]) -> list[str]:
    found: list[str] = []
    for number, case in enumerate(scenario.get("cases", ())):
        operation = case.get("op")
        if operation not in known:
            found.append(f"step {number}: op: expected one of {sorted(known)}, got {operation!r}")
        elif not operation.startswith("property_") and operation not in ("hash", "key"):
            found += _strangers(number, "the case", case, known[operation] | {"op", "expect", "notes"})
    return found


def operation_of(step: dict[str, Any], known: Steps) -> str | None:
    """The one operation of a step; None when there is none, or more than one. `pending` and `type` can be either: next
    to a real operation they are modifiers."""
    operations = [key for key in step if key in known.operations]
    real = [key for key in operations if key not in known.modifiers] or operations
    return real[0] if len(real) == 1 else None


def _strangers(number: int | str, where: str, mapping: dict[str, Any], known: Iterable[str]) -> list[str]:
    strangers = sorted(str(key) for key in set(mapping) - set(known))
    return [f"step {number}: {where} has keys that no scenario of this kind can have: {', '.join(strangers)}"] * bool(
        strangers
    )
