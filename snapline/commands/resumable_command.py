"""`snapline resumable DIRECTORY`: how far the partitions of a resumable function are."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

import click

from snapline.commands.printing import echo, print_table


@click.command("resumable")
@click.argument("directory")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")
def show_resumable(directory: str, output: str) -> None:
    """How far each partition of a resumable function is: rows, rate and remaining time. DIRECTORY: as `directory` of
    what `resumable` has returned."""
    from snapline.embed.partition_log import read_progress
    from snapline.environment import StreamExecutionEnvironment, absolute_path
    from snapline.runtime.storage.object_storage import open_storage

    configuration = StreamExecutionEnvironment.get_execution_environment().configuration
    found = read_progress(open_storage(absolute_path(directory), configuration))
    if not found:
        raise click.ClickException(f"no partition has taken a checkpoint in {directory}")
    if output == "json":
        echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    shown = []
    for each in found:
        remaining = "" if each.remaining_s is None else f"{each.remaining_s:,.0f} s"
        state = "finished" if each.is_finished else "running"
        numbers = (str(each.partition), f"{each.rows:,}", f"{each.rows_out:,}", f"{each.rows_per_second:,.0f}")
        as_of = datetime.fromtimestamp(each.updated_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        shown.append((*numbers, remaining, str(each.attempt), state, as_of))
    print_table(("PARTITION", "ROWS", "ROWS OUT", "ROWS/S", "REMAINING", "ATTEMPT", "STATE", "AS OF"), shown)
