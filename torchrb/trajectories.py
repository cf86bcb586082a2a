"""Where trajectories begin and end: one machinery for slice samplers, queries and sequences.

A trajectory is a run of records that are neighbours in time. Time is the order of writing: from the oldest slot to the
newest, round the ring, so a trajectory that was written across its wrap point is one, and the oldest may have lost its
first records. With cells within a record (``ndim > 1``) each cell has trajectories of its own.

Boundaries are where a trajectory id changes between neighbours, or behind a record whose end flag is set, or in front
of a slot that holds no record, or the present. Two runs with the same id that are not neighbours are two trajectories:
between them the actor did something else, and nothing says that the second goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import SLOT_LIVE
from torchrb.storages.base import Storage
from torchrb.storages.structure import as_path, paths_in, shown

ID_KEYS: tuple[Any, ...] = (("collector", "traj_ids"), "traj_ids", "episode")
END_NAMES = ("done", "terminated", "truncated")


class Source(NamedTuple):
    """What tells trajectories apart: one field of ids, or some of end flags, any of which ends a trajectory."""

    ids: tuple | None
    ends: tuple[tuple, ...] = ()

    @property
    def paths(self) -> list[tuple]:
        return [self.ids] if self.ids is not None else list(self.ends)


def find_source(storage: Storage, traj_key: Any, end_keys: Sequence[Any] | None, call: str) -> Source:
    """The fields that tell trajectories apart. ``None`` for both keys: the first that is stored of
    ``("collector", "traj_ids")``, ``"traj_ids"``, ``"episode"``; else the flags ``done``, ``terminated``, ``truncated``
    below ``"next"``, all that are stored; else those beside it. With both keys, the ids, where they are stored.

    KeyError for a key that is not stored, and where nothing is found.
    """
    return source_among(storage.field_paths, traj_key, end_keys, call)


def source_among(stored: Sequence[tuple], traj_key: Any, end_keys: Sequence[Any] | None, call: str) -> Source:
    """`find_source` among the fields of some data."""
    known = set(stored)
    if traj_key is not None and (as_path(traj_key) in known or end_keys is None):
        _require(known, [traj_key], call)
        return Source(as_path(traj_key))
    if end_keys is not None:
        _require(known, end_keys, call)
        return Source(None, tuple(as_path(key) for key in end_keys))
    for key in ID_KEYS:
        if as_path(key) in known:
            return Source(as_path(key))
    for parent in (("next",), ()):
        flags = tuple((*parent, name) for name in END_NAMES if (*parent, name) in known)
        if flags:
            return Source(None, flags)
    raise KeyError(
        f"{call}: no field tells trajectories apart: none of {list(ID_KEYS)}, and no done, terminated or truncated, "
        f"among {_names(known)}. Name one with the trajectory key or the end key."
    )


def _require(known: set[tuple], keys: Sequence[Any], call: str) -> None:
    for key in keys:
        if as_path(key) not in known:
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {_names(known)}.")


def _names(paths: set[tuple]) -> list[Any]:
    return sorted((shown(path) for path in paths), key=str)


@dataclass
class Boundaries:
    """The trajectories of a storage at one time, in order of their cell, then of time.

    Positions count records in time order, cell after cell: position ``cell * num + t``. ``starts``, ``lengths``: int64
    ``[n]``, positions where trajectories start, and their records. With ``order``, positions are those of a sorted
    sequence instead, and ``order`` says which record each one is.
    """

    num: int
    first: int
    cells: torch.Size
    starts: Tensor
    lengths: Tensor
    order: Tensor | None = None
    _eligible: dict[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.starts.shape[0]

    def at_least(self, length: int) -> Tensor:
        """The numbers of the trajectories of so many records or more, int64."""
        if length not in self._eligible:
            self._eligible[length] = torch.nonzero(self.lengths >= length).view(-1)
        return self._eligible[length]

    def records_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The slot and the cell number of positions."""
        if self.order is not None:
            positions = self.order[positions]
        return (positions % self.num + self.first) % self.num, positions // self.num

    def positions_of(self, slots: Tensor, cells: Tensor | int = 0) -> Tensor:
        """The positions of stored records (and their cells)."""
        positions = (slots - self.first) % self.num + cells * self.num
        return positions if self.order is None else torch.argsort(self.order)[positions]

    def owners_of(self, positions: Tensor) -> Tensor:
        """The number of the trajectory that each position is in; -1 for a slot that holds no record."""
        if not len(self):
            return torch.full_like(positions, -1)
        owners = torch.searchsorted(self.starts, positions, right=True) - 1
        inside = (owners >= 0) & (positions < self.starts[owners] + self.lengths[owners])
        return torch.where(inside, owners, -1)


