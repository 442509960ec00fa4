"""The commands `snapline up` and `snapline down`."""

from __future__ import annotations

from pathlib import Path

import click

from snapline.commands.printing import echo

DIRECTORY = Path.home() / ".snapline" / "trial"
_directory = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default="~/.snapline/trial",
    help="for settings, logs, checkpoints",
)


@click.command()
@_directory
@click.option("--taskmanagers", type=click.IntRange(min=1), default=2, show_default=True, help="how many TaskManagers")
@click.option("--slots", type=click.IntRange(min=1), default=2, show_default=True, help="slots of each")
def up(directory: Path, taskmanagers: int, slots: int) -> None:
    """Start a cluster on this machine for a trial: ZooKeeper, two coordinators, Spark standalone, TaskManagers."""
    from snapline.trial_cluster import TrialCluster

    cluster = TrialCluster(directory)
    for each in cluster.up(taskmanagers, slots, lambda line: echo(line, err=True)):
        echo(f"{each.name:<14} {each.pid:>7}  {each.address or '-':<28} {each.log}")
    echo(f"export SNAPLINE_CONFIG={cluster.settings_file}")
    echo(f"{cluster.down_command} ends all of it", err=True)


@click.command()
@_directory
def down(directory: Path) -> None:
    """End the cluster that `snapline up` has started; its data stays."""
    from snapline.trial_cluster import TrialCluster

    ended = TrialCluster(directory).down()
    echo(f"ended {', '.join(ended)}" if ended else f"nothing runs below {directory}")
