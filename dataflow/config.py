"""Every setting: one typed table, from which values are checked and the reference page is generated.

Names, defaults and spelling of durations and sizes are Flink's (`execution.checkpointing.interval: 10 s`). A
`Configuration` is an immutable mapping from key to text, so that it can travel in a JobGraph; `get` parses. An unknown
key is an error that names the nearest known one. Layering (TOML file, environment, API, Spark conf) happens in shells,
which merge mappings with `with_values` and keep the origin of each value.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from snapline.dataflow.earlier_names import NAMES_OF_FLINK_1
from snapline.dataflow.errors import SnaplineError

T = TypeVar("T")
N = TypeVar("N", int, float)
MAX_PORT = 65_535


class ConfigurationError(SnaplineError):
    """A setting is unknown or its value cannot be used; names the key, the value and what is allowed.

    >>> env.configure("execution.checkpointing.intervall", "1 s")
    Traceback (most recent call last):
    snapline.dataflow.config.ConfigurationError: ...execution.checkpointing.interval...
    """


_DURATION_UNITS_MS = {
    "ms": 1.0,
    "milli": 1.0,
    "millisecond": 1.0,
    "s": 1000.0,
    "sec": 1000.0,
    "second": 1000.0,
    "m": 60_000.0,
    "min": 60_000.0,
    "minute": 60_000.0,
    "h": 3_600_000.0,
    "hour": 3_600_000.0,
    "d": 86_400_000.0,
    "day": 86_400_000.0,
}
_SIZE_UNITS = {"": 1, "b": 1, "bytes": 1}
for _power, _word in enumerate(("kibibytes", "mebibytes", "gibibytes", "tebibytes"), 1):
    _SIZE_UNITS |= dict.fromkeys((_word[0], f"{_word[0]}b", f"{_word[0]}ib", _word), 1 << 10 * _power)
_MOST = (1 << 63) - 1
"""What messages, files and clocks have room for."""
_MOST_MS = 100_000 * 86_400_000
"""A thread waits for no longer than 106,751 days."""
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `10 s`, `500ms`, `1 min`; a bare number is milliseconds. Raises ValueError."""
    match = _QUANTITY.match(text)
    unit = match.group(2).lower() if match else ""
    if unit not in _DURATION_UNITS_MS and unit.endswith("s"):
        unit = unit[:-1]
    if not match or (unit and unit not in _DURATION_UNITS_MS):
        raise ValueError("a duration such as '500 ms', '10 s' or '3 min'")
    length = float(match.group(1)) * _DURATION_UNITS_MS.get(unit, 1.0)
    if length > _MOST_MS:
        raise ValueError("a duration of 100000 d at most")
    return round(length)


def parse_size_bytes(text: str) -> int:
    """Bytes of `20 kb`, `64mb`; a bare number is bytes; units are powers of 1024. Raises ValueError."""
    match = _QUANTITY.match(text)
    unit = match.group(2).lower() if match else ""
    if not match or unit not in _SIZE_UNITS:
        raise ValueError("a size such as '20 kb' or '64 mb'")
    size = float(match.group(1)) * _SIZE_UNITS[unit]
    if size > _MOST:
        raise ValueError("a size of less than 8589934592 gb")
    return round(size)


def parse_bool(text: str) -> bool:
    """`true` or `false`, in any case. Raises ValueError."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise ValueError("'true' or 'false'")


def parse_int(text: str) -> int:
    """A whole number. Raises ValueError."""
    try:
        number = int(text.strip())
    except ValueError:
        raise ValueError("a whole number") from None
    if abs(number) > _MOST:
        raise ValueError(f"a whole number up to {_MOST}")
    return number


def parse_float(text: str) -> float:
    """Parse a decimal number such as '0.5'. Raises ValueError."""
    try:
        number = float(text.strip())
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a number that has an end")
    return number


def _within(parse: Callable[[str], N], at_least: N | None, at_most: N | None) -> Callable[[str], N]:
    """The parser, for numbers within these bounds only."""
    if at_least is None:
        return parse
    bounds = f"{at_least} or more" if at_most is None else f"{at_least} to {at_most}"

    def parse_within(text: str) -> N:
        try:
            number = parse(text)
        except ValueError as error:
            raise ValueError(f"{error}, {bounds}") from None
        if not (at_least <= number and (at_most is None or number <= at_most)):
            raise ValueError(bounds)
        return number

    return parse_within


def parse_address(text: str) -> str:
    """`host:port`, or several with commas between them, or nothing where ZooKeeper says it. Raises ValueError."""
    for address in text.split(",") if text.strip() else ():
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > MAX_PORT:
            raise ValueError("host:port, such as 127.0.0.1:6123")
    return text.strip()


def parse_own_address(text: str) -> str:
    """`host:port` of the process itself. Raises ValueError."""
    if not text.strip() or "," in text:
        raise ValueError("one host:port, such as 127.0.0.1:6125")
    return parse_address(text)


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser that admits these words, whatever their case."""

    def parse(text: str) -> str:
        for word in allowed:
            if text.strip().lower() == word.lower():
                return word
        raise ValueError("one of " + ", ".join(allowed))

    return parse


