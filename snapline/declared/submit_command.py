"""`snapline submit`: a declared job from a file, as protobuf's JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.json_format import Parse, ParseError

from snapline.client import CoordinatorUnreachable, RequestRefused
from snapline.commands.printing import echo
from snapline.dataflow.errors import JobDefinitionError
from snapline.protos.declared_pb2 import DeclaredJob

if TYPE_CHECKING:
    from snapline.commands.target import Target


def read_declaration(path: Path) -> DeclaredJob:
    """The job that a file declares. Raises JobDefinitionError with the place in the file that is wrong."""
    try:
        return Parse(path.read_bytes(), DeclaredJob())
    except (ParseError, UnicodeDecodeError) as error:
        raise JobDefinitionError(f"{path} declares no job (protos/declared.proto, as JSON): {error}") from error


def submit_declared(target: Target, path: Path, *, detached: bool) -> None:
    """Submit the job, print its id, and wait for its end unless `detached`; Ctrl-C cancels it then. Raises JobFailed,
    and what `submit` raises."""
    job = read_declaration(path)
    with target.client() as client:
        job_id = client.submit_declared(job)
        echo(job_id)
        if detached:
            return
        try:
            client.wait(job_id)
        except KeyboardInterrupt:
            became = "is cancelled"
            try:
                client.cancel(job_id)
            except RequestRefused:
                became = "had just ended"
            except CoordinatorUnreachable as error:
                became = f"goes on, if it runs: {error}"
            raise KeyboardInterrupt(f"job {job.name!r} ({job_id}) {became}") from None
