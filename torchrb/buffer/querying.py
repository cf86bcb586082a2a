"""Trajectories of a buffer: found by the boundaries that slice samplers use, read as a sampler reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from torchrb import transforms
from torchrb.buffer.parts import Parts
from torchrb.query import Trajectory, as_truth, checked_predicate
from torchrb.storages import Storage
from torchrb.storages.structure import as_path, shown
from torchrb.trajectories import Boundaries, TrajectoryIndex
from torchrb.writers.base import as_rows


class _Content(NamedTuple):
    """Records in time order as they were at one moment: what was read of them, slots, generations, boundaries."""

    data: Any
    slots: Tensor
    generations: Tensor
    bounds: Boundaries


class Querying(Parts):
    """Records come out as the trajectories that they make up."""

    def query(
        self, predicate: Callable[[Trajectory], bool] | None = None, *, trajectory_key: Any = None
    ) -> list[Trajectory]:
        """The stored trajectories that match a predicate, oldest first.

        ``predicate``: built from `traj`, or any callable from a `Trajectory` to a bool; None: all. ``trajectory_key``:
        the field of trajectory ids; default: ``("collector", "traj_ids")``, ``"traj_ids"`` or ``"episode"``, the first
        that is stored, else the flags ``done``, ``terminated`` and ``truncated``, below ``"next"`` or beside it.

        Boundaries are those of the stored data, before transforms, and the ones that `SliceSampler` draws by: runs of
        records that are neighbours in time. A trajectory that was written across the wrap point of the ring is whole;
        the oldest may have lost its first records. With cells within a record, those of each cell come one after the
        other.

        A predicate from `traj` tells which fields it reads (``required_keys``): only these are fetched to evaluate it,
        and only transforms that can change them are run: those whose ``out_keys`` say so. One that does not say what it
        reads and writes counts as changing everything, as does a predicate that is any other callable: then everything
        is fetched. Trajectories that match are read whole and go through all transforms, each as a batch of its own.

        All trajectories that are returned are of one moment, also when others write meanwhile. They carry ``"index"``
        and generations as a sample does. Records that are used up are in none. Nothing stored: an empty list. KeyError
        for a field that is not stored; TypeError for a predicate that gives several values.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrb import LazyTensorStorage, TensorDictReplayBuffer, traj
        >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
        >>> steps = {"episode": torch.tensor([0, 0, 0, 1, 1]), "obs": torch.arange(5)}
        >>> _ = rb.extend(TensorDict(steps | {"next": {"reward": torch.ones(5, 1)}}, [5]))
        >>> good = rb.query((traj.reward.sum() > 2) & (traj.length >= 3))
        >>> len(good), good[0].obs
        (1, tensor([0, 1, 2]))
        """
        return list(self._matching(checked_predicate(predicate, "query"), trajectory_key, "query"))

    def iter_trajectories(self, trajectory_key: Any = None) -> Iterator[Trajectory]:
        """All stored trajectories, as `query` gives them, one by one. They are those of the moment of the call."""
        return self._matching(None, trajectory_key, "iter_trajectories")

    def _matching(self, wanted: Any, trajectory_key: Any, call: str) -> Iterator[Trajectory]:
        keys = getattr(wanted, "required_keys", lambda: None)()
        storage, collate = self._read_from
        plan = None if keys is None else self._plan(keys)
        if plan is not None:
            for _ in range(2):  # a write in between: look again, and then at everything at once
                found = self._in_two_looks(storage, wanted, plan, trajectory_key, call)
                if found is not None:
                    return (self._whole(content, storage, collate) for content in found)
        with storage.lock:
            content = _read_all(self._as_drawn_from(storage), trajectory_key, call)
        parts = [] if content is None else _parts_of(content)
        made = (self._whole(part, storage, collate) for part in parts)
        if wanted is None:
            return made
        return iter([trajectory for trajectory in made if as_truth(wanted(trajectory), call)])

    def _as_drawn_from(self, storage: Storage) -> Storage:
        """The storage as samplers are to see it. The caller holds its lock."""
        counts = self._consumption
        return counts.drawn_from if counts is not None and counts.storage is storage else storage

    def _plan(self, keys: Any) -> tuple[transforms.Compose, set[tuple[Any, ...]]] | None:
        """The transforms that matter to some fields, and the fields that they need; None when that is everything."""
        wanted = {path for key in keys for path in _both(as_path(key))} - {("index",)}
        return transforms.affecting(self._transform, wanted)

    def _in_two_looks(
        self,
        storage: Storage,
        wanted: Any,
        plan: tuple[transforms.Compose, set[tuple[Any, ...]]],
        trajectory_key: Any,
        call: str,
    ) -> list[_Content] | None:
        """What matches: some fields of all, then all fields of what matched. None when it was written to in between."""
        steps, needed = plan
        with storage.lock:
            position = storage.journal_position
            partial = _read_all(self._as_drawn_from(storage), trajectory_key, call, needed)
        if partial is None:
            return []
        matching = []
        for part in _parts_of(partial):
            data = transforms.for_reader(steps, part.data)
            data.set("index", as_rows(storage, part.slots))
            if as_truth(wanted(Trajectory(data)), call):
                matching.append(part)
        with storage.lock:
            if storage.journal_position != position:
                return None
            return [part._replace(data=storage.read(part.slots)[0]) for part in matching]

    def _whole(self, content: _Content, storage: Storage, collate: Callable[[Any], Any]) -> Trajectory:
        info: dict[str, Any] = {"index": storage.coordinates(content.slots)}
        if self._writer.tracks_generations:
            info["index_generation"] = content.generations
        data = self._transformed(collate(content.data), info)
        if not isinstance(data, TensorDictBase):
            if not is_tensor_collection(data):
                raise TypeError(f"query: a trajectory is made of tensordicts, got {type(data).__name__}.")
            data = data.to_tensordict()
        return Trajectory(data)

    def _transformed(self, data: Any, info: Mapping[str, Any]) -> Any:
        raise NotImplementedError  # `Reading`, which has queries among what it reads, says how


def _both(path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [path] if path[0] == "next" else [path, ("next", *path)]


def _read_all(storage: Storage, key: Any, call: str, needed: set[tuple[Any, ...]] | None = None) -> _Content | None:
    """All records in time order, or some of their fields; None when nothing is stored. The caller holds the lock."""
    if not len(storage):
        return None
    bounds = TrajectoryIndex(storage, key, call=call).catch_up()
    slots = bounds.rows_at(torch.arange(len(storage), device=storage.device))
    if needed is None:
        data, generations = storage.read(slots)
        return _Content(data, slots, generations, bounds)
    paths = [path for path in storage.field_paths if any(_overlap(path, other) for other in needed)]
    data = TensorDict({}, [len(storage)], device=storage.device)
    for path, column in zip(paths, storage.read_fields(paths, slots), strict=True):
        data.set(shown(path), column if isinstance(column, Tensor) else NonTensorStack(*column))
    return _Content(data, slots, storage.generations(slots), bounds)


def _parts_of(content: _Content) -> Iterator[_Content]:
    """The content of each trajectory."""
    bounds = content.bounds
    for start, length in zip(bounds.starts.tolist(), bounds.lengths.tolist(), strict=True):
        rows = slice(start, start + length)
        yield _Content(content.data[rows], content.slots[rows], content.generations[rows], bounds)


def _overlap(path: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether one of two fields is in the other, or they are the same."""
    return all(a == b for a, b in zip(path, other, strict=False))
