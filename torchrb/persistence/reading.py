"""Entries of a saved state, checked one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class StateReader:
    """Reads a dict that somebody saved, and that somebody else may have changed. Each method returns an entry, or
    raises ValueError that says ``call``, which entry, what was expected and what was got.

    >>> reader = StateReader({"drawn": 3}, "load_state_dict: RandomSampler")
    >>> reader.number("drawn", 0, 10)
    3
    >>> reader.number("size", 0)
    Traceback (most recent call last):
        ...
    ValueError: load_state_dict: RandomSampler: the saved state has no entry 'size'; it has ['drawn'].
    """

    def __init__(self, state: Any, call: str) -> None:
        if not isinstance(state, Mapping):
            raise ValueError(f"{call}: a saved state is a dict, got {type(state).__name__}.")
        self._state, self.call = state, call

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def any(self, name: str) -> Any:
        """An entry, whatever it is."""
        if name not in self._state:
            raise ValueError(
                f"{self.call}: the saved state has no entry {name!r}; it has {sorted(map(str, self._state))}."
            )
        return self._state[name]

    def refuse(self, name: str, expected: str) -> ValueError:
        """The error for an entry that is not what was expected."""
        return ValueError(f"{self.call}: {name!r} of the saved state must be {expected}, got {_told(self.any(name))}.")

    def number(self, name: str, least: int, most: int = 2**62) -> int:
        """An int within bounds, which both belong to them."""
        value = self.any(name)
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(name, f"an int from {least} to {most}")
        return value

    def real(self, name: str) -> float:
        """A float, or an int."""
        value = self.any(name)
        if type(value) not in (int, float):
            raise self.refuse(name, "a number")
        return value

    def flag(self, name: str) -> bool:
        """True or False."""
        value = self.any(name)
        if type(value) is not bool:
            raise self.refuse(name, "True or False")
        return value

    def text(self, name: str) -> str:
        """A string."""
        value = self.any(name)
        if type(value) is not str:
            raise self.refuse(name, "a string")
        return value

    def items(self, name: str, num: int | None = None) -> list[Any]:
        """A list, of so many items if that is given."""
        value = self.any(name)
        if not isinstance(value, list) or num not in (None, len(value)):
            raise self.refuse(name, "a list" if num is None else f"a list of {num}")
        return value

    def tensor(self, name: str, dtype: torch.dtype, *shape: int | None) -> Tensor:
        """A tensor of this dtype and shape, where None is any size."""
        value = self.any(name)
        fits = isinstance(value, Tensor) and value.dtype == dtype and value.dim() == len(shape)
        if not fits or any(size not in (None, got) for size, got in zip(shape, value.shape, strict=True)):
            raise self.refuse(name, f"a tensor of {dtype} {['n' if size is None else size for size in shape]}")
        return value

    def within(self, name: str) -> StateReader:
        """A dict in it."""
        return StateReader(self.any(name), f"{self.call}: {name!r}")


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {[*value.shape]}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
