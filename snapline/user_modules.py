"""Which of the user's modules travel with the job, because no executor could import them.

Functions and classes of the job script itself always travel by value, as in Spark. So do those of modules that lie
beside the script or below its directory, and those that were named with `add_python_module`. What is installed
(site-packages, the standard library, requirements of the job, Snapline) is imported on the executors, and must be
there. Larger code goes with `--py-files` of spark-submit, or in an environment of its own with `--archives`; this does
not know about either. That is also how code goes that protoc has generated: its descriptors live in a pool of the
process and cannot travel by value.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import cloudpickle
from google.protobuf.descriptor import FileDescriptor

from snapline.job_files import REQUIRED_HERE

OURS = "snapline"
_HELD: Counter[str] = Counter()
"""How many are within `pickled_by_value` for each module that it has registered."""
_HOLDING = threading.Lock()


def modules_beside_script() -> list[ModuleType]:
    """Imported modules whose file lies in the directory of the running script, or below, and is not installed. A
    notebook stands in its working directory."""
    home = _home()
    if home is None:
        return []
    installed = _installed()
    if any(home.is_relative_to(place) for place in installed):
        return []
    named = tuple(map(str, installed))
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name in {"__main__", "__mp_main__"} or name.partition(".")[0] == OURS:
            continue
        if _lies_beside(file, str(home), named):
            found.append(module)
    generated = [m.__name__ for m in found if isinstance(getattr(m, "DESCRIPTOR", None), FileDescriptor)]
    # A package counts for all that is in it, so those that have such code are left out as well.
    return [m for m in found if not any(f"{name}.".startswith(f"{m.__name__}.") for name in generated)]


@lru_cache(maxsize=20_000)
def _lies_beside(file: str, home: str, installed: tuple[str, ...]) -> bool:
    """Whether a module's file lies below the script's directory, and is not installed. A process has a thousand modules
    and may submit many jobs, so what was found out is kept."""
    path = Path(file).resolve()
    return path.is_relative_to(home) and not any(path.is_relative_to(place) for place in installed)


def _home() -> Path | None:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None:
        return Path(script).resolve().parent
    from snapline.notebook import running_cell

    return None if running_cell() is None else Path.cwd()


@contextmanager
def pickled_by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Within, what these modules define is pickled with its code; what was registered before stays so. Several threads
    may be within at once: a module stays registered for the last of them."""
    mine: list[ModuleType] = []
    try:
        with _HOLDING:
            before = cloudpickle.list_registry_pickle_by_value()
            for module in modules:
                if module.__name__ in _HELD or module.__name__ not in before:
                    cloudpickle.register_pickle_by_value(module)
                    _HELD[module.__name__] += 1
                    mine.append(module)
        yield
    finally:
        with _HOLDING:
            for module in mine:
                _HELD[module.__name__] -= 1
                if not _HELD[module.__name__]:
                    del _HELD[module.__name__]
                    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
                        cloudpickle.unregister_pickle_by_value(module)


def _installed() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    places = {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}
    named = (
        entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")) or entry in REQUIRED_HERE
    )
    return (*sorted(places), *(Path(entry).resolve() for entry in named))
