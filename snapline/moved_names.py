"""Where a name of an earlier Snapline is now: an old job is told the new place in one line.

Two tables decide. `MOVED_NAMES` has what was exported by `snapline` and is called otherwise now. `FORMER_ROOMS` has the
packages that an earlier Snapline put into Python beside `snapline`; they are parts of it now. A package of that name
that anybody else has is found first and stays theirs: the finder of this file is asked when nobody else knows the name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from snapline.dataflow.errors import SnaplineError

MOVED_NAMES = {"sum_": "sum", "min_": "min", "max_": "max"}
"""Former name in `snapline` -> the one that took its place."""

FORMER_ROOMS = frozenset({"coordinator", "dataflow", "protos", "runtime", "taskmanager"})
"""Top-level packages until `snapline` became the only one."""


class NameMoved(SnaplineError, ModuleNotFoundError):
    """Raised by an import or a look-up that asks for a former name; the message names the present one."""


def name_moved(name: str) -> NameMoved:
    """The error for a key of MOVED_NAMES. An ImportError, because `from snapline import name` would replace the text of
    an AttributeError by one of its own."""
    _print_it_in_one_line()
    new = MOVED_NAMES[name]
    return NameMoved(
        f"snapline.{name} is called snapline.{new} now: import snapline as sl, and say sl.{new}", name="snapline"
    )


class FormerRooms:
    """A finder that finds nothing: where Python would say only that there is no module `dataflow`, it says where it
    went."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, or raises NameMoved for an import of a former room. `importlib.util.find_spec` only asks, and gets
        None."""
        if name not in FORMER_ROOMS or sys._getframe(2).f_code.co_name == "find_spec":  # noqa: SLF001
            return None
        _print_it_in_one_line()
        raise NameMoved(
            f"no module named {name!r}: Snapline's is snapline.{name} now, and what a job needs is in snapline itself, for example "
            "sl.KeyedProcessFunction after import snapline as sl",
            name=name,
        )


def tell_where_former_rooms_are() -> None:
    """From now on, in this process. May be called again."""
    if FormerRooms not in sys.meta_path:
        sys.meta_path.append(FormerRooms)


def _print_it_in_one_line() -> None:
    from snapline.reporting import print_errors_in_one_line

    print_errors_in_one_line()