MOST_SHOWN = 200
"""Characters of a value that a refusal repeats."""


@dataclass(frozen=True, slots=True)
class ConfigOption(Generic[T]):
    """One setting: key, how its text is read, default (as text) and what it does."""

    key: str
    parse: Callable[[str], T]
    default: str
    description: str
    kind: str
    """`duration`, `size`, `int`, `float`, `bool`, `enum` or `string`, for the reference page."""
    alias: str = ""
    """Another key that means the same (an older one of Flink's)."""

    def read(self, text: str) -> T:
        """Parse; raises ConfigurationError naming the key, the text and what is allowed."""
        try:
            return self.parse(text)
        except ValueError as error:
            shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
            raise ConfigurationError(f"{self.key} = {shown!r}: expected {error}") from None


OPTIONS: dict[str, ConfigOption[object]] = {}
ALIASES: dict[str, str] = {}
"""Other keys that are understood, and which setting they are."""


def _option(
    key: str, parse: Callable[[str], T], default: str, description: str, kind: str, alias: str = ""
) -> ConfigOption[T]:
    option = ConfigOption(key, parse, default, description, kind, alias)
    OPTIONS[key] = option  # type: ignore[assignment]
    if alias:
        ALIASES[alias] = key
    return option


def _duration(key: str, default: str, description: str) -> ConfigOption[int]:
    return _option(key, parse_duration_ms, default, description, "duration")


def _size(key: str, default: str, description: str) -> ConfigOption[int]:
    return _option(key, parse_size_bytes, default, description, "size")


def _int(
    key: str, default: str, description: str, at_least: int | None = None, at_most: int | None = None
) -> ConfigOption[int]:
    return _option(key, _within(parse_int, at_least, at_most), default, description, "int")


def _float(
    key: str, default: str, description: str, at_least: float, at_most: float | None = None
) -> ConfigOption[float]:
    return _option(key, _within(parse_float, at_least, at_most), default, description, "float")


def _bool(key: str, default: str, description: str, alias: str = "") -> ConfigOption[bool]:
    return _option(key, parse_bool, default, description, "bool", alias)


def _string(key: str, default: str, description: str) -> ConfigOption[str]:
    return _option(key, str, default, description, "string")


def _enum(key: str, default: str, description: str, *allowed: str) -> ConfigOption[str]:
    return _option(key, one_of(*allowed), default, description + " One of " + ", ".join(allowed) + ".", "enum")


