"""The commands that bring a job to a cluster, or run it here: `run`, `submit`, `plan`, `update`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from snapline.commands.printing import echo
from snapline.commands.target import Target, absolute, with_coordinator, with_target
from snapline.dataflow.config import COORDINATOR_ADDRESS, DROP_STATE_COLUMNS, SECURITY_TOKEN, SECURITY_TOKEN_FILE
from snapline.restore_variables import ALLOW_NON_RESTORED_VARIABLE, CLAIM_VARIABLE, RESTORE_VARIABLE
from snapline.runtime.settings import hand_on


@click.command()
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
    origins = target.configuration.origins
    for option in () if local else (COORDINATOR_ADDRESS, SECURITY_TOKEN):
        if value := target.configuration.get_option(option):
            hand_on(os.environ, option.key, value, origins.get(option.key, "default"))
    if not local and target.configuration.get(SECURITY_TOKEN_FILE.key) == "":  # --token counts instead
        hand_on(os.environ, SECURITY_TOKEN_FILE.key, "", origins.get(SECURITY_TOKEN_FILE.key, "default"))
    if detached:
        os.environ["SNAPLINE_DETACHED"] = "1"
    if from_savepoint:
        os.environ[RESTORE_VARIABLE] = absolute(from_savepoint)
        os.environ[ALLOW_NON_RESTORED_VARIABLE] = "1" if allow_non_restored_state else ""
        os.environ[CLAIM_VARIABLE] = "1" if claim else ""
    if drop_state_columns:
        hand_on(os.environ, DROP_STATE_COLUMNS.key, "true", "--drop-state-columns")
    run_script(script, arguments)


@click.command()
@click.option("--detached", "-d", is_flag=True, help="return once the job is accepted")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_coordinator
def submit(target: Target, file: Path, *, detached: bool) -> None:
    """Submit a job that a file declares as JSON (protos/declared.proto), without any Python of its own."""
    from snapline.declared.submit_command import submit_declared

    submit_declared(target, file, detached=detached)


@click.command()
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
    from snapline.commands.plan_table import print_plan
    from snapline.plan import plan_job, snapshot_at_hand
    from snapline.program import translate_script

    if drop_state_columns:
        hand_on(os.environ, DROP_STATE_COLUMNS.key, "true", "--drop-state-columns")
    path = absolute(snapshot)
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


@click.command()
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
            directory=absolute(directory),
            timeout_s=timeout,
            allow_non_restored_state=allow_non_restored_state,
            say=lambda line: echo(line, err=True),
        )
    echo(json.dumps({"job_id": done.job_id, "savepoint": done.savepoint}) if target.as_json else done.job_id)
