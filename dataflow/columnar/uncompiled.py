"""The place of a compiled function until somebody needs it: `kernel` puts it there, `kernel_compiler` looks for it. It
knows nothing of numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Uncompiled:
    """Stands for what numba makes of a function until somebody needs it, as a name of its module."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    @property
    def compiled(self) -> Any:
        """What numba has made of it, now at the latest."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __call__(self, *arguments: Any) -> Any:
        """Run what numba has made of it."""
        return (self._made or self.compiled)(*arguments)
