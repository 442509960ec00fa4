"""The command `snapline`. What answers does so in a table, or with `--output json` as JSON; errors are one line and
exit 1."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message

import snapline
from snapline import diagnosis_commands
from snapline.client import ClusterClient
from snapline.config_command import config
from snapline.dataflow.config import (
    COORDINATOR_ADDRESS,
    DROP_STATE_COLUMNS,
    HA_TYPE,
    SECURITY_TOKEN,
    Configuration,
    ConfigurationError,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.dataflow.wire.statuses import decode_job_status
from snapline.external_commands import submit_external
from snapline.pack_command import pack
from snapline.printing import echo, print_table
from snapline.process_table import PROCESS_COLUMNS, process_row, words_of_process
from snapline.protos import checkpoint_pb2, job_pb2
from snapline.protos import client_pb2 as pb
from snapline.reporting import INTERRUPTED, print_error, print_interrupted
from snapline.restore_variables import ALLOW_NON_RESTORED_VARIABLE, CLAIM_VARIABLE, RESTORE_VARIABLE
from snapline.resumable_command import show_resumable
from snapline.runtime.absolute_paths import path_to_send
from snapline.runtime.settings import Setting, default_layers, hand_on, resolve
from snapline.security_commands import certificates, credential
from snapline.state_commands import state
from snapline.transaction_commands import end_by_hand, list_transactions
from snapline.trial_commands import down, up

MOST = (1 << 63) - 1
"""The greatest number that a request has room for."""
LINES, PARALLELISM = click.IntRange(0, 2_000), click.IntRange(1, UPPER_BOUND_MAX_PARALLELISM)


class Target:
    """Which coordinator, and how to print."""

    def __init__(self, coordinator: str, token: str, output: str) -> None:
        layers = default_layers(os.environ)
        given = {}
        ha = layers.get(HA_TYPE.key)
        if coordinator and ha is not None and ha.value.strip().lower() == "zookeeper":
            raise ConfigurationError(
                f"--coordinator {coordinator} contradicts {HA_TYPE.key} = zookeeper (from {ha.origin}), which says who leads: leave one of "
                "them out (SNAPLINE_CONF_high_availability__type=NONE for this command)"
            )
        if coordinator:
            given[COORDINATOR_ADDRESS.key] = Setting(coordinator, "--coordinator")
        if token:
            given[SECURITY_TOKEN.key] = Setting(token, "--token")
        self.configuration: Configuration = resolve(layers, given)
        self.as_json = output == "json"

    def client(self) -> ClusterClient:
        """A connection to the coordinator: the one that was configured, else the one beside a driver of this user.
        Raises SnaplineError where several run so."""
        from snapline.beside_drivers import running

        known = running()
        address = self.configuration.get(COORDINATOR_ADDRESS.key, "")
        if not address and self.configuration.get_option(HA_TYPE) != "zookeeper" and known:
            if len(known) > 1:
                named = ", ".join(f"-m {each.address} (driver {each.pid})" for each in known)
                raise SnaplineError(f"{len(known)} jobs run beside their drivers here: say which with {named}")
            address = known[0].address
            line = f"using the coordinator at {address}, beside driver {known[0].pid}; -m HOST:PORT names another one"
            echo(line, err=True)
        values = {COORDINATOR_ADDRESS.key: address} if address else {}
        tokens = [each.token for each in known if each.address == address]
        if tokens and SECURITY_TOKEN.key not in self.configuration:
            values[SECURITY_TOKEN.key] = tokens[0]
        return ClusterClient.from_configuration(self.configuration.with_values(values))

    def show(self, messages: Sequence[Message], columns: Sequence[str], row: Callable[[Any], Sequence[str]]) -> None:
        """Print messages, one row each."""
        if self.as_json:
            dicts = [message_as_dict(m) for m in messages]
            echo(json.dumps(dicts, indent=2))
            return
        print_table(columns, map(row, messages))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(snapline.__version__, prog_name="snapline")
def cli() -> None:
    """Exactly-once streaming Python on Spark."""


def with_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that has to do with a coordinator. Those that answer nothing themselves have
    only these."""

    @click.option("--coordinator", "-m", default="", help="host:port (setting jobmanager.rpc.address)")
    @click.option("--token", default="", help="shared secret (setting security.auth.token)")
    @functools.wraps(command)
    def wrapped(coordinator: str, token: str, output: str = "table", **others: Any) -> None:
        command(Target(coordinator, token, output), **others)

    return wrapped


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has which answers."""
    return click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")(
        with_coordinator(command)
    )


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def coordinator(arguments: tuple[str, ...]) -> None:
    """Run a coordinator in the foreground (`snapline coordinator --help` for its options)."""
    from snapline.coordinator.__main__ import main as run_coordinator

    sys.exit(run_coordinator(list(arguments)))


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def relay(arguments: tuple[str, ...]) -> None:
    """Run a relay in the foreground, between many TaskManagers and their coordinator (`snapline relay --help`)."""
    from snapline.runtime.relay.relay_process import main as run_relay

    sys.exit(run_relay(list(arguments)))


@cli.command()
@click.option("--local", is_flag=True, help="in this process, without Java, Spark and a coordinator")
@click.option("--threads", type=click.IntRange(min=1), help="of a local run; with more than one, each task has its own")
@click.option("--detached", "-d", is_flag=True, help="return once the job is accepted")
@click.option("--from-savepoint", "-s", default="", help="start from this savepoint or retained checkpoint")
@click.option("--allow-non-restored-state", "-n", is_flag=True, help="drop state of operators that are gone")
@click.option(
    "--drop-state-columns", is_flag=True, help="drop columns of states that the job does not declare any more"
)
@click.option(
    "--claim", is_flag=True, help="the job owns the snapshot from now on, and deletes it when it needs it no more"
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_coordinator
def run(
    target: Target,
    script: Path,
    arguments: tuple[str, ...],
    *,
    local: bool,
    threads: int | None,
    detached: bool,
    from_savepoint: str,
    allow_non_restored_state: bool,
    drop_state_columns: bool,
    claim: bool,
) -> None:
    """Run a job script against a coordinator, or with --local in this process: `snapline run job.py -- --its-own
    options`."""
    from snapline.local.local_execution import LOCAL_VARIABLE
    from snapline.program import run_script

    if local and detached:
        raise click.UsageError("--detached: a local run ends with its process, so there is nothing to return from")
    if threads and not local:
        raise click.UsageError("--threads is for local runs: give --local, too")
    if local:
        os.environ[LOCAL_VARIABLE] = str(threads or 1)
    for option in () if local else (COORDINATOR_ADDRESS, SECURITY_TOKEN):
        if value := target.configuration.get_option(option):
            hand_on(os.environ, option.key, value, target.configuration.origins.get(option.key, "default"))
    if detached:
        os.environ["SNAPLINE_DETACHED"] = "1"
    if from_savepoint:
        os.environ[RESTORE_VARIABLE] = _absolute(from_savepoint)
        os.environ[ALLOW_NON_RESTORED_VARIABLE] = "1" if allow_non_restored_state else ""
        os.environ[CLAIM_VARIABLE] = "1" if claim else ""
    if drop_state_columns:
        hand_on(os.environ, DROP_STATE_COLUMNS.key, "true", "--drop-state-columns")
    run_script(script, arguments)


@cli.command()
@click.option("--detached", "-d", is_flag=True, help="return once the job is accepted")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_coordinator
def submit(target: Target, file: Path, *, detached: bool) -> None:
    """Submit a job that a file declares as JSON (protos/declared.proto), without any Python of its own."""
    from snapline.declared.submit_command import submit_declared

    submit_declared(target, file, detached=detached)


@cli.command()
@click.option("--from", "-s", "snapshot", required=True, help="directory of a savepoint or checkpoint")
@click.option("--allow-non-restored-state", "-n", is_flag=True, help="drop state of operators that are gone")
@click.option(
    "--drop-state-columns", is_flag=True, help="drop columns of states that the job does not declare any more"
)
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan(
    snapshot: str,
    script: Path,
    arguments: tuple[str, ...],
    output: str,
    *,
    allow_non_restored_state: bool,
    drop_state_columns: bool,
) -> None:
    """What of a snapshot a job would take over, without running anything: `snapline plan --from PATH job.py -- --its
    options`.

    Exit code 0: the job would start from it; 1: it would be refused.
    """
    from snapline.plan import plan_job, snapshot_at_hand
    from snapline.plan_table import print_plan
    from snapline.program import translate_script

    if drop_state_columns:
        hand_on(os.environ, DROP_STATE_COLUMNS.key, "true", "--drop-state-columns")
    path = _absolute(snapshot)
    at_hand = snapshot_at_hand(path)
    translation = translate_script(script, arguments)
    for warning in translation.warnings:
        echo(f"snapline: {warning}", err=True)
    answer = plan_job(translation, path, at_hand, allow_non_restored_state=allow_non_restored_state)
    if output == "json":
        echo(json.dumps(answer.as_dict(), indent=2))
    else:
        print_plan(answer)
    if not answer.would_start:
        sys.exit(1)


@cli.command()
@click.option("--directory", "-p", default="", help="where the savepoints go")
@click.option(
    "--timeout", type=click.IntRange(min=1), default=120, show_default=True, help="seconds for its first checkpoint"
)
@click.option("--allow-non-restored-state", "-n", is_flag=True, help="drop state of operators that are gone")
@click.argument("job")
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_target
def update(
    target: Target,
    job: str,
    script: Path,
    arguments: tuple[str, ...],
    directory: str,
    timeout: int,
    *,
    allow_non_restored_state: bool,
) -> None:
    """Let another version of a job take its place: savepoint, plan, start; back to the old one when the new one does
    not get to its first checkpoint. `snapline update JOB job.py -- --its-own options`."""
    from snapline.job_update import update_job
    from snapline.program import translate_script

    with target.client() as client:
        job_id = client.resolve_job(job)  # before the script runs, which may take long
        done = update_job(
            client,
            job_id,
            translate_script(script, arguments),
            directory=_absolute(directory),
            timeout_s=timeout,
            allow_non_restored_state=allow_non_restored_state,
            say=lambda line: echo(line, err=True),
        )
    echo(json.dumps({"job_id": done.job_id, "savepoint": done.savepoint}) if target.as_json else done.job_id)


@cli.command("list")
@with_target
def list_jobs(target: Target) -> None:
    """List all jobs of the cluster, the newest first."""
    with target.client() as client:
        jobs = client.list_jobs()
    target.show(jobs, ["JOB ID", "NAME", "STATUS", "STARTED", "RESTARTS", "CHECKPOINT"], _job_row)


@cli.command()
@click.argument("job")
@with_target
def status(target: Target, job: str) -> None:
    """One job with its tasks. JOB is an id, the beginning of one, or a name."""
    with target.client() as client:
        details = client.get_job(client.resolve_job(job))
        runs_on = {subtask.resource_id for vertex in details.vertices for subtask in vertex.subtasks}
        hosts = [] if target.as_json else [each for each in client.list_task_managers() if each.resource_id in runs_on]
        found = None if target.as_json else client.explain_job(details.overview.job_id, without_stacks=True)
    if target.as_json:
        echo(json.dumps(message_as_dict(details), indent=2))
        return
    overview = details.overview
    echo(
        f"{overview.name} ({overview.job_id})  {decode_job_status(overview.status).value}  {overview.restarts} restarts"
    )
    if overview.status_detail:
        echo(overview.status_detail)
    if overview.HasField("failure"):
        echo(f"last failure: {overview.failure.summary}")
    if details.operator_failures:
        each = sorted(details.operator_failures.items(), key=lambda item: (-item[1], item[0]))
        echo(f"failures by operator: {', '.join(f'{uid} {count:,}' for uid, count in each)}")
    if found is not None and found.findings:
        echo(f"{found.findings[0].kind}: {found.findings[0].summary} (snapline why says more)")
    target.show(
        list(details.vertices),
        ["TASK", "PARALLELISM", "STATES", "ROWS IN", "ROWS OUT", "BUSIEST", "BACK-PRESSURED", "ROWS/S"],
        _vertex_row,
    )
    if hosts:
        target.show(hosts, PROCESS_COLUMNS, process_row)


@cli.command()
@click.argument("job")
@click.option("--stacks", is_flag=True, help="with the stack of each thread that is named")
@with_target
def why(target: Target, job: str, *, stacks: bool) -> None:
    """What holds a job up: which subtask, what it does, and which checkpoint waits for whom."""
    diagnosis_commands.explain_job(target, job, with_stacks=stacks)


@cli.command()
@click.argument("job_or_taskmanager")
@click.option("--all", "everything", is_flag=True, help="the engine's own threads, too")
@with_target
def stack(target: Target, job_or_taskmanager: str, *, everything: bool) -> None:
    """Where the threads of a job's tasks, or of a TaskManager, are now; the innermost frame first."""
    diagnosis_commands.print_stacks(target, job_or_taskmanager, everything=everything)


