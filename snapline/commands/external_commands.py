"""`snapline external submit`: a job whose tasks are programs outside, without any code of the job."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import click

from snapline.commands.printing import echo
from snapline.commands.target import Target, absolute, with_coordinator
from snapline.dataflow.config import OPTIONS, ConfigurationError, canonical_key
from snapline.dataflow.ids import JobID

ONLY_TASK = "task"
"""Name of the external task where only a number is given."""
DIGITS_MAX = 18
"""What is longer is no number of programs."""


@click.group()
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
    savepoint = (absolute(from_savepoint), allow_non_restored_state, claim)
    _submit_external(target, name, tasks, programs, settings, savepoint)


def _submit_external(
    target: Target,
    name: str,
    tasks: Sequence[str],
    programs: int | None,
    settings: Sequence[str],
    savepoint: tuple[str, bool, bool],
) -> None:
    """Submit the job, and print its id. `savepoint`: where it lies, whether state may be left out, whether it is
    claimed. Raises SnaplineError for what cannot be."""
    from snapline.dataflow.graph.external_tasks import external_job  # loads Arrow
    from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings

    wanted = {ONLY_TASK: programs} if programs else {}
    for given in tasks:
        task, separator, number = given.rpartition("=")
        if not separator:
            task, number = given, "1"
        if not (number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
            raise click.UsageError(f"--task {given}: say NAME=NUMBER, for example --task orders=2")
        if task in wanted:
            raise click.UsageError(f"--task {task} is given twice")
        wanted[task] = int(number)
    configuration = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.UsageError(f"-D {setting}: say KEY=VALUE")
        if canonical_key(key) not in OPTIONS and not key.startswith("external."):
            raise ConfigurationError(f"-D {key}: there is no such setting; those for the programs begin with external.")
        configuration[key] = value
    graph = external_job(JobID(uuid.uuid4().hex), name, wanted, configuration, SavepointRestoreSettings(*savepoint))
    with target.client() as client:
        echo(client.submit(graph))
