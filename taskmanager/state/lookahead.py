"""How many keys of a batch to load at once, when one row asks for what is not loaded yet.

Rows ask in the order in which the keys of a batch are numbered, more or less. Loading is cheap by the dozen and dear
one by one, so what follows is loaded too: more of it as long as at least half of what was loaded ahead was asked for,
less when not. So no more is loaded than about twice what is used, whether all rows look at their state or one in a
hundred.
"""

from __future__ import annotations

_WIDEST = 4096


class Lookahead:
    """The window of one state. `asked` counts what was loaded ahead and then asked for."""

    __slots__ = ("_loaded", "_window", "asked")

    def __init__(self) -> None:
        self._window = 1
        self._loaded = 0
        self.asked = 0

    def numbers(self, index: int, count: int) -> range:
        """The numbers to load when `index` of `count` keys is asked for."""
        if 2 * self.asked >= self._loaded:
            self._window = min(2 * self._window, _WIDEST)
        else:
            self._window = max(1, self._window // 4)
        return range(index, min(count, index + self._window))

    def loaded_ahead(self, count: int) -> None:
        """So many were loaded, besides the one that was asked for."""
        self._loaded, self.asked = count, 0
