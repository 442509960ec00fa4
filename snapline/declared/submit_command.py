"""`snapline submit`: a declared job from a file, as protobuf's JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.json_format import Parse, ParseError

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
    """Submit the job, print its id, and wait for its end unless `detached`. Raises JobFailed, and what `submit`
    raises."""
    job = read_declaration(path)
    with target.client() as client:
        job_id = client.submit_declared(job)
        echo(job_id)
        if not detached:
            client.wait(job_id)
