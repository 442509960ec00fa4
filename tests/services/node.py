"""Programs of `clients/node` for tests: whether they can run here, and the command that runs one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NODE_MODULES = Path(os.environ.get("SNAPLINE_NODE_MODULES") or ROOT / ".venv" / "node" / "node_modules")
"""Where `make node` puts the packages."""


def _what_is_missing() -> str:
    if shutil.which("node") is None:
        return "there is no node here: install Node 18 or newer"
    packages = (NODE_MODULES / "@grpc" / "grpc-js", NODE_MODULES / "apache-arrow")
    return "" if all(map(Path.is_dir, packages)) else "the client for Node lacks its packages: make node"


NODE_IS_MISSING = _what_is_missing()
"""Why programs of Node cannot run here; empty: they can."""


def node_program(name: str, *arguments: str) -> str:
    """The command, with the packages on its path."""
    return " ".join(["env", f"NODE_PATH={NODE_MODULES}", "node", str(ROOT / "clients" / "node" / name), *arguments])