@cli.command()
@click.argument("job_or_taskmanager")
@click.option("--lines", type=LINES, default=200, show_default=True, help="the last ones of each TaskManager")
@click.option("--level", default="", help="write DEBUG (INFO, ...) and above from now on; also of `coordinator`")
@with_target
def logs(target: Target, job_or_taskmanager: str, lines: int, level: str) -> None:
    """The last lines that a job's TaskManagers, or one, have written: their log, and what functions print."""
    diagnosis_commands.print_logs(target, job_or_taskmanager, lines, level)


@cli.command()
@click.argument("job_or_taskmanager")
@click.option("--seconds", type=click.IntRange(1, 600), default=10, show_default=True, help="how long to look")
@click.option(
    "--file", "-f", type=click.Path(dir_okay=False, path_type=Path), default=Path("profile.html"), show_default=True
)
@click.option("--heap", is_flag=True, help="print instead who keeps more and more memory")
@with_target
def profile(target: Target, job_or_taskmanager: str, *, seconds: int, file: Path, heap: bool) -> None:
    """Where the time of a job's tasks goes: a flame graph as one HTML file. With --heap, where memory goes."""
    if heap:
        diagnosis_commands.print_heap(target, job_or_taskmanager, seconds)
    else:
        diagnosis_commands.write_profile(target, job_or_taskmanager, seconds, file)