# --- checkpointing ----------------------------------------------------------------------------------------------------
CHECKPOINTING_INTERVAL = _duration(
    "execution.checkpointing.interval", "0 ms", "Time between two periodic checkpoints; 0 switches them off."
)
CHECKPOINTING_TIMEOUT = _duration(
    "execution.checkpointing.timeout", "10 min", "A checkpoint that takes longer is discarded."
)
CHECKPOINTING_MIN_PAUSE = _duration(
    "execution.checkpointing.min-pause", "0 ms", "Least time between the end of a checkpoint and the next trigger."
)
CHECKPOINTING_MAX_CONCURRENT = _int(
    "execution.checkpointing.max-concurrent-checkpoints", "1", "Checkpoints that may be in progress at once."
)
CHECKPOINTING_MODE = _enum(
    "execution.checkpointing.mode",
    "EXACTLY_ONCE",
    "AT_LEAST_ONCE never blocks an input, and may process rows twice after a failure.",
    "EXACTLY_ONCE",
    "AT_LEAST_ONCE",
)
CHECKPOINTING_UNALIGNED = _bool(
    "execution.checkpointing.unaligned.enabled",
    "false",
    "Barriers overtake data in flight, which becomes part of the snapshot.",
)
CHECKPOINTING_FORCE_UNALIGNED = _bool(
    "execution.checkpointing.unaligned.forced",
    "false",
    "Understood, and without effect: no operator asks for alignment.",
)
CHECKPOINTING_ALIGNED_TIMEOUT = _duration(
    "execution.checkpointing.aligned-checkpoint-timeout",
    "0 ms",
    "With unaligned checkpoints: begin aligned, and turn unaligned when the barrier is older than this.",
)
CHECKPOINTING_TOLERABLE_FAILURES = _int(
    "execution.checkpointing.tolerable-failed-checkpoints",
    "0",
    "Consecutive failed checkpoints before the job fails; -1: any number.",
)
CHECKPOINTING_RETENTION = _enum(
    "execution.checkpointing.externalized-checkpoint-retention",
    "NO_EXTERNALIZED_CHECKPOINTS",
    "What happens to checkpoints when the job is cancelled or fails for good.",
    "NO_EXTERNALIZED_CHECKPOINTS",
    "DELETE_ON_CANCELLATION",
    "RETAIN_ON_CANCELLATION",
)
CHECKPOINTING_AFTER_TASKS_FINISH = _bool(
    "execution.checkpointing.checkpoints-after-tasks-finish",
    "true",
    "Go on taking checkpoints when some tasks have finished.",
)
CHECKPOINTS_DIRECTORY = _string(
    "execution.checkpointing.dir",
    "",
    "Base directory of checkpoints: a path, file://, s3://, gs:// or az:// URL, hdfs://.",
)
SAVEPOINT_DIRECTORY = _string("execution.checkpointing.savepoint-dir", "", "Default directory of savepoints.")
CHECKPOINTS_NUM_RETAINED = _int("execution.checkpointing.num-retained", "1", "Completed checkpoints that are kept.")
INCREMENTAL_CHECKPOINTS = _bool(
    "execution.checkpointing.incremental", "false", "Write only what changed since the last checkpoint."
)
CHECKPOINT_HISTORY_SIZE = _int(
    "web.checkpoints.history", "10", "Checkpoints that the statistics remember in detail.", at_least=0
)
FILE_THRESHOLD = _size(
    "execution.checkpointing.data-inline-threshold",
    "20 kb",
    "State below this travels inside the acknowledgement and `_metadata`, up to fifty times as much of a subtask.",
)
STATE_BACKEND = _enum(
    "state.backend.type",
    "hashmap",
    "Where keyed state lives: in memory, or in memory and, what was not used lately, in files on the local disk.",
    "hashmap",
    "rocksdb",
)
ROCKSDB_MEMORY = _size(
    "state.backend.rocksdb.memory.fixed-per-slot",
    "256 mb",
    "About what one keyed operator of one subtask may take in memory: for the keys that are in use, and 40 bytes for each key on the "
    "disk. At least half is for keys in use, so where keys on the disk need more than the other half it takes more.",
)
ROCKSDB_DIRECTORY = _string(
    "state.backend.rocksdb.localdir",
    "",
    "Directory on each TaskManager's machine for state that memory has no room for, in files without a name, which go with their process. The job's word counts, else the TaskManager's; empty: the temporary directory.",
)
LOCAL_RECOVERY = _bool(
    "execution.state-recovery.from-local",
    "false",
    "Keep a copy of each checkpoint's state on the TaskManager's own disk, and restore from there what is there. The job's word "
    "counts, else the TaskManager's. Also understood as `state.backend.local-recovery`.",
    alias="state.backend.local-recovery",
)
LOCAL_STATE_ROOTS = _string(
    "taskmanager.state.local.root-dirs",
    "",
    "Directories on each TaskManager's machine for those copies, separated by commas, the same for all that may take each other's "
    "place; empty: one in the temporary directory.",
)
DROP_STATE_COLUMNS = _bool(
    "state.schema-evolution.drop-columns",
    "false",
    "Columns that a snapshot's state has and the job does not declare any more are dropped, instead of refused.",
)

