"""What is done to records between the user and the storage: in order on the way out, undone in reverse on the way in.

A transform is any callable. One with a method ``inv`` also works on the way in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensordict import TensorDictBase
from torch import nn

Transform = Callable[[Any], Any]


class Compose(nn.Module):
    """Transforms in a row: calling it calls each in order, `inv` calls the ``inv`` of each in reverse order.

    A transform without ``inv`` leaves what is written alone. A module is called as the user left it (``train`` or
    ``eval``), and its parameters are among those of the whole.

    >>> from torchrb import Compose
    >>> chain = Compose(lambda x: x + 1, lambda x: 2 * x)
    >>> chain(1), chain.inv(1)
    (4, 1)
    >>> chain.insert(0, lambda x: -x)
    >>> len(chain), chain(1)
    (3, 0)
    """

    def __init__(self, *transforms: Transform) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._set(tuple(_checked(transform, "Compose") for transform in transforms))

    def append(self, transform: Transform) -> None:
        """Put a transform at the end."""
        with self._lock:
            self.insert(len(self), transform)

    def insert(self, index: int, transform: Transform) -> None:
        """Put a transform before the one at ``index``, which counts as in a list. ValueError past either end."""
        _checked(transform, "insert")
        with self._lock:
            steps = list(self.steps())
            if not -len(steps) <= index <= len(steps):
                raise ValueError(f"insert: index must be from {-len(steps)} to {len(steps)}, got {index}.")
            steps.insert(index, transform)
            self._set(tuple(steps))

    def forward(self, data: Any) -> Any:
        """The data, as the transforms make it for a reader."""
        for step in self.steps():
            data = _applied(step, data, step)
        return data

    def inv(self, data: Any) -> Any:
        """The data, as the transforms make it for the storage."""
        for step in self.steps()[::-1]:
            if callable(inverse := getattr(step, "inv", None)):
                data = _applied(inverse, data, step)
        return data

    def steps(self) -> tuple[Transform, ...]:
        """The transforms as of now. The tuple is never changed: a batch in another thread goes through all of it."""
        return self._steps

    @property
    def pending(self) -> bool:
        """Whether the transforms are still to be made."""
        return False

    def _set(self, steps: tuple[Transform, ...]) -> None:
        # As submodules too, so that `to`, `parameters` and `state_dict` reach them.
        self._modules = {str(number): step for number, step in enumerate(steps) if isinstance(step, nn.Module)}
        self._steps = steps

    def __len__(self) -> int:
        return len(self.steps())

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.steps())

    def __getitem__(self, index: Any) -> Any:
        return Compose(*self.steps()[index]) if isinstance(index, slice) else self.steps()[index]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(_name, self.steps()))})"


class Inverse(nn.Module):
    """A transform with its two directions exchanged: its ``inv`` on the way out, its call on the way in."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, data: Any) -> Any:
        inverse = getattr(self.transform, "inv", None)
        return inverse(data) if callable(inverse) else data

    def inv(self, data: Any) -> Any:
        return self.transform(data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_name(self.transform)})"


class Delayed(Compose):
    """What a factory makes, once, when somebody first asks for the transforms. Before that it can be pickled with the
    factory alone. A factory that raises is called again the next time.
    """

    def __init__(self, factory: Callable[[], Transform]) -> None:
        super().__init__()
        self._factory: Callable[[], Transform] | None = factory
        self._making = False

    @property
    def pending(self) -> bool:
        return self._factory is not None

    def steps(self) -> tuple[Transform, ...]:
        if self._factory is not None:
            self._make()
        return self._steps

    def _make(self) -> None:
        with self._lock:
            if self._factory is None:
                return  # another thread was here first
            if self._making:
                raise RuntimeError(
                    "transform_factory: it uses the buffer that it is to make a transform for. Make the transform from "
                    "something else, or append it with append_transform."
                )
            self._making = True
            try:
                made = self._factory()
                steps = made.steps() if type(made) is Compose else (_checked(made, "transform_factory"),)
            finally:
                self._making = False
            self._set(steps)
            self._factory = None

    def __repr__(self) -> str:
        if self._factory is None:
            return f"Compose({', '.join(map(_name, self._steps))})"
        return f"Compose(transform_factory={_name(self._factory)})"


def chain(transform: Transform | None, factory: Callable[[], Transform] | None, call: str) -> Compose:
    """The transforms of a buffer, from what its constructor was given. TypeError for both, or for no callable."""
    if transform is not None and factory is not None:
        raise TypeError(
            f"{call}: transform and transform_factory exclude each other, got both. Give the transform, or a "
            "callable that makes it."
        )
    if factory is not None:
        if not callable(factory):
            raise TypeError(
                f"{call}: transform_factory must be callable without arguments, got {type(factory).__name__}."
            )
        return Delayed(factory)
    if transform is None:
        return Compose()
    return transform if isinstance(transform, Compose) else Compose(_checked(transform, call))


def directed(transform: Transform, invert: bool, call: str) -> Transform:
    """A transform as it is, or with its directions exchanged."""
    checked = _checked(transform, call)
    return Inverse(checked) if invert else checked


def for_reader(transforms: Compose, data: Any) -> Any:
    """A batch as the transforms make it, in a tensordict that may be added to: not one that a transform has kept."""
    made = transforms(data)
    if isinstance(made, TensorDictBase) and (made is not data or made.is_locked):
        return made.copy()
    return made


def affecting(transforms: Compose, keys: set[tuple]) -> tuple[Compose, set[tuple]] | None:
    """Those of the transforms that can change some fields for a reader, and all the fields that are needed to compute
    them. None where a transform does not tell, by ``in_keys`` and ``out_keys``, what it reads and writes: that is all.

    Fields are tuples of their parts; one is changed with whatever it is a part of, or has as a part.
    """
    chosen: list[Transform] = []
    needed = set(keys)
    for step in reversed(_flat(transforms)):
        reads, writes = (_declared(step, name) for name in ("in_keys", "out_keys"))
        if reads is None or not writes:
            return None
        if any(all(a == b for a, b in zip(out, key, strict=False)) for out in writes for key in needed):
            chosen.append(step)
            needed |= reads
    return Compose(*chosen[::-1]), needed


def _flat(transforms: Compose) -> list[Transform]:
    return [part for step in transforms.steps() for part in (_flat(step) if isinstance(step, Compose) else [step])]


def _declared(step: Transform, name: str) -> set[tuple] | None:
    """The fields that a transform says it reads or writes; None when it does not say."""
    keys = getattr(step, name, None)
    if not isinstance(keys, Iterable) or isinstance(keys, str):
        return None
    return {key if isinstance(key, tuple) else (key,) for key in keys}


def _checked(transform: Any, call: str) -> Transform:
    if not callable(transform):
        several = " Chain several by Compose(*transforms)." if isinstance(transform, list | tuple) else ""
        raise TypeError(f"{call}: a transform must be callable with the data, got {type(transform).__name__}.{several}")
    if isinstance(transform, type) and (issubclass(transform, nn.Module) or hasattr(transform, "inv")):
        raise TypeError(
            f"{call}: a transform must be callable with the data, got the class {transform.__name__}. Pass an instance "
            "of it, or to the buffer's constructor transform_factory."
        )
    return transform


def _applied(function: Transform, data: Any, step: Transform) -> Any:
    made = function(data)
    if made is None and data is not None:
        raise TypeError(f"transform {_name(step)} returned None. Return the data, also where it was changed in place.")
    return made


def _name(step: Any) -> str:
    """What a transform is called: functions by name, other objects by what they say of themselves."""
    return getattr(step, "__qualname__", None) or repr(step)
