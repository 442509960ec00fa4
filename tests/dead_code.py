"""Names that nothing uses, found by vulture: `python -m tests.dead_code`; exit code 1 when there are some.

What a user calls (the face, the contracts and the connectors) counts as used when a test, an example or a benchmark
uses it. Everything else has to be used by the product itself: code that only tests use is moved to them or deleted. The
names below are used in ways that vulture cannot see; each group says how.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from vulture import Vulture  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("protos", "dataflow", "runtime", "connectors", "coordinator", "taskmanager", "snapline")
FOR_USERS = ("snapline/", "connectors/", "dataflow/api/", "dataflow/config.py", "runtime/clock.py")
"""Where names lie that users call: exercised by tests and examples is exercised enough."""

CALLED_BY_LIBRARIES = """
    breakpointhook
    on_receive on_stop on_failure _create_actor_inbox use_daemon_thread intercept_service start_call WatchCheckpoints WatchRequiredResources
    align typingctx Carry streamReader prepareForTriggerAvailableNow initialOffset getDefaultReadLimit latestOffset FilteringBoundLogger overwrite __getattr__ __dir__ dispose list_states list_open
    define_messages define_services
    timeout_graceful_shutdown should_exit submit_programs
    daemon_threads request_queue_size server_name default_map address_family handle_error get_stderr log_message service_actions writable
"""
"""pykka, grpc, uvicorn, http.server, Arrow and Flight, numba, Spark's data sources, click and generated code
call or read these by name."""

CALLED_BY_USERS = """
    get_union_list_state checkpoint_timestamp_ms collect_batch mark_as_temporarily_idle
    current_processing_time put_entries delete_event_time_timers get_broadcast_state add_all put_all
    to_spark len_list add_accumulator get_accumulator time_domain
"""
"""A user's function calls them on a context or a state of ours, or a user's sink is called with them."""

SEEN_BY_TESTS = """
    queued_request_count is_periodic_checkpointing_started fully_finished_vertices is_persisted completed_store
    skipped_operators registered_jobs is_monitored latest_checkpoint_id has_completed_latest
    remembered_aborts tasks_of is_recovered copies_of checkpoint_barrier_unaligner
    redistribute_key_groups
    remove_batch
"""
"""State of a core, or a way to set one up, through which tests and Flink's scenarios look at it. Add none that decides
anything."""

PART_OF_A_TABLE = """
    BOOL EXCEPTION BLOCKING_OUTPUT_EXIST CHANNEL_STATE_SHARED_STREAM_EXCEPTION CHECKPOINT_DECLINED_TASK_CLOSING
    CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED JOB_FAILURE
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE TOO_MANY_CONCURRENT_CHECKPOINTS CHECKPOINTING_FORCE_UNALIGNED S3_ENDPOINT
    S3_ACCESS_KEY S3_SECRET_KEY S3_REGION S3_ALLOW_HTTP SerializedConfiguration
"""
"""Fields of value classes that are compared or pickled as a whole, Flink's reasons, and settings that are read by their
prefix."""

EXPLAINED = frozenset(f"{CALLED_BY_LIBRARIES} {CALLED_BY_USERS} {SEEN_BY_TESTS} {PART_OF_A_TABLE}".split())


@dataclass(frozen=True, slots=True)
class Unused:
    """A name that vulture found no use of."""

    path: str
    line: int
    kind: str
    name: str

    def __str__(self) -> str:
        """As compilers say it."""
        return f"{self.path}:{self.line}: unused {self.kind} {self.name!r}"


def unused(*places: str) -> set[Unused]:
    """What nothing in these places uses, of the names that they define."""
    vulture = Vulture()
    vulture.scavenge([str(ROOT / place) for place in places], exclude=["*_pb2*"])
    return {
        Unused(str(Path(item.filename).resolve().relative_to(ROOT)), item.first_lineno, item.typ, item.name)
        for item in vulture.get_unused_code()
    }


def main() -> int:
    """Print what is dead, and how to go on; the exit code."""
    programs = (*ROOMS, "examples", "benchmarks")
    by_anybody = {item for item in unused(*programs, "tests") if item.path.startswith(ROOMS)}
    by_the_product = {item for item in unused(*programs) if item.path.startswith(ROOMS)}
    only_by_tests = {item for item in by_the_product - by_anybody if not item.path.startswith(FOR_USERS)}
    dead = sorted(
        f"{item}{', but for tests' * (item in only_by_tests)}"
        for item in by_anybody | only_by_tests
        if item.name not in EXPLAINED
    )
    needless = sorted(EXPLAINED - {item.name for item in by_anybody | only_by_tests})
    for line in dead:
        print(line)
    if dead:
        print("use it, move it to the tests, delete it, or say in tests/dead_code.py who uses it")
    if needless:
        print(f"needless in tests/dead_code.py (used, or gone): {' '.join(needless)}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
