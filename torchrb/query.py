"""Trajectories as values: `Trajectory`, the predicates that are built from `traj`, and how data is split into them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from torchrb.storages.structure import as_path, paths_in, shown
from torchrb.trajectories import lengths_in


class Trajectory:
    """The records of one trajectory, in time order: a tensordict ``td`` of batch size ``[length]``.

    Fields are attributes or entries: ``t.observation``, ``t["nested", "key"]``. A name that is not a field itself is
    looked for below ``"next"``: ``t.reward`` is ``("next", "reward")`` where no ``"reward"`` is stored. Whatever else a
    tensordict can do, it does (``t.to(device)``, ``t.select(...)``); ``t[2:5]`` is a part of it, a tensordict.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> t = Trajectory(TensorDict({"obs": torch.arange(3), "next": {"reward": torch.ones(3, 1)}}, [3]))
    >>> t.length, t.obs.tolist(), t.reward.shape, t.total_reward
    (3, [0, 1, 2], torch.Size([3, 1]), tensor(3.))
    """

    def __init__(self, td: TensorDictBase) -> None:
        self.td = td

    @property
    def length(self) -> int:
        """How many records it has."""
        return self.td.shape[0]

    @property
    def index(self) -> Any:
        """The slots of its records, where it was read from a buffer."""
        return self._field("index")

    @property
    def total_reward(self) -> Tensor:
        """The sum of its rewards."""
        return self._field("reward").sum()

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """The fields, as those of a tensordict."""
        return self.td.keys(*args, **kwargs)

    def get(self, key: Any, default: Any = None) -> Any:
        """A field, looked for as an attribute is, or ``default``."""
        try:
            return self._field(key)
        except KeyError:
            return default

    def _field(self, key: Any) -> Any:
        for path in _places(key):
            value = self.td.get(shown(path), default=_MISSING)
            if value is not _MISSING and value is not None:
                return value.tolist() if is_non_tensor(value) else value
        stored = sorted(map(shown, paths_in(self.td)), key=str)
        raise KeyError(f"Trajectory: no field {key!r}, nor below 'next'; there are {stored}.")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(k, str) for k in index)):
            return self._field(index)
        return self.td[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "td":
            raise AttributeError(name)
        try:
            return self._field(name)
        except KeyError as error:
            try:
                return getattr(self.td, name)
            except AttributeError:
                raise AttributeError(error.args[0]) from None

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Trajectory(length={self.length}, keys={sorted(map(str, self.td.keys()))})"


_MISSING: Any = object()


def _places(key: Any) -> list[tuple]:
    """Where a field that is asked for may be."""
    path = as_path(key)
    return [path] if path[0] == "next" else [path, ("next", *path)]


# --- predicates


class TrajectoryPredicate:
    """Whether a trajectory matches: a callable that can be combined by ``&``, ``|`` and ``~``.

    Args:
        fn: from a `Trajectory` to a bool, or a tensor of one element.
        description: what it is called.
        keys: the fields that it reads; None when that is not known.
    """

    def __init__(
        self, fn: Callable[[Trajectory], Any], description: str = "predicate", keys: Iterable[Any] | None = None
    ) -> None:
        self._fn, self._description = fn, description
        self._keys = None if keys is None else frozenset(keys)

    def required_keys(self) -> frozenset | None:
        """The fields that it reads, so that no others need to be fetched; None when that is not known."""
        return self._keys

    def __call__(self, trajectory: Trajectory) -> bool:
        return as_truth(self._fn(trajectory), self._description)

    def _joined(self, other: Any, word: str, fn: Callable[[bool, Callable[[], bool]], bool]) -> Any:
        if isinstance(other, _Expression):
            other(None)  # which says what it lacks to be a predicate
        if not callable(other):
            return NotImplemented
        right = other if isinstance(other, TrajectoryPredicate) else TrajectoryPredicate(other, _name(other))
        keys = None if self._keys is None or right._keys is None else self._keys | right._keys
        return TrajectoryPredicate(
            lambda t: fn(self(t), lambda: right(t)), f"({self._description} {word} {right._description})", keys
        )

    def __and__(self, other: Any) -> TrajectoryPredicate:
        return self._joined(other, "&", lambda left, right: left and right())

    def __or__(self, other: Any) -> TrajectoryPredicate:
        return self._joined(other, "|", lambda left, right: left or right())

    def __rand__(self, other: Any) -> TrajectoryPredicate:
        return self & other

    def __ror__(self, other: Any) -> TrajectoryPredicate:
        return self | other

    def __invert__(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda t: not self(t), f"~{self._description}", self._keys)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self._description} is a predicate, not a bool. Combine predicates by &, | and ~ instead of and, or and "
            "not, and write a < x and x < b as (a < x) & (x < b)."
        )

    def __repr__(self) -> str:
        return f"TrajectoryPredicate({self._description})"


class _Expression:
    """A value that is computed from a trajectory, and the fields that it reads. Comparing it gives a predicate."""

    def __init__(self, value: Callable[[Trajectory], Any], text: str, keys: frozenset) -> None:
        self._value, self._text, self._keys = value, text, keys

    def _with(self, other: Any, sign: str, fn: Callable[[Any, Any], Any], kind: Any, swapped: bool = False) -> Any:
        if isinstance(other, _Expression):
            value, text, keys = other._value, other._text, self._keys | other._keys
        else:
            value, text, keys = (lambda t: other), repr(other), self._keys
        mine = self._value
        if swapped:
            return kind(lambda t: fn(value(t), mine(t)), f"({text} {sign} {self._text})", keys)
        return kind(lambda t: fn(mine(t), value(t)), f"({self._text} {sign} {text})", keys)

    def _compared(self, other: Any, sign: str, fn: Callable[[Any, Any], Any]) -> Any:
        per_record = isinstance(self, Field) or isinstance(other, Field)
        return self._with(other, sign, fn, Elementwise if per_record else TrajectoryPredicate)

    def _computed(self, other: Any, sign: str, fn: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
        per_record = isinstance(self, Field) or isinstance(other, Field)
        return self._with(other, sign, fn, Field if per_record else Scalar, swapped)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, "<", operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, "<=", operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, ">", operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, ">=", operator.ge)

    def __eq__(self, other: Any) -> Any:
        return self._compared(other, "==", operator.eq)

    def __ne__(self, other: Any) -> Any:
        return self._compared(other, "!=", operator.ne)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return self._computed(other, "+", operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._computed(other, "+", operator.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._computed(other, "-", operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._computed(other, "-", operator.sub, True)

    def __mul__(self, other: Any) -> Any:
        return self._computed(other, "*", operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._computed(other, "*", operator.mul, True)

    def __truediv__(self, other: Any) -> Any:
        return self._computed(other, "/", operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._computed(other, "/", operator.truediv, True)

    def __abs__(self) -> Any:
        return type(self)(lambda t: abs(self._value(t)), f"abs({self._text})", self._keys)

    def __bool__(self) -> bool:
        raise TypeError(f"{self._text} is a value to compare, not a bool. Compare it: {self._text} > 0.")

    def __call__(self, trajectory: Any) -> bool:
        raise TypeError(f"{self._text} is a value, and a predicate is wanted. Compare it: {self._text} > 0.")

    def __repr__(self) -> str:
        return self._text


class Scalar(_Expression):
    """One number of a trajectory: ``traj.length``, or what a field is reduced to."""


class Field(_Expression):
    """A field of a trajectory, all of its records. It is reduced to a number, over all records and elements, by
    ``sum``, ``mean``, ``max``, ``min``, ``std``, to a bool by ``any`` and ``all``; ``first`` and ``last`` are the
    values of one record.
    """

    def sum(self) -> Scalar:
        return self._reduced("sum", lambda value: value.sum())

    def mean(self) -> Scalar:
        return self._reduced("mean", lambda value: _real(value).mean())

    def std(self) -> Scalar:
        return self._reduced("std", lambda value: _real(value).std())

    def max(self) -> Scalar:
        return self._reduced("max", lambda value: value.max())

    def min(self) -> Scalar:
        return self._reduced("min", lambda value: value.min())

    def first(self) -> Scalar:
        return self._reduced("first", lambda value: value[0])

    def last(self) -> Scalar:
        return self._reduced("last", lambda value: value[-1])

    def any(self) -> TrajectoryPredicate:
        return Elementwise(self._value, self._text, self._keys).any()

    def all(self) -> TrajectoryPredicate:
        return Elementwise(self._value, self._text, self._keys).all()

    def _reduced(self, name: str, fn: Callable[[Any], Any]) -> Scalar:
        return Scalar(lambda t: fn(self._value(t)), f"{self._text}.{name}()", self._keys)


class Elementwise(_Expression):
    """What a comparison says of each record: one bool of it is made by ``any`` or ``all``."""

    def any(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda t: _truths(self._value(t)).any(), f"{self._text}.any()", self._keys)

    def all(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda t: _truths(self._value(t)).all(), f"{self._text}.all()", self._keys)

    def __and__(self, other: Any) -> Elementwise:
        return self._with(other, "&", lambda a, b: _truths(a) & _truths(b), Elementwise)

    def __or__(self, other: Any) -> Elementwise:
        return self._with(other, "|", lambda a, b: _truths(a) | _truths(b), Elementwise)

    def __invert__(self) -> Elementwise:
        return Elementwise(lambda t: ~_truths(self._value(t)), f"~{self._text}", self._keys)

    def __call__(self, trajectory: Any) -> bool:
        raise TypeError(f"{self._text} is a bool for each record. Say .any() or .all() to make it one.")


class _Trajectories:
    """Where predicates begin: ``traj.reward``, ``traj["nested", "key"]``, ``traj.length``, ``traj.total_reward``.

    >>> (traj.reward.sum() > 100) & (traj.length >= 50)
    TrajectoryPredicate(((traj.reward.sum() > 100) & (traj.length >= 50)))
    >>> sorted(((traj["agent", "loss"].max() < 1) | traj.done.any()).required_keys(), key=str)
    [('agent', 'loss'), 'done']
    """

    @property
    def length(self) -> Scalar:
        return Scalar(lambda t: t.length, "traj.length", frozenset())

    @property
    def total_reward(self) -> Scalar:
        return Scalar(lambda t: t.total_reward, "traj.total_reward", frozenset({"reward"}))

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return Field(lambda t: t[name], f"traj.{name}", frozenset({name}))

    def __getitem__(self, key: Any) -> Field:
        path = as_path(key)
        if not path or not all(isinstance(name, str) for name in path):
            raise TypeError(f"traj[...]: expected a key, a string or a tuple of strings, got {key!r}.")
        return Field(lambda t: t[path], f"traj[{shown(path)!r}]", frozenset({shown(path)}))

    def __repr__(self) -> str:
        return "traj"


traj = _Trajectories()


def checked_predicate(predicate: Any, call: str) -> Callable[[Trajectory], bool] | None:
    """What a caller wants trajectories to be. TypeError for what cannot be called."""
    if predicate is not None and not callable(predicate):
        raise TypeError(
            f"{call}: the predicate must be built from traj, or a callable from a Trajectory to a bool, got "
            f"{predicate!r}."
        )
    return predicate


def as_truth(value: Any, what: str) -> bool:
    """What a predicate returned, as a bool; TypeError for several values at once."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise TypeError(
            f"{what} gave {[*value.shape]} values for one trajectory, and a bool is wanted. Reduce them, by .any() or "
            ".all(), .sum() or the like."
        )
    return bool(value)


