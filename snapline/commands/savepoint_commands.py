"""The commands of savepoints: `savepoint trigger`, `dispose`, `adopt`."""

from __future__ import annotations

import json
import os

import click

from snapline.commands.printing import echo
from snapline.commands.target import Target, absolute, with_target
from snapline.dataflow.config import ConfigurationError
from snapline.runtime.settings import default_layers, resolve


class SavepointGroup(click.Group):
    """`snapline savepoint JOB` is short for `snapline savepoint trigger JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command in that was left out."""
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["trigger", *args]
        return super().parse_args(ctx, args)


@click.group(cls=SavepointGroup)
def savepoint() -> None:
    """Take or dispose of savepoints; `snapline savepoint JOB [DIRECTORY]` takes one."""


@savepoint.command()
@click.argument("job")
@click.argument("directory", default="")
@with_target
def trigger(target: Target, job: str, directory: str) -> None:
    """Take a savepoint; prints its path."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        try:
            path = client.trigger_savepoint(job_id, absolute(directory))
        except KeyboardInterrupt:
            goes_on = f"the savepoint is taken all the same; `snapline checkpoints {job_id}` names it then"
            raise KeyboardInterrupt(goes_on) from None
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
    disposed = dispose_savepoint(StateStorages(lambda url: open_storage(url, configuration)), absolute(path))
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
    echo(f"adopted {adopt_snapshot(storages, absolute(path), signer).location}")