# --- execution --------------------------------------------------------------------------------------------------------
PARALLELISM_DEFAULT = _int("parallelism.default", "1", "Parallelism of operators that set none.", at_least=1)
MAX_PARALLELISM = _int(
    "pipeline.max-parallelism",
    "-1",
    "Number of key groups; -1 or 0: derived from the parallelism, at least 128.",
    at_least=-1,
    at_most=32_768,
)
AUTO_GENERATE_UIDS = _bool(
    "pipeline.auto-generate-uids",
    "true",
    "Operators with state that have no uid get a generated one, with a warning; false: with checkpoints on, that is an error.",
)
OPERATOR_CHAINING = _bool("pipeline.operator-chaining.enabled", "true", "Chain operators into one task where possible.")
BUFFER_TIMEOUT = _duration(
    "execution.buffer-timeout",
    "100 ms",
    "A batch waits at most this long to be filled before it is sent; 0: never waits.",
)
TOLERATED_LEAD = _duration(
    "execution.event-time.tolerated-lead",
    "1 s",
    "A channel that windows, sessions or interval joins read may be ahead of the slowest by so much, or by twice their length, before it waits a moment.",
)
LATENCY_INTERVAL = _duration(
    "metrics.latency.interval",
    "0 ms",
    "How often each source sends a marker, whose time to each operator is measured; 0: never.",
)
BATCH_TARGET_ROWS = _int(
    "execution.batch.target-rows", "16384", "Rows that outgoing batches are filled up to under load.", at_least=1
)
SCHEDULER_MODE = _enum(
    "scheduler-mode",
    "default",
    "reactive: the job has as many subtasks as there are slots, and is rescaled when that changes.",
    "default",
    "reactive",
)
RESOURCE_STABILIZATION_TIMEOUT = _duration(
    "jobmanager.adaptive-scheduler.resource-stabilization-timeout",
    "1 s",
    "In reactive mode: the job starts, or is rescaled, when the number of slots has not changed for this long, or is all that it can use. Each "
    "checkpoint for it that fails doubles the time, up to a minute.",
)
WATERMARK_INTERVAL = _duration(
    "pipeline.auto-watermark-interval",
    "200 ms",
    "Time between two watermarks of a source; after 16,384 rows the next one comes sooner.",
)
RESTART_STRATEGY = _enum(
    "restart-strategy.type",
    "exponential-delay",
    "What to do when a task fails.",
    "none",
    "fixed-delay",
    "failure-rate",
    "exponential-delay",
)
RESTART_FIXED_DELAY_ATTEMPTS = _int(
    "restart-strategy.fixed-delay.attempts", "1", "Restarts before the job fails.", at_least=0
)
RESTART_FIXED_DELAY_DELAY = _duration("restart-strategy.fixed-delay.delay", "1 s", "Pause before each restart.")
RESTART_FAILURE_RATE_MAX = _int(
    "restart-strategy.failure-rate.max-failures-per-interval",
    "1",
    "Failures within the interval before the job fails.",
    at_least=0,
)
RESTART_FAILURE_RATE_INTERVAL = _duration(
    "restart-strategy.failure-rate.failure-rate-interval", "1 min", "The interval."
)
RESTART_FAILURE_RATE_DELAY = _duration("restart-strategy.failure-rate.delay", "1 s", "Pause before each restart.")
RESTART_EXPONENTIAL_INITIAL = _duration("restart-strategy.exponential-delay.initial-backoff", "100 ms", "First pause.")
RESTART_EXPONENTIAL_MAX = _duration("restart-strategy.exponential-delay.max-backoff", "1 min", "Longest pause.")
RESTART_EXPONENTIAL_MULTIPLIER = _float(
    "restart-strategy.exponential-delay.backoff-multiplier", "1.5", "Growth of the pause.", at_least=1.0
)
RESTART_EXPONENTIAL_JITTER = _float(
    "restart-strategy.exponential-delay.jitter-factor", "0.1", "Random part of the pause.", at_least=0.0, at_most=1.0
)
RESTART_EXPONENTIAL_RESET = _duration(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    "1 min",
    "Time without failure after which the pause is the first again.",
)
RESTART_EXPONENTIAL_ATTEMPTS = _int(
    "restart-strategy.exponential-delay.attempts-before-reset-backoff",
    "-1",
    "Restarts before the job fails; -1: any number.",
    at_least=-1,
)
RESTART_SAME_ROW = _int(
    "restart-strategy.same-row.max-failures",
    "3",
    "A job whose function fails the same way at the same row so often, one time after the other, fails for good; 0: it restarts on.",
    at_least=0,
)
TASK_CANCELLATION_INTERVAL = _duration(
    "task.cancellation.interval", "30 s", "Time between two attempts to cancel a task; 0: there is no second one."
)
TASK_CANCELLATION_TIMEOUT = _duration(
    "task.cancellation.timeout", "180 s", "A task that does not end within this takes its TaskManager down; 0: never."
)

