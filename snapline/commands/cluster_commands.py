"""The commands of a cluster's processes: `coordinator`, `relay`, `taskmanagers`, `taskmanagers drain`, `cluster`.

To drain a TaskManager may wait for slots elsewhere, as long as `slot.request.timeout`: what is waited for is said
before, and how it is taken back when somebody does not want to wait.
"""

from __future__ import annotations

import json
import sys

import click

from snapline.commands.printing import echo
from snapline.commands.process_table import PROCESS_COLUMNS, process_row, words_of_process
from snapline.commands.target import Target, with_coordinator, with_target


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def coordinator(arguments: tuple[str, ...]) -> None:
    """Run a coordinator in the foreground (`snapline coordinator --help` for its options)."""
    from snapline.coordinator.__main__ import main as run_coordinator

    sys.exit(run_coordinator(list(arguments)))


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def relay(arguments: tuple[str, ...]) -> None:
    """Run a relay in the foreground, between many TaskManagers and their coordinator (`snapline relay --help`)."""
    from snapline.runtime.relay.relay_process import main as run_relay

    sys.exit(run_relay(list(arguments)))


@click.command("cluster")
@with_target
def task_managers(target: Target) -> None:
    """The TaskManagers that are registered, and their slots."""
    with target.client() as client:
        found = client.list_task_managers()
        own = client.overview().process
    if not target.as_json:
        echo(f"coordinator: {', '.join(words_of_process(own))}")
    target.show(found, PROCESS_COLUMNS, process_row)


@click.group(invoke_without_command=True)
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
    context = click.get_current_context()
    if context.invoked_subcommand is not None:  # which has these options, too
        given = {name: context.params[name] for name in ("coordinator", "token")}
        context.default_map = {context.invoked_subcommand: given}
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
    with target.client() as client:
        try:
            if not undo and any(each.resource_id == taskmanager for each in client.list_task_managers()):
                echo(f"{taskmanager} gets no new tasks; its jobs leave it once there are slots elsewhere", err=True)
            moved = client.drain_task_manager(taskmanager, undo=undo)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"a job that is leaving it still does, and the others stay; the same command again moves them, and `snapline "
                f"taskmanagers drain --undo {taskmanager}` lets it have tasks again"
            ) from None
    if target.as_json:
        echo(json.dumps({"taskmanager": taskmanager, "draining": not undo, "jobs": moved}))
    elif undo:
        echo(f"{taskmanager} gets tasks again")
    else:
        echo(f"nothing runs on {taskmanager} any more, it can be stopped; jobs that were moved: {len(moved)}")
