"""The commands that say why a job does not get on, and what its threads do: `why`, `stack`, `logs`, `profile`, `ui`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from snapline.commands.flame_graph import flame_graph
from snapline.commands.printing import echo
from snapline.commands.process_table import seen_task_managers
from snapline.commands.target import Target, with_coordinator, with_target
from snapline.dataflow.config import WEB_BIND_ADDRESS, WEB_PORT
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.dataflow.wire.statuses import decode_job_status
from snapline.protos import client_pb2 as pb
from snapline.runtime.absolute_paths import absolute_path

if TYPE_CHECKING:
    from snapline.client import ClusterClient

LINES = click.IntRange(0, 2_000)
COORDINATOR = "coordinator"
"""What `snapline logs --level` calls the coordinator itself."""


@click.command()
@click.argument("job")
@click.option("--stacks", is_flag=True, help="with the stack of each thread that is named")
@with_target
def why(target: Target, job: str, *, stacks: bool) -> None:
    """What holds a job up: which subtask, what it does, and which checkpoint waits for whom."""
    explain_job(target, job, with_stacks=stacks)


@click.command()
@click.argument("job_or_taskmanager")
@click.option("--all", "everything", is_flag=True, help="the engine's own threads, too")
@with_target
def stack(target: Target, job_or_taskmanager: str, *, everything: bool) -> None:
    """Where the threads of a job's tasks, or of a TaskManager, are now; the innermost frame first."""
    with target.client() as client:
        dumps = _dump(client, job_or_taskmanager, 0)
    if target.as_json:
        echo(json.dumps(message_as_dict(dumps), indent=2))
        return
    for dump in dumps.dumps:
        echo(f"TaskManager {dump.resource_id}")
        for each in sorted(dump.stacks, key=lambda one: (not one.task_name, one.thread_name)):
            if not each.task_name and not everything:
                continue
            attempt = f"  attempt {each.attempt_id.attempt_number}" if each.task_name else ""
            echo(f"  thread {each.thread_name!r}{attempt}")
            for frame in reversed(each.frames):
                echo(f"    at {frame}")
    _name_silent(dumps)


@click.command()
@click.argument("job_or_taskmanager")
@click.option("--lines", type=LINES, default=200, show_default=True, help="the last ones of each TaskManager")
@click.option("--level", default="", help="write DEBUG (INFO, ...) and above from now on; also of `coordinator`")
@with_target
def logs(target: Target, job_or_taskmanager: str, lines: int, level: str) -> None:
    """The last lines that a job's TaskManagers, or one, have written: their log, and what functions print."""
    with target.client() as client:
        if level and job_or_taskmanager == COORDINATOR:
            dumps = client.dump_threads(log_level=level)
        else:
            dumps = _dump(client, job_or_taskmanager, 0, log_lines=lines, log_level=level)
    if target.as_json:
        echo(json.dumps({dump.resource_id: list(dump.log) for dump in dumps.dumps}, indent=2))
    else:
        for dump in dumps.dumps:
            for line in dump.log:
                echo(f"{dump.resource_id}: {line}" if len(dumps.dumps) > 1 else line)
    _name_silent(dumps)


@click.command()
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
        _print_heap(target, job_or_taskmanager, seconds)
    else:
        _write_profile(target, job_or_taskmanager, seconds, file)


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=None, help="setting web.port; 0: any")
@click.option("--bind", default="", help="setting web.bind-address")
@with_coordinator
def ui(target: Target, *, port: int | None, bind: str) -> None:
    """Serve the page of a cluster from here, until Ctrl-C."""
    from snapline.coordinator.web.page_server import PageServer, check_exposure
    from snapline.runtime.leaders.coordinator_address import coordinator_address

    host = bind or target.configuration.get_option(WEB_BIND_ADDRESS)
    check_exposure(target.configuration, host)
    server = PageServer(target.configuration, lambda: coordinator_address(target.configuration))
    chosen = max(0, target.configuration.get_option(WEB_PORT)) if port is None else port
    try:
        echo(f"the page is at {server.start(host, chosen)}")
        threading.Event().wait()
    finally:
        server.stop()


