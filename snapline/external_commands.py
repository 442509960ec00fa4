"""`snapline external submit`: a job whose tasks are programs outside, without any code of the job."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from snapline.dataflow.config import OPTIONS, ConfigurationError
from snapline.dataflow.ids import JobID
from snapline.printing import echo

if TYPE_CHECKING:
    from snapline.cli import Target

ONLY_TASK = "task"
"""Name of the external task where only a number is given."""


def submit_external(
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
        if not number.isdigit():
            raise click.UsageError(f"--task {given}: say NAME=NUMBER, for example --task orders=2")
        if task in wanted:
            raise click.UsageError(f"--task {task} is given twice")
        wanted[task] = int(number)
    configuration = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.UsageError(f"-D {setting}: say KEY=VALUE")
        if key not in OPTIONS and not key.startswith("external."):
            raise ConfigurationError(f"-D {key}: there is no such setting; those for the programs begin with external.")
        configuration[key] = value
    graph = external_job(JobID(uuid.uuid4().hex), name, wanted, configuration, SavepointRestoreSettings(*savepoint))
    with target.client() as client:
        echo(client.submit(graph))