@cli.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=None, help="setting web.port; 0: any")
@click.option("--bind", default="", help="setting web.bind-address")
@with_coordinator
def ui(target: Target, *, port: int | None, bind: str) -> None:
    """Serve the page of a cluster from here, until Ctrl-C."""
    diagnosis_commands.serve_page(target.configuration, port, bind)


@cli.command()
@with_target
def history(target: Target) -> None:
    """Jobs that have ended, the latest first; `snapline status JOB` and `snapline checkpoints JOB` show one of them."""
    with target.client() as client:
        jobs = diagnosis_commands.ended_jobs(client.list_jobs())
    target.show(jobs, ["JOB ID", "NAME", "STATUS", "STARTED", "ENDED", "RESTARTS", "CAUSE"], _history_row)


@cli.command()
@click.argument("job")
@with_target
def cancel(target: Target, job: str) -> None:
    """Cancel a job; its committed output and retained checkpoints stay."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        client.cancel(job_id)
    echo(json.dumps({"job_id": job_id}) if target.as_json else f"cancelling {job_id}")


@cli.command()
@click.argument("job")
@click.option("--parallelism", "-p", type=PARALLELISM, required=True, help="subtasks of every vertex")
@with_target
def rescale(target: Target, job: str, parallelism: int) -> None:
    """Give a running job another parallelism: it stands still from the end of a checkpoint until its tasks run again.

    The job goes on as it is until the slots are there; if they do not come (slot.request.timeout), it stays so, and
    exit code 1 says it. Until then `snapline status` says what is waited for, another rescale takes its place, and the
    parallelism that the job has takes it back. Ctrl-C ends this command only.
    """
    with target.client() as client:
        job_id = client.resolve_job(job)
        try:
            client.rescale(job_id, parallelism)
        except KeyboardInterrupt:
            goes_on = f"the rescale goes on; while it waits for slots, `snapline rescale {job} -p N` takes it back with the N of before"
            raise KeyboardInterrupt(goes_on) from None
    answer = {"job_id": job_id, "parallelism": parallelism}
    echo(json.dumps(answer) if target.as_json else f"{job_id} runs with parallelism {parallelism}")


@cli.command()
@click.argument("job")
@click.option(
    "--id", "checkpoint_id", type=click.IntRange(1, MOST), help="this one, task by task: what its slowest subtask took"
)
@with_target
def checkpoints(target: Target, job: str, checkpoint_id: int | None) -> None:
    """Checkpoints of a job, newest first."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        if checkpoint_id is not None:
            _show_checkpoint(target, client.get_checkpoint(job_id, checkpoint_id))
            return
        answer = client.list_checkpoints(job_id)
    if target.as_json:
        echo(json.dumps(message_as_dict(answer), indent=2))
        return
    counts = answer.counts
    echo(
        f"{counts.triggered} triggered, {counts.completed} completed, {counts.failed} failed, "
        f"{counts.in_progress} in progress, {counts.restored} restored"
    )
    if answer.refusal:
        echo(f"none can be triggered: {answer.refusal}")
    target.show(
        list(answer.history), ["ID", "KIND", "STATUS", "ACKS", "TRIGGERED", "DURATION", "SIZE", "WHY"], _checkpoint_row
    )