class TrajectoryIndex:
    """The boundaries of a storage, kept up to date from its journal.

    A write costs the records written, and at the next look one pass over a byte for each stored record and the table of
    trajectories; a look when nothing was written costs nothing. (With a step key, everything is sorted anew after a
    write.) On a GPU the host waits for the counters at each look.

    ``whole``: nothing ends a trajectory but a slot that holds no record, and the present.
    ``ends`` or ``trajectories`` (bool flags, ids; by slot, ``[len(storage)]``) instead of fields: they are the caller's
    word, which no write changes; ValueError when they are not of the records that are stored.

    ``rows_visited``: records looked at so far.
    """

    def __init__(
        self,
        storage: Storage,
        traj_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        *,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        step_key: Any = None,
        whole: bool = False,
        call: str = "TrajectoryIndex",
    ) -> None:
        self.storage = storage
        self._keys, self._given = (traj_key, end_keys), ends if trajectories is None else trajectories
        self._given_ids, self._step_key, self._whole, self._call = trajectories is not None, step_key, whole, call
        self._reader = JournalReader()
        self._source = Source(None)
        self._stops = torch.empty(0, dtype=torch.bool)  # by slot: whether the record is the last of its trajectory
        self._live = self._stops
        self._known: Boundaries | None = None
        self.rows_visited = 0

    def catch_up(self) -> Boundaries:
        """The boundaries as the storage is now. The caller holds the storage's lock, and something is stored."""
        storage = self.storage
        if self._known is not None and not self._reader.moved(storage.control):
            return self._known
        slots, position = self._reader.unread(storage.control, storage.journal)
        if self._step_key is not None:
            known = self._sorted()
        else:
            self._look_at(slots)
            known = self._cut()
        self._known = known
        self._reader.accept(position)  # last: what was cut off is looked at again
        return known

    # --- which records are the last of their trajectories

    def _look_at(self, slots: Tensor | None) -> None:
        """Bring `_stops` and `_live` up to date for slots that were written; for None, all of them."""
        storage = self.storage
        capacity, device = storage.tables[0].shape[0], storage.device
        if slots is None or self._stops.shape[0] != capacity:
            slots = torch.arange(len(storage), device=device)
            self._find_source()
            self._live = torch.zeros(capacity, dtype=torch.bool, device=device)
            self._stops = torch.ones((capacity, *self._cells()), dtype=torch.bool, device=device)
        else:  # whether a record is the last also depends on the one behind it
            slots = torch.unique(torch.cat([slots, (slots - 1) % capacity]))
        self._live[slots] = (words_of(storage.tables)[slots] & SLOT_LIVE) != 0
        followers = (slots + 1) % capacity
        follower_live = (words_of(storage.tables)[followers] & SLOT_LIVE) != 0
        self._stops[slots] = True
        inner = self._live[slots] & follower_live
        slots, followers = slots[inner], followers[inner]
        self.rows_visited += slots.shape[0]
        if self._given is None and slots.shape[0]:
            self._stops[slots] = False if self._whole else self._last(slots, followers)

    def _last(self, slots: Tensor, followers: Tensor) -> Tensor:
        """Whether records, both of which are there, are the last of their trajectories: bool ``[n, *cells]``."""
        storage, source = self.storage, self._source
        if source.ids is None:
            flags = [self._per_cell(flag != 0) for flag in map(self._numeric, storage.read_fields(source.paths, slots))]
            return torch.stack(flags).any(0)
        (mine,), (theirs,) = (storage.read_fields([source.ids], where) for where in (slots, followers))
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            return self._per_cell(mine != theirs)
        differ = [_differ(a, b) for a, b in zip(mine, theirs, strict=True)]
        return (
            torch.tensor(differ, device=storage.device).view(-1, *[1] * len(self._cells())).expand(-1, *self._cells())
        )

    def _find_source(self) -> None:
        if self._whole:
            return
        if self._given is None:
            self._source = find_source(self.storage, *self._keys, self._call)
            return
        expected, got = (len(self.storage), *self._cells()), self._given.shape[: 1 + len(self._cells())]
        if got != expected:
            raise ValueError(
                f"{self._call}: boundaries were given for {[*got]} records, and {[*expected]} are stored. Give "
                "one value for each stored record, or a key that boundaries can be read from."
            )

    def _numeric(self, column: Any) -> Tensor:
        if isinstance(column, Tensor):
            return column
        raise TypeError(
            f"{self._call}: end flags {_names(set(self._source.ends))} must be bools or numbers of one shape in every "
            "record. Use a trajectory key."
        )

    def _per_cell(self, truth: Tensor) -> Tensor:
        """Whether it is true of any element within a cell."""
        num_dims = 1 + len(self._cells())
        return truth.flatten(num_dims).any(num_dims) if truth.dim() > num_dims else truth

    def _cells(self) -> torch.Size:
        """The shape of the cells within a record."""
        return torch.Size()

    # --- the table

    def _cut(self) -> Boundaries:
        num, first, capacity = len(self.storage), 0, self._live.shape[0]
        stops, live = self._stops, self._live
        if self._given is not None:
            self._find_source()
            given = self._given.to(self.storage.device)
            last = self._per_cell(given != given.roll(-1, 0) if self._given_ids else given != 0)
            stops = stops.clone()
            stops[:num] = last
        if num == capacity:
            first = self.storage.cursor
        stops, live = (torch.cat([by_slot[first:num], by_slot[:first]]) for by_slot in (stops, live))
        stops[-1] = True
        cells = stops.shape[1:]
        flat = stops.flatten(1).t().reshape(-1) if cells else stops
        ends = torch.nonzero(flat).view(-1)
        starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
        lengths = ends - starts + 1
        if not bool(live.all()):
            there = live[starts % num]
            starts, lengths = starts[there], lengths[there]
        return Boundaries(num, first, cells, starts, lengths)

    def _sorted(self) -> Boundaries:
        """Trajectories whose records do not lie side by side: by id, then by step, cut where a step is missing."""
        storage = self.storage
        self._find_source()
        step = as_path(self._step_key)
        if self._source.ids is None or step not in storage.field_paths:
            raise KeyError(
                f"{self._call}: fragmented=True needs a field of trajectory ids and one of steps, {self._step_key!r}; "
                f"stored are {_names(set(storage.field_paths))}."
            )
        num, capacity = len(storage), storage.tables[0].shape[0]
        first = storage.cursor if num == capacity else 0
        slots = (torch.arange(num, device=storage.device) + first) % num
        there = (words_of(storage.tables)[slots] & SLOT_LIVE) != 0
        self.rows_visited += num
        ids, steps = storage.read_fields([self._source.ids, step], slots)
        if not isinstance(ids, Tensor):
            numbers: dict[Any, int] = {}
            ids = torch.tensor([numbers.setdefault(_hashable(value), len(numbers)) for value in ids])
        cells, num_dims = self._cells(), 1 + len(self._cells())
        ids = ids.reshape(*ids.shape[:num_dims], -1).movedim(0, num_dims - 1).reshape(cells.numel() * num, -1)
        steps = steps.reshape(num, *cells).movedim(0, -1).reshape(-1)
        order = torch.nonzero(there.repeat(cells.numel())).view(-1)
        for column in (steps, *reversed(ids.unbind(1))):
            order = order[torch.argsort(column[order], stable=True)]
        ids, steps = ids[order], steps[order]
        last = (ids[1:] != ids[:-1]).any(1) | (steps[1:] != steps[:-1] + 1)
        ends = torch.nonzero(torch.cat([last, last.new_ones(1)])).view(-1)
        starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
        return Boundaries(num, first, cells, starts, ends - starts + 1, order)