# --- cluster ----------------------------------------------------------------------------------------------------------
HEARTBEAT_INTERVAL = _duration("heartbeat.interval", "10 s", "Time between heartbeat requests.")
HEARTBEAT_TIMEOUT = _duration("heartbeat.timeout", "50 s", "Silence after which a peer counts as lost.")
HEARTBEAT_RPC_FAILURE_THRESHOLD = _int(
    "heartbeat.rpc-failure-threshold",
    "1",
    "Failed sends in a row after which a TaskManager counts as lost. A connection that breaks is the first, each heartbeat "
    "request that finds no new one is the next. The tasks of one that comes back start again in any case. -1: only "
    "heartbeat.timeout counts (Flink: 2).",
    at_least=-1,
)
REGISTRATION_INITIAL_TIMEOUT = _duration("cluster.registration.initial-timeout", "100 ms", "First wait for an answer.")
REGISTRATION_MAX_TIMEOUT = _duration("cluster.registration.max-timeout", "30 s", "Longest wait for an answer.")
REGISTRATION_ERROR_DELAY = _duration(
    "cluster.registration.error-delay", "1 s", "Pause after a failed attempt (Flink: 10 s)."
)
REGISTRATION_REFUSED_DELAY = _duration(
    "cluster.registration.refused-registration-delay", "30 s", "Pause after a refusal."
)
TASKMANAGER_REGISTRATION_TIMEOUT = _duration(
    "taskmanager.registration.timeout", "5 min", "A TaskManager that cannot register within this ends itself."
)
TASKMANAGER_RELAYS = _option(
    "taskmanager.relay.addresses",
    parse_address,
    "",
    "host:port of relays, separated by commas: each TaskManager takes one of them to reach its coordinator, and does without when "
    "that one is not there. Worth it from about 100 TaskManagers on; empty: none.",
    "string",
)
TASKMANAGER_SLOTS = _int("taskmanager.numberOfTaskSlots", "1", "Slots per TaskManager.", at_least=1)
TASKMANAGER_TURNS = _int(
    "taskmanager.active-tasks",
    "2",
    "How many tasks of a TaskManager work at a time, in turns, while they keep Python busy; more do while they wait for something "
    "else, or compute outside of Python.",
    at_least=1,
)
TASKMANAGER_PROCESSOR_SHARE = _bool(
    "taskmanager.processor-share",
    "true",
    "TaskManagers of one host that have tasks divide its processors between them, each bound to its own, while there is one for each.",
)
TASKMANAGER_INSTANCES = _int(
    "taskmanager.instances",
    "0",
    "TaskManagers that a Spark application starts; 0: as many as its cores and the job allow.",
    at_least=0,
)
TASKMANAGER_SLOT_TIMEOUT = _duration(
    "taskmanager.slot.timeout", "10 s", "An allocated slot that is not used is free again after this."
)
TASKMANAGER_MEMORY_NETWORK_BATCHES = _int(
    "taskmanager.network.credits-per-channel", "8", "Batches that may be on their way to one input channel.", at_least=1
)
TASKMANAGER_QUEUE_BATCHES = _int(
    "taskmanager.network.max-queued-batches",
    "8",
    "Batches that may wait in one subpartition before its producer pauses.",
    at_least=1,
)
TASKMANAGER_QUEUE_BYTES = _size(
    "taskmanager.network.max-queued-bytes",
    "16 mb",
    "Bytes that may wait in one subpartition before its producer pauses.",
)
BUFFER_DEBLOAT = _bool(
    "taskmanager.network.memory.buffer-debloat.enabled",
    "true",
    "Before a slow consumer no more waits than it takes in the target time; fast ones are not limited. A setting of the job.",
)
BUFFER_DEBLOAT_TARGET = _duration(
    "taskmanager.network.memory.buffer-debloat.target",
    "1 s",
    "How long what waits between two tasks should take the consumer, about: half of it at the producer's end. A consumer "
    "that works row by row has 20 ms at most.",
)
NETWORK_REQUEST_BACKOFF_MAX = _duration(
    "taskmanager.network.request-backoff.max", "10 s", "How long a consumer looks for a producer that is not there yet."
)
NETWORK_HOST_SOCKETS = _bool(
    "taskmanager.network.host-sockets",
    "true",
    "TaskManagers of one user on one host exchange rows by sockets of the host instead of Flight.",
)
SLOT_REQUEST_TIMEOUT = _duration("slot.request.timeout", "5 min", "A job that gets no slots within this fails.")
EXTERNAL_STATE_MAX_BYTES = _size(
    "external.state.max-bytes",
    "8 MiB",
    "The most state that a program outside may have at a checkpoint; it travels and is stored with the checkpoint's metadata.",
)
SLOT_IDLE_TIMEOUT = _duration("slot.idle.timeout", "50 s", "An idle slot of a job is given back after this.")
RESOURCEMANAGER_TASKMANAGER_TIMEOUT = _duration(
    "resourcemanager.taskmanager-timeout",
    "30 s",
    "A TaskManager in a Spark executor is released when it has been idle for this long; those of `snapline taskmanagers` stay, unless `--release-idle`.",
)
RESOURCEMANAGER_ADDRESS = _option(
    "resourcemanager.rpc.address",
    parse_address,
    "",
    "host:port of the coordinator whose ResourceManager gives the jobs of this one their slots, several with commas; empty: its own.",
    "string",
)
SLOTMANAGER_REQUIREMENT_CHECK_DELAY = _duration(
    "slotmanager.requirement-check-delay",
    "50 ms",
    "A job that a slot came back from is given another one after this, or as soon as it says again what it needs.",
)
RECONCILIATION_TIMEOUT = _duration(
    "jobmanager.reconciliation.timeout",
    "10 s",
    "How long a new leader waits for reports of what runs before it restarts a job.",
)
COORDINATOR_ADDRESS = _option(
    "jobmanager.rpc.address",
    parse_address,
    "127.0.0.1:6123",
    "host:port under which the coordinator is reached, and on which it listens.",
    "string",
)
COORDINATOR_BIND_HOST = _string(
    "jobmanager.bind-host",
    "",
    "Where the coordinator listens when that is not the host of its address, for example 0.0.0.0.",
)
RELAY_ADDRESS = _option(
    "relay.rpc.address",
    parse_own_address,
    "127.0.0.1:6125",
    "host:port under which a relay is reached, and on which it listens.",
    "string",
)
RELAY_BIND_HOST = _string(
    "relay.bind-host", "", "Where a relay listens when that is not the host of its address, for example 0.0.0.0."
)
RELAY_LINGER = _duration(
    "relay.linger",
    "5 ms",
    "How long a relay waits for more before it sends something to a coordinator; and again while more comes, four times in all at most.",
)
JOB_HISTORY_SIZE = _int(
    "jobstore.max-capacity",
    "1000",
    "Jobs that have ended which the coordinator remembers and keeps an archive of.",
    at_least=0,
)
MAX_JOBS = _int(
    "jobmanager.max-jobs",
    "300",
    "Jobs that a coordinator takes at a time; each has two threads and about 2 MB there. Jobs of a former leader start in any case.",
    at_least=1,
)
JOB_HISTORY_EXPIRATION = _duration(
    "jobstore.expiration-time",
    "30 d",
    "How long a job that has ended is kept in the archive of high-availability.storageDir; 0: for ever.",
)

