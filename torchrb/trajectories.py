"""Where trajectories begin and end: one machinery for slice samplers, queries and sequences.

A trajectory is a run of records that are neighbours in time. Time is the order of writing: from the oldest slot to the
newest, round the ring, so a trajectory that was written across its wrap point is one, and the oldest may have lost its
first records. With cells within a record (``ndim > 1``) each cell has trajectories of its own. For a sampler of records
that are used up (``consume_after_n_samples``) new ones lie over those, and the ring is none: there neighbours are what
was written next to each other, by the stamps of the records.

Boundaries are where a trajectory id changes between neighbours, or behind a record whose end flag is set, or in front
of a slot that holds no record, or the present. Two runs with the same id that are not neighbours are two trajectories:
between them the actor did something else, and nothing says that the second goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import HEADER_BYTES, SLOT_LIVE, STAMP_SHIFT
from torchrb.storages.base import Storage
from torchrb.storages.filtered import Filtered
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
            raise KeyError(
                f"{call}: no field {key!r} is stored; stored are {_names(known)}. Say which of them tells trajectories "
                "apart: ids (traj_key) or flags of their ends (end_key, done_key)."
            )


def _names(paths: set[tuple]) -> list[Any]:
    return sorted((shown(path) for path in paths), key=str)


@dataclass
class Boundaries:
    """The trajectories of a storage at one time, in order of their cell, then of time.

    Positions count records in time order, cell after cell: position ``cell * num + t`` of ``num`` records of ``cells``
    cells, the oldest of which is in slot ``first``. ``starts``, ``lengths``: int64 ``[n]``, positions where
    trajectories start, and their records. With ``order``, positions are those of a sorted sequence instead, and
    ``order`` says which of these each one is. A row is a slot, or a cell of it: ``slot * cells + cell``.
    """

    num: int
    cells: int
    first: int
    starts: Tensor
    lengths: Tensor
    order: Tensor | None = None
    keep: Callable[..., None] | None = None  # to be told of tensors that several calls use, on a GPU
    _eligible: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keep is not None:
            self.keep(self.starts, self.lengths, *([] if self.order is None else [self.order]))

    def __len__(self) -> int:
        return self.starts.shape[0]

    def at_least(self, length: int) -> Tensor:
        """The numbers of the trajectories of so many records or more, int64."""
        if length not in self._eligible:
            self._eligible[length] = torch.nonzero(self.lengths >= length).view(-1)
            if self.keep is not None:
                self.keep(self._eligible[length])
        return self._eligible[length]

    def rows_at(self, positions: Tensor) -> Tensor:
        """The row at each position."""
        if self.order is not None:
            positions = self.order[positions]
        if self.cells == 1:
            return (positions + self.first) % self.num
        return (positions % self.num + self.first) % self.num * self.cells + positions // self.num

    def positions_of(self, rows: Tensor) -> Tensor:
        """The position of each row that is stored."""
        positions = (rows // self.cells - self.first) % self.num + rows % self.cells * self.num
        if self.order is None:
            return positions
        places = torch.full((self.num * self.cells,), -1, dtype=torch.int64, device=rows.device)
        places[self.order] = torch.arange(self.order.shape[0], device=rows.device)
        return places[positions]

    def owners_of(self, positions: Tensor) -> Tensor:
        """The number of the trajectory that each position is in; -1 for one in none."""
        if not len(self):
            return torch.full_like(positions, -1)
        owners = torch.searchsorted(self.starts, positions, right=True) - 1
        inside = (owners >= 0) & (positions < self.starts[owners] + self.lengths[owners])
        return torch.where(inside, owners, -1)


class TrajectoryIndex:
    """The boundaries of a storage, kept up to date from its journal.

    A look costs the records written since the last one, and the table of trajectories; nothing when nothing was
    written. (With a step key, everything is sorted anew after a write.) On a GPU the host waits for the counters at
    each look.

    ``whole``: nothing ends a trajectory but a slot that holds no record, and the present.
    ``ends`` or ``trajectories`` (bool flags, ids; by slot, ``[num]``, or ``[num, *cells]``) instead of fields: they are
    the caller's word, which no write changes; ValueError when they are not of the records that are stored.

    ``rows_visited``: rows looked at so far.
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
        self._stops = torch.empty(0, dtype=torch.bool)  # by row: whether it is the last of its trajectory
        self._live = self._stops
        self._ends, self._num_dead = torch.empty(0, dtype=torch.int64), 0  # rows with `_stops`, ascending; and not live
        self._known: Boundaries | None = None
        self._keep = storage.lock.owns if storage.device.type == "cuda" else None
        self.rows_visited = 0

    def catch_up(self) -> Boundaries:
        """The boundaries as the storage is now. The caller holds the storage's lock, and something is stored."""
        storage = self.storage
        if self._known is not None and not self._reader.moved(storage.control):
            return self._known
        rows, position = self._reader.unread(storage.control, storage.journal)
        if self._step_key is not None:
            known = self._sorted()
        else:
            try:
                self._look_at(rows)
            except BaseException:
                self._stops = self._stops[:0]  # it may be half-way: all is looked at again
                raise
            known = self._cut()
        self._known = known
        self._reader.accept(position)  # last: what was cut off is looked at again
        return known

    # --- which rows are the last of their trajectories

    def _look_at(self, rows: Tensor | None) -> None:
        """Bring `_stops`, and what goes with it, up to date for rows that were written; for None, all of them."""
        storage = self.storage
        capacity, cells, device = storage.tables[0].shape[0], storage.num_cells, storage.device
        if rows is None or self._stops.shape[0] != capacity:
            rows = torch.arange(len(storage), device=device)
            self._find_source()
            self._live, self._stops = torch.zeros(2, capacity, dtype=torch.bool, device=device)
            self._ends, self._num_dead = rows[:0], capacity
        else:  # whether a record is the last also depends on the one behind it
            rows = torch.unique(torch.cat([rows, (rows - cells) % capacity]))
        words, followers = words_of(storage.tables), (rows + cells) % capacity
        live = (words[rows] & SLOT_LIVE) != 0
        inner = live & ((words[followers] & SLOT_LIVE) != 0)
        if isinstance(storage, Filtered):  # what lies side by side need not have been written so
            stamps = storage.tables[0][:, :HEADER_BYTES].view(torch.int64)[:, 1] >> STAMP_SHIFT
            inner &= stamps[followers] == stamps[rows] + cells
        stops = ~inner
        if self._given is None and not self._whole and bool(inner.any()):
            stops[inner] = self._last(rows[inner], followers[inner])
        self.rows_visited += rows.shape[0]
        fresh = rows[stops & ~self._stops[rows]]
        self._num_dead += int(self._live[rows].sum()) - int(live.sum())
        self._live[rows], self._stops[rows] = live, stops
        self._ends = _merged(self._ends[self._stops[self._ends]], fresh)
        if self._keep is not None:
            self._keep(self._live, self._stops, self._ends)

    def _last(self, rows: Tensor, followers: Tensor) -> Tensor:
        """Whether records, behind which there are others, are the last of their trajectories: bool ``[n]``."""
        storage, source = self.storage, self._source
        if source.ids is None:
            return torch.stack([_any_of(self._flags(c)) for c in storage.read_fields(source.paths, rows)]).any(0)
        (mine,), (theirs,) = (storage.read_fields([source.ids], where) for where in (rows, followers))
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            return _any_of(mine != theirs)
        differ = [_differ(a, b) for a, b in zip(mine, theirs, strict=True)]
        return torch.tensor(differ, device=storage.device)

    def _find_source(self) -> None:
        if self._given is None and not self._whole:
            self._source = find_source(self.storage, *self._keys, self._call)

    def _flags(self, column: Any) -> Tensor:
        if isinstance(column, Tensor):
            return column != 0
        raise TypeError(
            f"{self._call}: end flags {_names(set(self._source.ends))} must be bools or numbers of one shape in every "
            "record. Use a trajectory key."
        )

    def _stops_given(self, num: int, cells: int) -> Tensor:
        """What the caller gave, by row."""
        given = self._given
        assert given is not None
        if given.shape[0] != num or given.numel() % (num * cells):
            raise ValueError(
                f"{self._call}: boundaries were given for {[*given.shape]} records, and {num} are stored"
                f"{f', of {cells} cells' if cells > 1 else ''}. Give one value for each stored record, or a key that "
                "boundaries can be read from."
            )
        given = given.to(self.storage.device).reshape(num, cells, -1)
        return (given != given.roll(-1, 0) if self._given_ids else given != 0).any(2).view(-1)

    # --- the table

    def _ring(self) -> tuple[int, int, int]:
        """How many records are stored, of how many cells, and the slot of the oldest one."""
        storage = self.storage
        cells, length = storage.num_cells, len(storage)
        full = length == storage.tables[0].shape[0]
        return length // cells, cells, storage.cursor // cells if full else 0

    def _cut(self) -> Boundaries:
        num, cells, first = self._ring()
        bounds = Boundaries(num, cells, first, self._ends[:0], self._ends[:0])
        ends = self._ends
        if self._given is not None:
            ends = torch.nonzero(self._stops[: num * cells] | self._stops_given(num, cells)).view(-1)
        old, stored = torch.searchsorted(ends, torch.tensor([first * cells, num * cells], device=ends.device)).tolist()
        ends = bounds.positions_of(torch.cat([ends[old:stored], ends[:old]]))
        newest = torch.arange(1, cells + 1, device=ends.device) * num - 1  # the present ends what is being written
        if cells == 1:
            ends = ends if ends.shape[0] and bool(ends[-1] == newest) else torch.cat([ends, newest])
        else:
            ends = torch.unique(torch.cat([ends, newest]))
        starts, lengths = _between(ends)
        if self._num_dead > self._live.shape[0] - num * cells:
            there = self._live[bounds.rows_at(starts)]
            starts, lengths = starts[there], lengths[there]
        return Boundaries(num, cells, first, starts, lengths, keep=self._keep)

    def _sorted(self) -> Boundaries:
        """Trajectories whose records do not lie side by side: by id, then by step, cut where a step is missing."""
        storage, step = self.storage, as_path(self._step_key)
        self._find_source()
        if self._source.ids is None or step not in storage.field_paths:
            raise KeyError(
                f"{self._call}: fragmented=True needs a field of trajectory ids and one of steps, {self._step_key!r}; "
                f"stored are {_names(set(storage.field_paths))}."
            )
        everything = Boundaries(*self._ring(), torch.empty(0), torch.empty(0))
        num_rows = everything.num * everything.cells
        rows = everything.rows_at(torch.arange(num_rows, device=storage.device))
        order = torch.nonzero((words_of(storage.tables)[rows] & SLOT_LIVE) != 0).view(-1)
        self.rows_visited += order.shape[0]
        ids, steps = storage.read_fields([self._source.ids, step], rows[order])
        if not isinstance(ids, Tensor):
            numbers: dict[Any, int] = {}
            ids = torch.tensor(
                [numbers.setdefault(_hashable(value), len(numbers)) for value in ids], device=rows.device
            )
        ids, steps = ids.reshape(order.shape[0], -1), steps.reshape(order.shape[0], -1)[:, 0]
        for number in (None, *reversed(range(ids.shape[1]))):
            column = steps if number is None else ids[:, number]
            place = torch.argsort(column, stable=True)
            order, ids, steps = order[place], ids[place], steps[place]
        last = (ids[1:] != ids[:-1]).any(1) | (steps[1:] != steps[:-1] + 1)
        starts, lengths = _between(torch.nonzero(torch.cat([last, last.new_ones(1)])).view(-1))
        return Boundaries(everything.num, everything.cells, everything.first, starts, lengths, order, self._keep)


