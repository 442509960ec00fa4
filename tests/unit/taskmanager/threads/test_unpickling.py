"""Tasks that begin at the same time unpickle their functions one after the other."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from snapline.taskmanager.threads import unpickling
from snapline.taskmanager.threads.unpickling import unpickle_alone


class Looks:
    """Says, when it is unpickled, whether another could be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _nobody_else_may, ()


def _nobody_else_may() -> bool:
    return unpickling.UNPICKLING.locked()


def test_nobody_else_unpickles_meanwhile() -> None:
    """Otherwise a package and one of its modules may be imported by two threads that wait for each other
    (_DeadlockError)."""
    assert unpickle_alone(cloudpickle.dumps(Looks())) is True
    assert not unpickling.UNPICKLING.locked()


def test_after_a_failure_others_may() -> None:
    """A module that is missing is the job's fault, not that of the next one."""
    with pytest.raises(ModuleNotFoundError):
        unpickle_alone(b"cno_such_module\nthing\n.")

    assert unpickle_alone(cloudpickle.dumps([1])) == [1]