# --- high availability ------------------------------------------------------------------------------------------------
HA_TYPE = _enum(
    "high-availability.type", "NONE", "Leader election and durable coordinator state.", "NONE", "embedded", "zookeeper"
)
HA_STORAGE_DIR = _string("high-availability.storageDir", "", "Where job graphs and pointers are kept.")
HA_CLUSTER_ID = _string("high-availability.cluster-id", "default", "Separates clusters that share a store.")
HA_ZOOKEEPER_QUORUM = _string("high-availability.zookeeper.quorum", "", "host:port,host:port,...")
HA_ZOOKEEPER_ROOT = _string("high-availability.zookeeper.path.root", "/snapline", "Root node in ZooKeeper.")
HA_ZOOKEEPER_SESSION_TIMEOUT = _duration(
    "high-availability.zookeeper.client.session-timeout",
    "10 s",
    "After so long without contact a coordinator is not leader any more, and another one takes over.",
)
HA_ZOOKEEPER_CONNECTION_TIMEOUT = _duration(
    "high-availability.zookeeper.client.connection-timeout", "15 s", "How long the first connection is tried."
)
HA_ZOOKEEPER_ACL = _enum(
    "high-availability.zookeeper.client.acl",
    "auto",
    "Who may read and write the nodes: everybody (open), only who has the same credentials (creator), or creator if there are credentials "
    "and open otherwise (auto).",
    "auto",
    "open",
    "creator",
)
HA_ZOOKEEPER_CREDENTIALS = _string(
    "high-availability.zookeeper.client.credentials", "", "user:password for ZooKeeper's digest authentication."
)
HA_ZOOKEEPER_SSL_CA = _string(
    "high-availability.zookeeper.client.ssl.ca-file",
    "",
    "PEM file of the authority of ZooKeeper's certificates; set: TLS to the ensemble, whose secure ports the quorum names then.",
)
HA_ZOOKEEPER_SSL_CERTIFICATE = _string(
    "high-availability.zookeeper.client.ssl.certificate-file", "", "PEM file of the certificate shown to ZooKeeper."
)
HA_ZOOKEEPER_SSL_KEY = _string(
    "high-availability.zookeeper.client.ssl.key-file", "", "PEM file of that certificate's private key."
)