class SavepointGroup(click.Group):
    """`snapline savepoint JOB` is short for `snapline savepoint trigger JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command in that was left out."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["trigger", *args]
        return super().parse_args(ctx, args)


@cli.group()
def external() -> None:
    """Jobs whose tasks are programs outside, in any language (docs/external.md)."""


@external.command("submit")
@click.argument("name")
@click.option(
    "--task", "tasks", multiple=True, metavar="NAME=NUMBER", help="an external task and its number of programs"
)
@click.option(
    "--tasks", "programs", type=click.IntRange(min=1), help="so many programs of one task, which is called task"
)
@click.option("-D", "settings", multiple=True, metavar="KEY=VALUE", help="one setting of the job")
@click.option("--from-savepoint", "-s", default="", help="start from this savepoint or retained checkpoint")
@click.option("--allow-non-restored-state", "-n", is_flag=True, help="drop state of tasks that are gone")
@click.option("--claim", is_flag=True, help="the job owns the snapshot from now on")
@with_coordinator
def submit_programs(
    target: Target,
    name: str,
    tasks: tuple[str, ...],
    programs: int | None,
    settings: tuple[str, ...],
    from_savepoint: str,
    *,
    allow_non_restored_state: bool,
    claim: bool,
) -> None:
    """Submit a job of external tasks, for which programs then register: `snapline external submit fleet --task
    orders=2`."""
    savepoint = (_absolute(from_savepoint), allow_non_restored_state, claim)
    submit_external(target, name, tasks, programs, settings, savepoint)


cli.add_command(certificates)
cli.add_command(credential)
cli.add_command(pack)
cli.add_command(state)
cli.add_command(show_resumable)
cli.add_command(up)
cli.add_command(config)
cli.add_command(down)


@cli.group(cls=SavepointGroup)
def savepoint() -> None:
    """Take or dispose of savepoints; `snapline savepoint JOB [DIRECTORY]` takes one."""


@savepoint.command()
@click.argument("job")
@click.argument("directory", default="")
@with_target
def trigger(target: Target, job: str, directory: str) -> None:
    """Take a savepoint; prints its path."""
    with target.client() as client:
        path = client.trigger_savepoint(client.resolve_job(job), _absolute(directory))
    echo(json.dumps({"path": path}) if target.as_json else path)


@savepoint.command()
@click.argument("path")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")
def dispose(path: str, output: str) -> None:
    """Delete a savepoint with its files, and nothing else. A job that was started from it without --claim must have
    completed a checkpoint of its own before."""
    from snapline.coordinator.snapshots import dispose_savepoint
    from snapline.runtime.storage.object_storage import open_storage
    from snapline.runtime.storage.state_storages import StateStorages

    configuration = resolve(default_layers(os.environ))
    disposed = dispose_savepoint(StateStorages(lambda url: open_storage(url, configuration)), _absolute(path))
    if output == "json":
        echo(json.dumps({"path": disposed.location, "files": disposed.files, "kept": list(disposed.kept)}))
        return
    echo(f"disposed of {disposed.location}, {disposed.files} files")
    if disposed.kept:
        echo(f"kept what is not of the savepoint: {', '.join(disposed.kept)}", err=True)


@savepoint.command()
@click.argument("path")
def adopt(path: str) -> None:
    """Sign a savepoint or checkpoint that this cluster has not written, or not with its keys, with the first of
    `security.storage.secrets`, so that it is restored. Everything that it holds runs with the rights of its job; files
    outside of its directory are refused, but for those that checkpoints share."""
    from snapline.coordinator.snapshots import adopt_snapshot
    from snapline.runtime.signing import Signer
    from snapline.runtime.storage.object_storage import open_storage
    from snapline.runtime.storage.state_storages import StateStorages

    configuration = resolve(default_layers(os.environ))
    signer = Signer.of_storage(configuration)
    if not signer.keys:
        raise ConfigurationError("security.storage.secrets is not set: snapshots are signed with it")
    storages = StateStorages(lambda url: open_storage(url, configuration))
    echo(f"adopted {adopt_snapshot(storages, _absolute(path), signer).location}")


@cli.group()
def transactions() -> None:
    """See and end what a lost job left open: JOB_OR_SNAPSHOT is a job that has ended, or a snapshot's directory."""


