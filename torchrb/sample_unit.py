"""What a draw is made of: the records that a sampler selects, or sequences around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from torchrb.storages.base import Storage
from torchrb.storages.indexing import resolve
from torchrb.trajectories import TrajectoryIndex

_BOUNDARIES = ("pad", "stop", "include_reset")


class SampleUnit(ABC):
    """Expands the anchors that a sampler selects into the records of a batch."""

    @abstractmethod
    def expand(self, index: Any, info: dict[str, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        """The records of the batch, and what there is to tell about them.

        ``index``: the anchors, slots int64 ``[n]``. ``info``: what the sampler tells of the draw. ``storage``: what is
        drawn from, locked. Returns slots of stored records, int64 of any shape, and a dict: all of it goes into the
        info of a sample, and each tensor that starts with the batch's shape also into a batch of a
        `TensorDictReplayBuffer`, before transforms run.
        """


class Transition(SampleUnit):
    """Each anchor is a record of the batch, as without a sample unit.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer, Transition
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), sample_unit=Transition())
    >>> _ = rb.extend(torch.tensor([7]))
    >>> rb.sample(2)
    tensor([7, 7])
    """

    def expand(self, index: Any, info: dict[str, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        return index, info

    def __repr__(self) -> str:
        return "Transition()"


class Sequence(SampleUnit):
    """A sequence of records from each anchor on, in the order in which they were written.

    Args:
        length: records to learn from: the anchor and those that follow it.
        episode_boundary: what becomes of a sequence that would go past the end of its trajectory. ``"pad"``: the last
            record is repeated, and is not valid. ``"stop"``: the sequence begins earlier, so that it ends with the
            trajectory; it is padded where the trajectory is too short. ``"include_reset"``: it goes on with the next
            trajectory, as far as there are records.
        done_key: the field of end flags that ends trajectories; None when nothing does.
        burn_in: records before the anchor, to warm a recurrent state up.
        bootstrap: records after those to learn from, for the value of what comes next.
        dilation: every which record.

    Keyword Args:
        traj_key: a field of trajectory ids, instead of ``done_key``; see `SliceSampler`.

    A batch is sequence after sequence, ``burn_in + length + bootstrap`` records each. With it come, one for each
    record: ``"sequence_id"``, ``"step_in_sequence"`` (int64), ``"anchor_index"`` (the slot that was selected),
    ``"learning_mask"`` (neither burn-in nor bootstrap), ``"validity_mask"`` (no padding, at neither end), and what the
    sampler tells of an anchor. A sequence follows the ring round its wrap point, and never goes past the newest record.

    ValueError for a length or dilation below 1 and negative counts; KeyError at `sample` for a field that is not
    stored.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, SamplerWithoutReplacement, Sequence, TensorDictReplayBuffer
    >>> rb = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(shuffle=False), sample_unit=Sequence(3)
    ... )
    >>> done = torch.tensor([False, False, False, True, False])
    >>> _ = rb.extend(TensorDict({"obs": torch.arange(5), "next": {"done": done}}, [5]))
    >>> batch = rb.sample(3)
    >>> batch["obs"].view(3, 3).tolist(), batch["validity_mask"].view(3, 3)[2].tolist()
    ([[0, 1, 2], [1, 2, 3], [2, 3, 3]], [True, True, False])
    """

    def __init__(
        self,
        length: int,
        episode_boundary: Literal["pad", "stop", "include_reset"] = "pad",
        done_key: Any = ("next", "done"),
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
        *,
        traj_key: Any = None,
    ) -> None:
        for name, value, least in (
            ("length", length, 1), ("burn_in", burn_in, 0), ("bootstrap", bootstrap, 0), ("dilation", dilation, 1)
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"Sequence: {name} must be an int from {least}, got {value!r}.")
        if episode_boundary not in _BOUNDARIES:
            raise ValueError(f"Sequence: episode_boundary must be one of {_BOUNDARIES}, got {episode_boundary!r}.")
        self.length, self.episode_boundary, self.done_key, self.traj_key = length, episode_boundary, done_key, traj_key
        self.burn_in, self.bootstrap, self.dilation = burn_in, bootstrap, dilation
        self._index: TrajectoryIndex | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": None}  # it belongs to the process that made it

    def expand(self, index: Any, info: dict[str, Any], storage: Storage) -> tuple[Any, dict[Any, Any]]:
        bounds = self._index_of(storage).catch_up()
        anchors = bounds.positions_of(index)
        owners = bounds.owners_of(anchors)
        first = torch.where(owners >= 0, bounds.starts[owners], anchors)
        last = torch.where(owners >= 0, first + bounds.lengths[owners] - 1, anchors)
        begin = anchors
        if self.episode_boundary == "stop":
            begin = torch.maximum(
                torch.minimum(anchors, last - (self.length - 1 + self.bootstrap) * self.dilation), first
            )
        steps = torch.arange(self.burn_in + self.length + self.bootstrap, device=anchors.device)
        wanted = begin[:, None] + (steps - self.burn_in) * self.dilation
        positions = torch.minimum(torch.maximum(wanted, first[:, None]), last[:, None])
        slots = bounds.rows_at(positions.view(-1))
        num, size = positions.shape
        learning = (steps >= self.burn_in) & (steps < self.burn_in + self.length)
        told = {
            key: value.repeat_interleave(size, 0) if isinstance(value, Tensor) and value.shape[:1] == (num,) else value
            for key, value in info.items()
        }
        return slots, told | {
            "sequence_id": torch.arange(num, device=anchors.device).repeat_interleave(size),
            "step_in_sequence": steps.repeat(num),
            "learning_mask": learning.repeat(num),
            "anchor_index": _as_index(storage, index.repeat_interleave(size)),
            "validity_mask": (wanted == positions).view(-1),
        }

    def _index_of(self, storage: Storage) -> TrajectoryIndex:
        index = self._index
        if index is None or index.storage is not storage:
            ends = None if self.done_key is None or self.traj_key is not None else [self.done_key]
            whole = self.episode_boundary == "include_reset" or (self.done_key is None and self.traj_key is None)
            index = self._index = TrajectoryIndex(storage, self.traj_key, ends, whole=whole, call="Sequence")
        return index

    def __repr__(self) -> str:
        options = ("length", "episode_boundary", "done_key", "burn_in", "bootstrap", "dilation")
        return f"Sequence({', '.join(f'{name}={getattr(self, name)!r}' for name in options)})"


def expanded(unit: SampleUnit, index: Tensor, info: dict[str, Any], storage: Storage) -> tuple[Tensor, dict[Any, Any]]:
    """What a unit makes of anchors: rows of the storage, int64 of any shape, and what it tells. IndexError or TypeError
    for what names no records.
    """
    rows, told = unit.expand(index, info, storage)
    found = resolve(rows, storage.extent, storage.device, f"{type(unit).__name__}.expand")
    return found.flat.view(found.shape), dict(told)


def checked_unit(unit: Any, call: str) -> SampleUnit | None:
    """A sample unit that a buffer was given; None for one that changes nothing. TypeError for anything else."""
    if unit is None or type(unit) is Transition:
        return None
    if not isinstance(unit, SampleUnit):
        raise TypeError(f"{call}: sample_unit must be a SampleUnit, got {unit!r}. Pass an instance.")
    return unit


def _as_index(storage: Storage, rows: Tensor) -> Tensor:
    """Slots as one tensor: in a storage of several dimensions with their coordinates."""
    return rows if storage.ndim == 1 else torch.stack(storage.coordinates(rows), -1)  # type: ignore[arg-type]