# --- the page ---------------------------------------------------------------------------------------------------------
WEB_PORT = _int(
    "web.port",
    "8081",
    "Where a coordinator that runs as a service shows its page, with the extra web; 0: any port; -1: nowhere.",
    at_least=-1,
    at_most=65_535,
)
WEB_BIND_ADDRESS = _string(
    "web.bind-address", "127.0.0.1", "Address that the page listens on; others than loopback need a token or TLS."
)

TRACES_OTEL_ENDPOINT = _string(
    "traces.reporter.otel.exporter.endpoint",
    "",
    "Where a coordinator sends spans of checkpoints, restarts and rescales by OTLP over gRPC (http://host:4317), with the "
    "extra otlp; empty: nowhere.",
)
TRACES_OTEL_SERVICE_NAME = _string("traces.reporter.otel.service.name", "snapline", "What the traces call the service.")

# --- security, storage, logs ------------------------------------------------------------------------------------------
SECURITY_TOKEN = _string(
    "security.auth.token",
    "",
    "The cluster's secret, or a credential of `snapline credential`; several, separated by commas: the first is shown to others, and all "
    "are accepted; empty: none (loopback only).",
)
SECURITY_TOKEN_FILE = _string(
    "security.auth.file",
    "",
    "File with what `security.auth.token` would say, one a line; it is read again when it changes.",
)
SECURITY_PICKLED_JOBS = _bool(
    "security.pickled-jobs.allowed",
    "true",
    "Whether coordinators take, and TaskManagers run, jobs whose operators are pickles, as programs in Python submit them: who submits "
    "one runs code of his choice on TaskManagers. With `false` on all of them there are declared jobs and external tasks only.",
)
SECURITY_DECLARED_MODULES = _string(
    "security.declared-modules",
    "",
    "Modules, separated by commas, of which and below which declared jobs may name functions and classes (`module:name`) where "
    "`security.pickled-jobs.allowed` is false; empty: none, but the connectors of Snapline, which are named without a module.",
)
SECURITY_ADOPT_UNSIGNED = _bool(
    "security.storage.adopt-unsigned",
    "false",
    "Take over what lies unsigned in HA storage, with `security.storage.secrets`: for the first start with them only.",
)
SECURITY_STORAGE_SECRETS = _string(
    "security.storage.secrets",
    "",
    "Secrets of the coordinators, separated by commas: job graphs and pointers in HA storage are signed with the first, and those of "
    "all are accepted; empty: nothing is signed.",
)
SECURITY_MASTER_HOOKS = _bool(
    "security.master-hooks.allowed",
    "true",
    "Whether jobs may bring master hooks, which are code that runs inside of the coordinator; false: such a job is refused.",
)
SECURITY_SSL_CA = _string(
    "security.ssl.ca-file", "", "PEM file of the authority that signed the cluster's certificates; set: TLS everywhere."
)
SECURITY_SSL_CERTIFICATE = _string("security.ssl.certificate-file", "", "PEM file of this process's certificate.")
SECURITY_SSL_EXCHANGE_HOSTNAME = _string(
    "security.ssl.exchange.hostname",
    "",
    "Name that the certificates of TaskManagers carry, where their addresses are not known beforehand; empty: each one's address.",
)
SECURITY_SSL_KEY = _string("security.ssl.key-file", "", "PEM file of the certificate's private key.")
S3_ENDPOINT = _string("s3.endpoint", "", "Address of an S3 compatible server.")
S3_ACCESS_KEY = _string("s3.access-key", "", "Access key; otherwise from the environment.")
S3_SECRET_KEY = _string("s3.secret-key", "", "Secret key; otherwise from the environment.")
S3_REGION = _string("s3.region", "us-east-1", "Region.")
S3_ALLOW_HTTP = _bool("s3.allow-http", "false", "Plain HTTP, for servers on the same host.")
LOG_LEVEL = _enum("log.level", "INFO", "Least level that is logged.", "DEBUG", "INFO", "WARNING", "ERROR")