@transactions.command("ls")
@click.argument("job_or_snapshot")
@with_target
def list_open(target: Target, job_or_snapshot: str) -> None:
    """What sinks have pre-committed in a snapshot; some of it may be committed by now."""
    list_transactions(target, job_or_snapshot)


def _ends_transactions(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
        click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.argument("job_or_snapshot"),
        click.option("--uid", default="", help="of this sink only"),
    ):
        command = option(command)
    return command


@transactions.command()
@_ends_transactions
@with_target
def commit(target: Target, job_or_snapshot: str, script: Path, arguments: tuple[str, ...], uid: str) -> None:
    """Make it visible, with the sinks of the job's program, which is not run: `snapline transactions commit PATH job.py
    -- --its options`. To repeat it changes nothing."""
    end_by_hand(target, job_or_snapshot, script, arguments, uid, commit=True, is_sure=True)


@transactions.command()
@_ends_transactions
@click.option("--yes", "-y", is_flag=True, help="do not ask")
@with_target
def abort(
    target: Target, job_or_snapshot: str, script: Path, arguments: tuple[str, ...], uid: str, *, yes: bool
) -> None:
    """Give it up for ever: its rows will never be visible, and no job can start from this snapshot with this sink."""
    end_by_hand(target, job_or_snapshot, script, arguments, uid, commit=False, is_sure=yes)