def _any_of(truth: Tensor) -> Tensor:
    """Whether it is true of any element of a row."""
    return truth.flatten(1).any(1) if truth.dim() > 1 else truth


def _between(ends: Tensor) -> tuple[Tensor, Tensor]:
    """Where runs start, and how long they are, by the last place of each."""
    starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    return starts, ends - starts + 1


def _merged(some: Tensor, others: Tensor) -> Tensor:
    """Two ascending sequences, with nothing in common, as one."""
    if not others.shape[0]:
        return some
    places = torch.searchsorted(some, others) + torch.arange(others.shape[0], device=some.device)
    merged = some.new_empty(some.shape[0] + others.shape[0])
    rest = torch.ones_like(merged, dtype=torch.bool)
    rest[places] = False
    merged[places], merged[rest] = others, some
    return merged


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
        last = torch.stack([_any_of(column != 0) for column in columns]).any(0)[:-1]
    elif isinstance(columns[0], Tensor):
        last = _any_of(columns[0][1:] != columns[0][:-1])
    else:
        values = columns[0]
        last = torch.tensor([_differ(a, b) for a, b in zip(values[1:], values[:-1], strict=True)], dtype=torch.bool)
    ends = [*torch.nonzero(last).view(-1).tolist(), data.shape[0] - 1]
    return [end - start for start, end in zip([-1, *ends[:-1]], ends, strict=True)]
