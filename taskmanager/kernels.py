"""Loads every kernel there is: `python -m snapline.taskmanager.kernels` fills the compiler's cache, a process that
forks loads them once for all.

To compile a kernel (`snapline.dataflow.columnar.kernel`) takes a second or more on a machine that has never run it.
Whoever wants that time to be spent before a job starts calls this. Knows no kernel by name: it imports the packages in
which kernels live.
"""

from __future__ import annotations

import importlib
import pkgutil

from snapline.dataflow.columnar.kernel import compile_kernels_at_once

PACKAGES = (
    "snapline.dataflow",
    "snapline.taskmanager.state",
    "snapline.taskmanager.operators",
    "snapline.connectors.builtin",
    "snapline.connectors.files",
    "snapline.connectors.parquet",
)


def load_kernels() -> list[str]:
    """Import every module of the packages that hold kernels; returns their names. Kernels are then compiled, and cached
    on disk."""
    compile_kernels_at_once()
    names = list(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        names.extend(module.name for module in pkgutil.walk_packages(path, f"{package}."))
    for name in names:
        importlib.import_module(name)
    return names


if __name__ == "__main__":
    load_kernels()
