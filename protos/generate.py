"""Generates the Python of `protos/*.proto`, or with `--check` says what is not up to date.

For each `x.proto`: `x_pb2.py` and its types `x_pb2.pyi` (messages); for one with a service also `x_pb2_grpc.py` and
`x_pb2_grpc.pyi`. The generated files are committed: whoever installs Snapline needs no compiler. grpcio-tools is
pinned in pyproject.toml to the floor of the run-time libraries, because generated code refuses anything older.

    python -m snapline.protos.generate [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository: `protos/` lies in it, and `snapline/protos` leads there."""


def generate(output: Path) -> None:
    """Compile every .proto of this room into `output`."""
    from importlib.resources import files

    from grpc_tools import protoc

    protos = sorted((ROOT / "snapline" / "protos").glob("*.proto"))
    with_service = [p for p in protos if any(line.startswith("service ") for line in p.read_text().splitlines())]
    include = ["-I.", f"-I{files('grpc_tools') / '_proto'}"]
    plugin = f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}"
    messages = [f"--python_out={output}", f"--pyi_out={output}"]
    services = [f"--grpc_python_out={output}", f"--mypy_grpc_out=quiet:{output}"]
    for options, inputs in ((messages, protos), ([plugin, *services], with_service)):
        names = [str(p.relative_to(ROOT)) for p in inputs]
        if names and protoc.main(["protoc", *include, *options, *names]) != 0:
            raise SystemExit("protos: protoc refused the files above")


def generated(directory: Path) -> dict[str, str]:
    """The generated files below a directory, by name."""
    return {p.name: p.read_text() for p in sorted((directory / "snapline" / "protos").glob("*_pb2*.py*"))}


def main(arguments: list[str]) -> int:
    """Write what differs (and remove what has no .proto any more), or only report it."""
    import os

    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh, committed = generated(Path(scratch)), generated(ROOT)
    stale = sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))
    if "--check" in arguments:
        if stale:
            print(f"protos: run make protos and commit {', '.join(stale)}", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in fresh:
            (ROOT / "protos" / name).write_text(fresh[name])
        else:
            (ROOT / "protos" / name).unlink()
        print(f"protos: {'wrote' if name in fresh else 'removed'} protos/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