@cli.command()
@click.argument("job")
@click.option("--directory", "-p", default="", help="where the savepoint goes")
@click.option("--drain", is_flag=True, help="fire all windows and timers first; the job ends for good")
@with_target
def stop(target: Target, job: str, directory: str, *, drain: bool) -> None:
    """Stop a job with a savepoint; prints its path."""
    with target.client() as client:
        path = client.stop_with_savepoint(client.resolve_job(job), _absolute(directory), drain=drain)
    echo(json.dumps({"path": path}) if target.as_json else path)


@cli.command()
@click.argument("job")
@click.argument("uid")
@click.option("--rows", type=click.IntRange(1, 10_000), default=10, show_default=True, help="rows a second, at most")
@click.option(
    "--bytes",
    "max_bytes",
    type=click.IntRange(1, MOST),
    default=65_536,
    show_default=True,
    help="bytes a second, at most",
)
@click.option("--limit", type=click.IntRange(min=1), help="end after so many rows; else with Ctrl-C or the job")
@with_target
def tap(target: Target, job: str, uid: str, *, rows: int, max_bytes: int, limit: int | None) -> None:
    """Show rows that the operator UID of a running job puts out, a JSON object a line."""
    from snapline.tapped import as_json, follow

    with target.client() as client:
        job_id = client.resolve_job(job)
        for row in follow(client, job_id, uid, rows_per_second=rows, bytes_per_second=max_bytes, limit=limit):
            echo(as_json(row))


@cli.command("cluster")
@with_target
def task_managers(target: Target) -> None:
    """The TaskManagers that are registered, and their slots."""
    with target.client() as client:
        found = client.list_task_managers()
        own = client.overview().process
    if not target.as_json:
        echo(f"coordinator: {', '.join(words_of_process(own))}")
    target.show(found, PROCESS_COLUMNS, process_row)


