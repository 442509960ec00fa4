"""Writes the Python of `protos/*.proto`, or with `--check` says what is not up to date.

For each `x.proto`: `x_pb2.py`, which has nothing but the file's descriptor (the classes are made from it at run time,
by `message_classes.py` and `service_classes.py`), and protoc's types `x_pb2.pyi`; for one with a service also
`x_pb2_grpc.py` and `x_pb2_grpc.pyi`. All of them are committed: whoever installs Snapline needs no compiler, and any
version of protobuf and grpcio from the floors in pyproject.toml on will do.

    python -m snapline.protos.generate [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

ROOT = Path(__file__).resolve().parent.parent
"""The repository: `protos/` lies in it, and `snapline/protos` leads there."""

MESSAGES = '''"""Messages of {proto}; written by make protos. Types: {stem}_pb2.pyi."""

{imports}from snapline.protos.message_classes import define_messages

DESCRIPTOR = define_messages(globals(), {serialized!r})
'''
SERVICES = '''"""Services of {proto}; written by make protos. Types: {stem}_pb2_grpc.pyi."""

from snapline.protos import {stem}_pb2
from snapline.protos.service_classes import define_services

define_services(globals(), {stem}_pb2.DESCRIPTOR)
'''
OF_THE_GENERATOR = ("GRPC_GENERATED_VERSION: str\n", "GRPC_VERSION: str\n")
"""Lines in the types of services about what only gRPC's own generated code has."""


def generate(output: Path) -> None:
    """Compile every .proto of this room into `output`."""
    from importlib.resources import files

    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    protos = sorted((ROOT / "snapline" / "protos").glob("*.proto"))
    include = ["-I.", f"-I{files('grpc_tools') / '_proto'}"]
    plugin = f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}"
    descriptors = output / "descriptors"
    options = [f"--descriptor_set_out={descriptors}", f"--pyi_out={output}", f"--mypy_grpc_out=quiet:{output}"]
    if protoc.main(["protoc", *include, plugin, *options, *(str(p.relative_to(ROOT)) for p in protos)]) != 0:
        raise SystemExit("protos: protoc refused the files above")
    for file in FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        write_modules(file, output)


def write_modules(file: FileDescriptorProto, output: Path) -> None:
    """The modules of one file; its types are there already."""
    stem = Path(file.name).stem
    imported = sorted(f"{Path(name).stem}_pb2" for name in file.dependency)
    imports = (
        f"from snapline.protos import {', '.join(imported)}  # known first: the file below imports them\n"
        if imported
        else ""
    )
    directory = output / Path(file.name).parent
    parts = {
        "proto": file.name,
        "stem": stem,
        "imports": imports,
        "serialized": file.SerializeToString(deterministic=True),
    }
    (directory / f"{stem}_pb2.py").write_text(MESSAGES.format(**parts))
    types = directory / f"{stem}_pb2_grpc.pyi"
    if not file.service:
        types.unlink(missing_ok=True)
        return
    (directory / f"{stem}_pb2_grpc.py").write_text(SERVICES.format(**parts))
    text = types.read_text()
    for line in OF_THE_GENERATOR:
        text = text.replace(line, "")
    types.write_text(text)


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