def explain_job(target: Target, job: str, *, with_stacks: bool) -> None:
    """Print what holds the job up, the gravest first."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        found = client.explain_job(job_id)
        for finding in found.findings:
            if finding.kind == "skew":
                finding.summary += _leading_keys(client, job_id, finding.vertex_id)
    if target.as_json:
        echo(json.dumps(message_as_dict(found), indent=2))
        return
    if not found.findings:
        echo(found.summary)
    for finding in found.findings:
        echo(f"{finding.kind}: {finding.summary}")
        for frame in finding.stack if with_stacks else ():
            echo(f"    {frame}")


def _leading_keys(client: ClusterClient, job_id: str, vertex_id: str) -> str:
    """Which keys most rows have, or why they cannot be counted, as the end of a sentence; empty: the job has ended
    meanwhile, or no rows have come."""
    from snapline.client import RequestRefused
    from snapline.coordinator.leading_keys import UncountableKeys
    from snapline.tapped import leading_keys  # loads Arrow, which a job without a skewed key does without

    try:
        keys = leading_keys(client, job_id, vertex_id)
    except RequestRefused:
        return ""
    except UncountableKeys as error:
        return f"; {error}"
    return f"; of the rows now, {', '.join(keys)}" if keys else ""


def _write_profile(target: Target, what: str, seconds: int, output: Path) -> None:
    """Sample the threads of tasks for some seconds, and write a flame graph."""
    if not absolute_path(output).parent.is_dir():  # said before anybody has waited
        raise SnaplineError(f"--file: cannot write {output}: there is no directory {output.parent}")
    with target.client() as client:
        dumps = _dump(client, what, seconds * 1000)
    stacks: dict[tuple[str, ...], int] = {}
    for dump in dumps.dumps:
        for stack in dump.stacks:
            if stack.task_name:
                key = (f"{stack.task_name} on {dump.resource_id}", *stack.frames)
                stacks[key] = stacks.get(key, 0) + stack.count
    samples = max((dump.samples for dump in dumps.dumps), default=0)
    try:
        output.write_text(flame_graph(f"{what}: {seconds} s, {samples} looks", stacks), encoding="utf-8")
    except OSError as error:
        raise SnaplineError(f"--file: cannot write {output}: {error.strerror}") from error
    _name_silent(dumps)
    said = {"file": str(output), "samples": samples, "stacks": len(stacks)}
    echo(json.dumps(said) if target.as_json else f"wrote {output}: {samples} looks at {len(dumps.dumps)} TaskManagers")


def _print_heap(target: Target, what: str, seconds: int) -> None:
    """Look twice, some seconds apart, and print which containers have grown meanwhile and which types take most."""
    with target.client() as client:
        dumps = _dump(client, what, seconds * 1000, heap=True)
    if target.as_json:
        echo(json.dumps(message_as_dict(dumps), indent=2))
        return
    for dump in dumps.dumps:
        echo(f"TaskManager {dump.resource_id}: containers that have grown in {seconds} s")
        for site in dump.sites:
            echo(f"  {site.bytes:>14,} bytes  {site.count:>10,} elements")
            for frame in reversed(site.frames):
                echo(f"      at {frame}")
        echo("  types that take most, of all objects")
        for each in dump.types:
            echo(f"  {each.bytes:>14,} bytes  {each.count:>10,} of {each.name}")
    _name_silent(dumps)


def _name_silent(dumps: pb.ThreadDumps) -> None:
    for resource_id in dumps.silent:
        echo(f"TaskManager {resource_id} did not answer", err=True)


def _dump(
    client: ClusterClient, what: str, duration_ms: int, *, heap: bool = False, log_lines: int = 0, log_level: str = ""
) -> pb.ThreadDumps:
    """Ask a TaskManager of this name, else those of a job. Raises SnaplineError for a job without tasks, for what is
    neither, and when nobody answers."""
    from snapline.client import RequestRefused

    managers = [each.resource_id for each in seen_task_managers(client)]
    try:
        job_id, resource_id = ("", what) if what in managers else (client.resolve_job(what), "")
    except RequestRefused as refusal:
        here = ", ".join(managers[:5]) or "none"
        raise RequestRefused(f"{refusal}; TaskManagers, of which it is none: {here}") from None
    found = client.dump_threads(job_id, resource_id, duration_ms, heap=heap, log_lines=log_lines, log_level=log_level)
    if job_id and not found.dumps and not found.silent:
        status = decode_job_status(client.get_job(job_id).overview.status)
        raise SnaplineError(f"no TaskManager runs a task of job {what}: it is {status.value}")
    if found.silent and not found.dumps:
        raise SnaplineError(
            f"no TaskManager has answered: {', '.join(found.silent)} did not; try again, or look at its log"
        )
    return found
