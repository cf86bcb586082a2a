"""Python objects on their way into a storage: all of a write or nothing, whenever an exception comes from outside.

A signal handler (Ctrl-C, a timeout) can raise between any two steps of Python. Rows are written by one op, which
nothing interrupts; objects are put in place beside it, step by step. So what is to be put is noted before the op. A
call that is cut off after it still puts the objects where the op put their rows; one that is cut off before drops the
note. Should that be cut off as well, whoever looks next does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# Puts objects in place, as often as it is called, and returns what it replaced.
Finish = Callable[[], Any]


def placing(columns: Sequence[list[Any]], slots: Sequence[int], values: Sequence[Sequence[Any]]) -> Finish:
    """Column by column, each value at its slot; among equal slots the last stays. A slot of -1 names none: a GPU masks
    what a CPU refuses.
    """

    def finish() -> list[Any]:
        replaced = []
        for column, items in zip(columns, values, strict=True):
            for slot, item in zip(slots, items, strict=True):
                if slot >= 0:
                    replaced.append(column[slot])
                    column[slot] = item
        return replaced

    return finish


class Staging:
    """The write that is under way, if any: entered around the op that writes. All of it happens under the storage's
    lock.

    ``position``: tells how far the storage's journal is; every op that writes a row moves it. ``noted``: what is still
    to be settled; None nearly always, so that hot paths look at it before they call `settle`.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self.noted: tuple[int | None, Finish] | None = None

    def __enter__(self) -> Staging:
        self.settle()
        return self

    def note(self, finish: Finish) -> None:
        """Say what has to be done once the op that comes next has written."""
        self.noted = (self._position(), finish)

    def written(self, finish: Finish) -> None:
        """Say what has to be done, now that the op has written and told where."""
        self.noted = (None, finish)

    def __exit__(self, *_: object) -> None:
        self.settle()

    def settle(self) -> None:
        """Finish a write, or forget it if it has not written a row. Before anything looks at objects, and before any
        write.
        """
        if self.noted is None:
            return
        position, finish = self.noted
        replaced = finish() if position is None or self._position() != position else None
        self.noted = None
        del replaced  # when all is in place: an object's own code (`__del__`) may write here
