"""`snapline transactions ls|commit|abort`: what a lost job left open, and its end.

Decides which snapshot is meant (a directory, or the latest of a job that a coordinator knows), that a job which still
runs is left alone, and what is shown. What is open, and how it ends, is `open_transactions`' business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapline.commands.printing import echo, print_table
from snapline.commands.target import Target, with_target
from snapline.dataflow.wire.statuses import decode_job_status
from snapline.runtime.absolute_paths import absolute_path

if TYPE_CHECKING:
    from snapline.open_transactions import OpenTransaction


@click.group()
def transactions() -> None:
    """See and end what a lost job left open: JOB_OR_SNAPSHOT is a job that has ended, or a snapshot's directory."""


@transactions.command("ls")
@click.argument("job_or_snapshot")
@with_target
def list_open(target: Target, job_or_snapshot: str) -> None:
    """What sinks have pre-committed in a snapshot; some of it may be committed by now."""
    from snapline.open_transactions import open_snapshot, open_transactions

    path = _snapshot(target, job_or_snapshot, ends=False)
    found = open_transactions(*open_snapshot(path))
    if target.as_json:
        echo(json.dumps([_described(each) for each in found], indent=2))
        return
    if not found:
        echo(f"{path} holds nothing that is pre-committed")
        return
    shown = []
    for each in found:
        rows = "" if each.rows is None else f"{each.rows:,}"
        count = str(len(each.committables))
        shown.append((each.sink_uid, each.job_id, str(each.checkpoint_id), count, rows, each.what))
    print_table(("SINK", "JOB", "CHECKPOINT", "COMMITTABLES", "ROWS", "WHAT"), shown)


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
    _end_by_hand(target, job_or_snapshot, script, arguments, uid, commit=True, is_sure=True)


@transactions.command()
@_ends_transactions
@click.option("--yes", "-y", is_flag=True, help="do not ask")
@with_target
def abort(
    target: Target, job_or_snapshot: str, script: Path, arguments: tuple[str, ...], uid: str, *, yes: bool
) -> None:
    """Give it up for ever: its rows will never be visible, and no job can start from this snapshot with this sink."""
    _end_by_hand(target, job_or_snapshot, script, arguments, uid, commit=False, is_sure=yes)


def _end_by_hand(
    target: Target, what: str, script: Path, arguments: tuple[str, ...], uid: str, *, commit: bool, is_sure: bool
) -> None:
    """Commit or abort what is pre-committed in a snapshot, with the sinks of the job's program."""
    from snapline.open_transactions import TransactionError, end_transactions, open_snapshot, open_transactions
    from snapline.program import translate_script

    path = _snapshot(target, what, ends=True)
    found = [each for each in open_transactions(*open_snapshot(path)) if not uid or uid in {each.uid, each.sink_uid}]
    if not found:
        of_uid = f" of a sink {uid!r}" if uid else ""
        raise TransactionError(f"{path} holds nothing{of_uid} that is pre-committed")
    if not commit and not is_sure:
        rows = sum(each.rows or 0 for each in found)
        question = f"{rows:,} rows in {len(found)} transactions will be lost. Abort them?"
        if not _is_confirmed(question):
            raise TransactionError("nothing was aborted; --yes says yes without a question")
    translation = translate_script(script, arguments)
    done, before = "committed", "was committed already"
    if not commit:
        done, before = "aborted", "was committed already, or aborted: there was nothing to abort"
    ended = []
    try:
        for each, was_open in end_transactions(found, translation.job_graph, commit=commit):
            ended.append({**_described(each), "ended": done if was_open else before})
            if not target.as_json:
                which = f"checkpoint {each.checkpoint_id} of sink {each.sink_uid!r}"
                echo(f"{done} {which}: {each.what}" if was_open else f"{which} {before}")
    finally:  # where a later one cannot be ended, too
        if target.as_json and ended:
            echo(json.dumps(ended, indent=2))


def _is_confirmed(question: str) -> bool:
    """The answer of whoever sits there; no, where nobody does."""
    try:
        return click.confirm(question, err=True)
    except click.Abort as refusal:  # click makes one of Ctrl-C and of the end of the input
        if not isinstance(refusal.__context__, EOFError):
            raise
        echo("", err=True)
        return False


def _snapshot(target: Target, what: str, *, ends: bool) -> str:
    """Path of the snapshot that is meant. Raises TransactionError when there is none."""
    from snapline.coordinator.snapshots import NoSnapshot
    from snapline.open_transactions import TransactionError, open_snapshot

    if "://" in what:
        return what
    if "/" in what or os.path.exists(what):  # noqa: PTH110 - that of a path raises for a name that is too long
        return str(absolute_path(what))
    with target.client() as client:
        job_id = client.resolve_job(what)
        status = decode_job_status(client.get_job(job_id).overview.status)
        found = client.list_checkpoints(job_id)
    if ends and not status.is_globally_terminal:
        raise TransactionError(f"job {job_id} is {status.name}, and ends its transactions itself; cancel it first")
    latest = (
        found.latest_completed,
        found.latest_savepoint,
    )  # so many may have failed since that the history has neither
    paths = {each.checkpoint_id: each.path for each in (*found.history, *latest) if each.path}
    for _, path in sorted(paths.items(), reverse=True):  # the newest first; some are subsumed, or were not kept
        try:
            open_snapshot(path)
        except NoSnapshot:
            continue
        return path
    raise TransactionError(
        f"job {job_id} has no checkpoint that is still there; name the directory of a savepoint or of a retained checkpoint"
    )


def _described(each: OpenTransaction) -> dict[str, Any]:
    return {
        "sink_uid": each.sink_uid,
        "job_id": each.job_id,
        "checkpoint_id": each.checkpoint_id,
        "rows": each.rows,
        "committables": list(each.committables),
    }