_BY_LOWER_CASE = {key.lower(): key for key in OPTIONS}


def nearest_key(key: str) -> str:
    """The known key that is most like the given one, or an empty string."""
    if key.lower() in NAMES_OF_FLINK_1:
        return NAMES_OF_FLINK_1[key.lower()]
    matches = difflib.get_close_matches(key.lower(), _BY_LOWER_CASE, n=1, cutoff=0.5)
    return _BY_LOWER_CASE[matches[0]] if matches else ""


def check_key(key: str) -> None:
    """Raise ConfigurationError unless the key is known; names the nearest."""
    if key not in OPTIONS and key not in ALIASES:
        near = nearest_key(key)
        hint = f"; did you mean {near!r}?" if near else "; `snapline config` lists all settings"
        raise ConfigurationError(f"unknown setting {key!r}{hint}")


def canonical_key(key: str) -> str:
    """The setting that the key means."""
    return ALIASES.get(key, key)


class Configuration(Mapping[str, str]):
    """Immutable settings, key to text. Keys and values are checked when they enter."""

    def __init__(
        self, values: Mapping[str, str] | Iterable[tuple[str, str]] = (), origins: Mapping[str, str] | None = None
    ) -> None:
        """`origins`: where values are from, by key, as far as that is known. Raises ConfigurationError for an unknown
        key or a value that cannot be read."""
        self.origins: Mapping[str, str] = dict(origins or {})
        self._values = {canonical_key(str(key)): str(value) for key, value in dict(values).items()}
        for key, value in self._values.items():
            check_key(key)
            OPTIONS[key].read(value)

    def get_option(self, option: ConfigOption[T]) -> T:
        """The value of the option, its default when it is not set."""
        return option.read(self._values.get(option.key, option.default))

    def with_values(self, values: Mapping[str, str]) -> Configuration:
        """A copy in which `values` win; they are from where their keys were."""
        known = {canonical_key(key): value for key, value in values.items()}
        return Configuration({**self._values, **known}, self.origins)

    def __getitem__(self, key: str) -> str:
        """The text of a key that was set. Raises KeyError."""
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys that were set."""
        return iter(self._values)

    def __len__(self) -> int:
        """Number of keys that were set."""
        return len(self._values)

    def __repr__(self) -> str:
        """Keys and values, secrets hidden."""
        shown = {k: ("***" if is_secret(k) else v) for k, v in self._values.items()}
        return f"Configuration({shown})"


def is_secret(key: str) -> bool:
    """Whether the value must not be shown (the words of Spark's `spark.redaction.regex`)."""
    return re.search(r"secret|password|token|access[.-]?key|credential", key, re.IGNORECASE) is not None