def _truths(value: Any) -> Tensor:
    return value != 0 if isinstance(value, Tensor) else torch.as_tensor(value)


def _real(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.float64)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", repr(fn))


# --- data


def iter_trajectories(data: TensorDictBase, trajectory_key: Any = None) -> Iterator[Trajectory]:
    """The trajectories in a tensordict of records in time order, oldest first.

    ``data``: batch size ``[T]``; or ``[..., T]``, whose trajectories come batch coordinate by batch coordinate.
    ``trajectory_key``: the field of trajectory ids; default: as with `ReplayBuffer.query`. For what lies in a buffer
    use `ReplayBuffer.iter_trajectories`, which knows where its ring begins.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> data = TensorDict({"episode": torch.tensor([0, 0, 1]), "obs": torch.arange(3)}, [3])
    >>> [t.obs.tolist() for t in iter_trajectories(data)]
    [[0, 1], [2]]
    """
    if not is_tensor_collection(data) or not data.batch_dims:
        raise TypeError(f"iter_trajectories: data must be a tensordict with a batch size, got {type(data).__name__}.")
    if data.batch_dims > 1:
        for part in data.unbind(0):
            yield from iter_trajectories(part, trajectory_key)
        return
    start = 0
    if data.shape[0]:
        for length in lengths_in(data, trajectory_key, None, "iter_trajectories"):
            yield Trajectory(data[start : start + length])
            start += length


def filter_trajectories(
    data: TensorDictBase,
    predicate: Callable[[Trajectory], bool] | None = None,
    *,
    trajectory_key: Any = None,
) -> list[Trajectory]:
    """The trajectories in a tensordict, as `iter_trajectories` finds them, that match a predicate (default: all)."""
    wanted = checked_predicate(predicate, "filter_trajectories")
    return [
        trajectory
        for trajectory in iter_trajectories(data, trajectory_key)
        if wanted is None or as_truth(wanted(trajectory), _name(wanted))
    ]
