"""The command `snapline`. What answers does so in a table, or with `--output json` as JSON; errors are one line and
exit 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

import snapline
from snapline.commands.cluster_commands import coordinator, relay, task_managers, taskmanagers
from snapline.commands.config_command import config
from snapline.commands.diagnosis_commands import logs, profile, stack, ui, why
from snapline.commands.external_commands import external
from snapline.commands.job_commands import cancel, checkpoints, history, list_jobs, rescale, status, stop, tap
from snapline.commands.pack_command import pack
from snapline.commands.program_commands import plan, run, submit, update
from snapline.commands.resumable_command import show_resumable
from snapline.commands.savepoint_commands import savepoint
from snapline.commands.security_commands import certificates, credential
from snapline.commands.state_commands import state
from snapline.commands.transaction_commands import transactions
from snapline.commands.trial_commands import down, up
from snapline.dataflow.errors import SnaplineError
from snapline.reporting import INTERRUPTED, print_error, print_interrupted


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(snapline.__version__, prog_name="snapline")
def cli() -> None:
    """Exactly-once streaming Python on Spark."""


for command in (
    *(coordinator, relay, taskmanagers, task_managers, up, down),
    *(run, submit, plan, update, pack),
    *(list_jobs, status, history, cancel, rescale, stop, checkpoints, tap),
    *(why, stack, logs, profile, ui),
    *(savepoint, state, transactions, external, show_resumable),
    *(certificates, credential, config),
):
    cli.add_command(command)


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