@cli.group(invoke_without_command=True)
@click.option(
    "--instances",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="how many TaskManagers; also while no job needs them",
)
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="slots of each")
@click.option("--release-idle", is_flag=True, help="give back those that no job needs, until one does")
@with_coordinator
def taskmanagers(target: Target, *, instances: int, slots: int, release_idle: bool) -> None:
    """Bring TaskManagers to a coordinator from a Spark application: keeps them alive until interrupted."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    from snapline.task_manager_launcher import bring_task_managers

    bring_task_managers(target.configuration, instances=instances, slots=slots, release_idle=release_idle)


@taskmanagers.command()
@click.argument("taskmanager")
@click.option("--undo", is_flag=True, help="let it have tasks again")
@with_target
def drain(target: Target, taskmanager: str, *, undo: bool) -> None:
    """Move the tasks of a TaskManager to others before it is stopped: by a rescale, not by a failure. It gets no new
    ones."""
    from snapline.drain_command import drain_task_manager

    drain_task_manager(target, taskmanager, undo=undo)


def _job_row(job: pb.JobOverview) -> list[str]:
    return [
        job.job_id,
        job.name,
        decode_job_status(job.status).value,
        _time(job.start_time_ms),
        str(job.restarts),
        str(job.latest_completed_checkpoint_id or "-"),
    ]


def _history_row(job: pb.JobOverview) -> list[str]:
    return [
        job.job_id,
        job.name,
        decode_job_status(job.status).value,
        _time(job.start_time_ms),
        _time(job.end_time_ms),
        str(job.restarts),
        job.failure.summary if job.HasField("failure") else "",
    ]


def _vertex_row(vertex: pb.VertexDetails) -> list[str]:
    states: dict[str, int] = {}
    for subtask in vertex.subtasks:
        name = job_pb2.ExecutionState.Name(subtask.state).removeprefix("EXECUTION_STATE_")
        states[name] = states.get(name, 0) + 1
    busiest = max(vertex.subtasks, key=lambda s: s.busy_ms_per_second, default=pb.SubtaskDetails())
    pressed = max((s.backpressured_ms_per_second for s in vertex.subtasks), default=0)
    which = f" ({busiest.subtask_index + 1}/{vertex.parallelism})" if vertex.parallelism > 1 else ""
    return [
        vertex.name,
        str(vertex.parallelism),
        ", ".join(f"{n} {name}" for name, n in sorted(states.items())),
        f"{sum(s.records_in for s in vertex.subtasks):,}",
        f"{sum(s.records_out for s in vertex.subtasks):,}",
        f"{busiest.busy_ms_per_second // 10} %{which}",
        f"{pressed // 10} %",
        f"{sum(s.records_in_per_second for s in vertex.subtasks):,}",
    ]


def _checkpoint_row(checkpoint: pb.CheckpointOverview) -> list[str]:
    return [
        str(checkpoint.checkpoint_id),
        checkpoint_pb2.SnapshotType.Name(checkpoint.snapshot_type).removeprefix("SNAPSHOT_TYPE_").lower(),
        pb.CheckpointStatus.Name(checkpoint.status).removeprefix("CHECKPOINT_STATUS_").lower(),
        f"{checkpoint.subtasks_acknowledged}/{checkpoint.subtasks_total}",
        _time(checkpoint.trigger_timestamp_ms),
        f"{checkpoint.end_to_end_duration_ms} ms",
        f"{checkpoint.checkpointed_size_bytes:,} B",
        checkpoint.failure.message if checkpoint.HasField("failure") else "",
    ]


def _show_checkpoint(target: Target, details: pb.CheckpointDetails) -> None:
    if target.as_json:
        echo(json.dumps(message_as_dict(details), indent=2))
        return
    columns = ["TASK", "ACKS", "START DELAY", "ALIGNMENT", "SYNC", "ASYNC", "SIZE"]
    target.show(list(details.vertices), columns, _vertex_checkpoint_row)


def _vertex_checkpoint_row(vertex: pb.VertexCheckpointDetails) -> list[str]:
    metrics = [subtask.metrics for subtask in vertex.subtasks]
    slowest = (
        max((m.checkpoint_start_delay_ms for m in metrics), default=0),
        max((m.alignment_duration_ms for m in metrics), default=0),
        max((m.sync_duration_ms for m in metrics), default=0),
        max((m.async_duration_ms for m in metrics), default=0),
    )
    return [
        vertex.name,
        f"{sum(1 for s in vertex.subtasks if s.acknowledge_timestamp_ms)}/{len(vertex.subtasks)}",
        *(f"{ms} ms" for ms in slowest),
        f"{sum(s.state_size_bytes for s in vertex.subtasks):,} B",
    ]


def _absolute(path: str) -> str:
    """A relative path is one of this directory; none stays none."""
    return path if not path or "://" in path else str(path_to_send(path))


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if timestamp_ms else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: one line for what a user can mend, a traceback only when asked for; 130 after Ctrl-C, as of a
    shell."""
    try:
        code = cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort as error:  # what click makes of Ctrl-C
        print_interrupted(error.__cause__)
        code = INTERRUPTED
    except SnaplineError as error:
        print_error(error)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