def _differ(a: Any, b: Any) -> bool:
    """Whether two ids that are not numbers of one shape differ."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return not (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b))
    return bool(a != b)


def _hashable(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.tolist()
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def lengths_in(data: TensorDictBase, traj_key: Any, end_keys: Sequence[Any] | None, call: str) -> list[int]:
    """The lengths of the trajectories in a tensordict of records in time order, batch size ``[T]``."""
    source = source_among(list(paths_in(data)), traj_key, end_keys, call)
    columns = [value.tolist() if is_non_tensor(value) else value for value in map(data.get, map(shown, source.paths))]
    if source.ids is None:
        last = torch.stack([(column != 0).flatten(1).any(1) if column.dim() > 1 else column != 0 for column in columns])
        last = last.any(0)[:-1]
    elif isinstance(columns[0], Tensor):
        last = columns[0][1:] != columns[0][:-1]
        last = last.flatten(1).any(1) if last.dim() > 1 else last
    else:
        values = columns[0]
        last = torch.tensor([_differ(a, b) for a, b in zip(values[1:], values[:-1], strict=True)], dtype=torch.bool)
    ends = [*torch.nonzero(last).view(-1).tolist(), data.shape[0] - 1]
    return [end - start for start, end in zip([-1, *ends[:-1]], ends, strict=True)]
