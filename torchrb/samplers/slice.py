"""Slices of trajectories, drawn with replacement or in passes over the trajectories."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrb import ops
from torchrb.ops import rng
from torchrb.persistence import StateReader
from torchrb.samplers.base import NothingToDraw, NotOneBatch, Sampler, require_records, split_batch, take_seed
from torchrb.storages.base import Storage
from torchrb.storages.structure import as_path, shown
from torchrb.trajectories import Boundaries, TrajectoryIndex

_STREAM = rng.UNIFORM + 1  # of the random numbers of a draw: which trajectories, then where in them
MASK_KEY = ("collector", "mask")


class SliceSampler(Sampler):
    """Draws slices of trajectories: records that were written one after the other, slice after slice, with replacement.

    Keyword Args:
        num_slices, slice_len: exactly one of them; the other follows from the batch size.
        traj_key: the field of trajectory ids, of any type and shape; a trajectory ends where the id changes.
        end_key: the field of end flags: a trajectory ends behind a record where any element is set. With neither key:
            ``("collector", "traj_ids")``, ``"traj_ids"`` or ``"episode"``, the first that is stored; else all of
            ``done``, ``terminated`` and ``truncated`` that are stored below ``"next"``, or beside it. With both, the
            ids, where they are stored.
        end_keys: several fields of end flags, any of which ends a trajectory; instead of ``end_key``.
        ends, trajectories: end flags or ids of the stored records, by slot, instead of a key. Writes do not change
            them: they are for a storage that is complete.
        step_key, fragmented: with ``fragmented=True`` trajectories are put together from records that lie anywhere
            (interleaved actors), ordered by the integers of ``step_key``, and cut where a step is missing.
        strict_length: only trajectories of ``slice_len`` records or more are drawn from. Otherwise also shorter ones,
            whole: a batch may then be smaller than asked for.
        pad_output: fill short slices up to ``slice_len`` with their last record; ``("collector", "mask")`` tells which
            records are not filling. Slices are then of one length, whatever else is asked for.
        span: let slices begin before their trajectory, or end behind it, so that its first and last records are drawn
            as often as the others; what lies outside is left out. An int: by so many records. True: by all but one.
            False: not at all. A pair: at the beginning, at the end.
        truncated_key: where the ends of slices are marked; None for no marks.
        init_key: where the starts of slices are marked, if the field is stored; None for no marks.
        cache_values, use_gpu, compile: accepted for compatibility. Boundaries are always cached, on the storage's
            device, and follow whatever is written.

    Trajectories are those of `torchrb.trajectories`: `ReplayBuffer.query` sees the same. Each that is long enough is
    equally likely, and in it each start. A draw costs the records drawn; the first one after a write costs the records
    written, one pass over a byte for each stored record, and the table of trajectories. On a GPU the host waits for the
    counters, and, where slices may be short, for their lengths.

    In a batch of a `TensorDictReplayBuffer`, and in the info of any, ``("next", "truncated")`` is set at the last
    record of each slice, ``("next", "done")`` wherever that, the stored ``done``, ``terminated`` or ``truncated`` is;
    ``("next", "terminated")`` is the stored one, or, where only ``done`` is stored, what is done and not stored as
    truncated. They are there before transforms run.

    Errors: TypeError for both or neither of the counts; ValueError for a batch size that is not a multiple, and for
    boundaries given for other records; KeyError for a field that is not stored; RuntimeError when nothing is stored, no
    trajectory is long enough, or a CUDA graph is captured. No random number is taken then.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
    >>> rb = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=3, traj_key="episode"), batch_size=6
    ... )
    >>> steps = TensorDict({"episode": torch.tensor([0] * 5 + [1] * 2 + [2] * 3), "obs": torch.arange(10)}, [10])
    >>> _ = rb.extend(steps)
    >>> batch = rb.sample()
    >>> batch["obs"].view(2, 3).diff().tolist(), batch["next", "truncated"].view(2, 3).tolist()
    ([[1, 1], [1, 1]], [[False, False, True], [False, False, True]])
    """

    marks_records = True

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        step_key: Any = "step_count",
        fragmented: bool = False,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict = False,
        span: Any = False,
        use_gpu: Any = False,
    ) -> None:
        name = type(self).__name__
        if (num_slices is None) == (slice_len is None):
            raise TypeError(
                f"{name}: give exactly one of num_slices and slice_len, "
                f"got num_slices={num_slices} and slice_len={slice_len}."
            )
        for option, value in (("num_slices", num_slices), ("slice_len", slice_len)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}: {option} must be a positive int, got {value!r}.")
        given = {"ends": ends, "trajectories": trajectories}
        keyed = {"traj_key": traj_key, "end_key": end_key, "end_keys": end_keys}
        named = [option for option, value in (given | keyed).items() if value is not None]
        if len(named) > 1 and named not in (["traj_key", "end_key"], ["traj_key", "end_keys"]):
            raise TypeError(f"{name}: {' and '.join(named)} exclude each other. Give one of them.")
        if fragmented and named not in ([], ["traj_key"]):
            raise TypeError(f"{name}: fragmented=True goes with a traj_key and a step_key, got {' and '.join(named)}.")
        if end_keys is not None and not len(end_keys):
            raise ValueError(f"{name}: end_keys must name at least one field, got {end_keys!r}.")
        self.num_slices, self.slice_len = num_slices, slice_len
        self.traj_key, self.end_key, self.end_keys = traj_key, end_key, end_keys
        self.step_key, self.fragmented = step_key, fragmented
        self.truncated_key, self.init_key = truncated_key, init_key
        self.strict_length, self.pad_output, self.span = strict_length, pad_output, _sides(span, name)
        self.cache_values, self.compile, self.use_gpu = cache_values, compile, use_gpu
        self._ends, self._trajectories = (_own(value, option, name) for option, value in given.items())
        self._index: TrajectoryIndex | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": None}  # it belongs to the process that made it

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        num, length = split_batch(self, batch_size, "num_slices", "slice_len")
        require_records(storage)
        bounds = self._boundaries_of(storage)
        chosen = self._long_enough(bounds, length)
        seed = take_seed(generator, storage)
        which, where = rng.random64(seed, _STREAM, torch.arange(2 * num, device=storage.device)).view(2, num)
        return self._slices(bounds, chosen[rng.below(which, chosen.shape[0])], length, where)

    def explain(self, drawn: Any) -> dict[str, Any]:
        return {}

    def marks(self, drawn: dict[str, Tensor], data: Any) -> dict[Any, Tensor]:
        """What is marked in a batch: the ends of slices, their starts, and which records fill them up."""
        marks: dict[Any, Tensor] = {}
        known = data if isinstance(data, TensorDictBase) else TensorDict({})
        real, firsts = drawn.get("mask"), torch.ones_like(drawn["slice"], dtype=torch.bool)
        # Where a record was left out of a draw, for one, the slice is in two.
        firsts[1:] = (drawn["slice"][1:] != drawn["slice"][:-1]) | (drawn["place"][1:] != drawn["place"][:-1] + 1)
        all_lasts = torch.cat([firsts[1:], firsts.new_ones(1)])
        if real is not None:
            firsts, all_lasts = firsts & real, all_lasts & real
        if self.truncated_key is not None:
            place = as_path(self.truncated_key)
            keys = {name: shown((*place[:-1], name)) for name in ("done", "terminated")} | {"truncated": shown(place)}
            stored = {name: known.get(key, default=None) for name, key in keys.items()}
            old = {name: value != 0 for name, value in stored.items() if isinstance(value, Tensor)}
            like = next(iter(old.values()), all_lasts.unsqueeze(-1))
            lasts = all_lasts.view(-1, *[1] * (like.dim() - 1)).expand(like.shape)
            cut = old["truncated"] if "truncated" in old else torch.zeros_like(lasts)
            done = old["done"] if "done" in old else torch.zeros_like(lasts)
            terminated = old["terminated"] if "terminated" in old else done & ~cut
            marks[keys["truncated"]] = cut | lasts
            marks[keys["done"]] = done | terminated | cut | lasts
            marks[keys["terminated"]] = terminated.clone()
        init_key = None if self.init_key is None else shown(as_path(self.init_key))
        if init_key is not None and isinstance(inits := known.get(init_key, default=None), Tensor):
            marks[init_key] = (inits != 0) | firsts.view(-1, *[1] * (inits.dim() - 1))
        if real is not None:
            marks[MASK_KEY] = real
        return marks

    def fork(self, storage: Storage) -> Sampler | None:
        return self if type(self).sample is SliceSampler.sample else None

    # --- a draw

    def _boundaries_of(self, storage: Storage) -> Boundaries:
        if storage.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{type(self).__name__}: a draw of slices waits for the counters of the storage, which a CUDA graph "
                "cannot. Draw outside of the graph."
            )
        index = self._index  # a buffer on another storage may put its own there meanwhile
        if index is None or index.storage is not storage:
            ends = self.end_keys if self.end_key is None else [self.end_key]
            index = TrajectoryIndex(
                storage, self.traj_key, ends, ends=self._ends, trajectories=self._trajectories,
                step_key=self.step_key if self.fragmented else None, call=type(self).__name__,
            )  # fmt: skip
            self._index = index
        return index.catch_up()

    def _long_enough(self, bounds: Boundaries, length: int) -> Tensor:
        """The numbers of the trajectories that slices can be of; RuntimeError when there are none."""
        chosen = bounds.at_least(length if self.strict_length else 1)
        if chosen.shape[0]:
            return chosen
        longest = int(bounds.lengths.max()) if len(bounds) else 0
        raise NothingToDraw(
            f"{type(self).__name__}: no trajectory has the {length} records of a slice; the longest of {len(bounds)} "
            f"has {longest}. Ask for shorter slices, write longer trajectories, or use strict_length=False."
        )

    def _slices(self, bounds: Boundaries, chosen: Tensor, length: int, bits: Tensor) -> tuple[Tensor, Any]:
        """A slice of each chosen trajectory, by random bits: slots, and of each its ``slice`` and its ``place``."""
        stored = bounds.lengths[chosen]
        size = stored.clamp(max=length)
        before, after = (torch.clamp(size - 1, max=side) for side in self.span)
        start = rng.below(bits, stored - size + before + after + 1) - before
        first, end = start.clamp(min=0), torch.minimum(start + size, stored)
        offsets = torch.arange(length, device=chosen.device)
        places = torch.minimum(first[:, None] + offsets, end[:, None] - 1)
        positions = bounds.starts[chosen][:, None] + places
        inside = offsets < (end - first)[:, None]
        slices = torch.arange(chosen.shape[0], device=chosen.device)[:, None].expand_as(places)
        told = {"slice": slices, "place": places}
        if self.pad_output:
            told["mask"] = inside
        elif not self.strict_length or self.span != (0, 0):
            positions, told = positions[inside], {name: value[inside] for name, value in told.items()}
        slots = bounds.rows_at(positions.reshape(-1))
        return slots, {name: value.reshape(-1) for name, value in told.items()}

    def __repr__(self) -> str:
        options = ("num_slices", "slice_len", "traj_key", "end_key", "end_keys", "strict_length", "pad_output", "span")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in options)})"


class SliceSamplerWithoutReplacement(SliceSampler):
    """Draws slices in passes: one slice of each trajectory, in pseudo-random order, then over again.

    Keyword Args:
        drop_last: leave out the rest of a pass that is smaller than the batch. Otherwise that rest is a batch, smaller
            than asked for.
        shuffle: take the trajectories in an order that the seed decides, another one for each pass; else in the order
            in which they were written. (Where in its trajectory a slice lies is random either way.)

    The others are those of `SliceSampler`.

    A pass is over the trajectories that are long enough when it begins. Each is known by the last record that it had at
    the last draw: what was written to it since is drawn from too, and one that was overwritten since, or is too short
    by now, is left out. New trajectories wait for the next pass. After `ReplayBuffer.empty` the next draw begins a new
    pass. Passes belong to this sampler and the storage it draws from; a copy of the sampler begins anew.

    A draw costs the records drawn, the first one of a pass or after a write also the trajectories. Errors: as
    with `SliceSampler`; ValueError with ``drop_last`` for a batch of more slices than there are trajectories.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, SliceSamplerWithoutReplacement, TensorDictReplayBuffer
    >>> sampler = SliceSamplerWithoutReplacement(num_slices=2, traj_key="episode")
    >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=6)
    >>> _ = rb.extend(TensorDict({"episode": torch.tensor([0] * 5 + [1] * 4 + [2] * 3)}, [12]))
    >>> batches = [rb.sample()["episode"] for _ in range(2)]
    >>> [len(batch) for batch in batches], torch.cat(batches).unique().tolist(), sampler.ran_out
    ([6, 3], [0, 1, 2], True)
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict = False,
        use_gpu: Any = False,
        step_key: Any = "step_count",
        fragmented: bool = False,
        cache_values: bool = True,
        pad_output: bool = False,
        span: Any = False,
    ) -> None:
        super().__init__(
            num_slices=num_slices, slice_len=slice_len, end_key=end_key, end_keys=end_keys, traj_key=traj_key,
            step_key=step_key, fragmented=fragmented, ends=ends, trajectories=trajectories, cache_values=cache_values,
            truncated_key=truncated_key, init_key=init_key, strict_length=strict_length, pad_output=pad_output,
            compile=compile, span=span, use_gpu=use_gpu,
        )  # fmt: skip
        for name, value in (("drop_last", drop_last), ("shuffle", shuffle)):
            if not isinstance(value, bool):
                raise TypeError(f"{type(self).__name__}: {name} must be True or False, got {value!r}.")
        self.drop_last, self.shuffle = drop_last, shuffle
        self._ran_out = False
        self._passes: weakref.WeakKeyDictionary[Storage, _Pass] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_ran_out": False, "_passes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._passes = weakref.WeakKeyDictionary()  # they are over storages of another process

    @property
    def ran_out(self) -> bool:
        """Whether the last draw ended a pass: nothing is left, or, with ``drop_last``, less than a batch as large."""
        return self._ran_out

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        num, length = split_batch(self, batch_size, "num_slices", "slice_len")
        require_records(storage)
        bounds = self._boundaries_of(storage)
        chosen = self._long_enough(bounds, length)
        fewest = num if self.drop_last else 1
        if chosen.shape[0] < fewest:
            raise NotOneBatch(
                f"{type(self).__name__}: with drop_last a batch must fit into a pass, got {num} slices and "
                f"{chosen.shape[0]} trajectories of {length} records or more. Write more first, ask for fewer, or use "
                "drop_last=False."
            )
        current = self._passes.get(storage)
        if current is not None:
            current = current.as_of(storage, bounds, length if self.strict_length else 1)
        seed = take_seed(generator, storage)
        if current is None or current.size < fewest:
            order = ops.draw_permuted(seed, chosen.shape[0], 0, chosen.shape[0])
            current = _Pass.over(storage, bounds, chosen[order] if self.shuffle else chosen)
        assert current.numbers is not None
        drawn = current.numbers[:num]
        where = rng.random64(seed, _STREAM, torch.arange(drawn.shape[0], device=storage.device))
        slices = self._slices(bounds, drawn, length, where)
        rest = self._passes[storage] = current.without(num)
        if storage.device.type == "cuda" and rest.numbers is not None:
            storage.lock.owns(rest.handles, rest.numbers)
        self._ran_out = rest.size < fewest
        return slices

    def fork(self, storage: Storage) -> Sampler | None:
        if type(self).sample is not SliceSamplerWithoutReplacement.sample:
            return None
        fork = copy.copy(self)
        fork._index, fork._ran_out = self._index, self._ran_out
        if storage in self._passes:
            fork._passes[storage] = self._passes[storage]
        return fork

    def take_over(self, fork: Sampler, storage: Storage) -> None:
        assert isinstance(fork, SliceSamplerWithoutReplacement)
        self._passes[storage], self._ran_out = fork._passes[storage], fork._ran_out

    def moment(self, storage: Storage) -> tuple[Any, ...]:
        current = self._passes.get(storage)
        return super().moment(storage), None if current is None else current.identity

    def stats(self, storage: Storage) -> dict[str, int]:
        """``pass_left``: trajectories that are still to be drawn from in the pass under way; those that were
        overwritten since the last draw are counted.
        """
        current = self._passes.get(storage)
        return {"pass_left": 0 if current is None else current.size}

    def state_dict(self, storage: Storage) -> dict[str, Any]:
        """The pass under way: the handles of the trajectories that are left."""
        current = self._passes.get(storage)
        kept = torch.empty(2, 0, dtype=torch.int64) if current is None else current.handles.clone()
        return {"handles": kept, "ran_out": self._ran_out}

    def plan_load(self, storage: Storage, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        reader = StateReader(state, f"load: {type(self).__name__}")
        handles, ran_out = reader.tensor("handles", torch.int64, 2, None), reader.flag("ran_out")
        if bool((handles < 0).any()) or bool((handles[0] >= size).any()):
            raise reader.refuse("handles", f"slots below {size}, and generations")
        handles = handles.to(storage.device, copy=True)

        def put() -> None:
            self._passes[storage], self._ran_out = _Pass(object(), handles), ran_out

        return put


class _Pass(NamedTuple):
    """What is left of a pass. ``handles``: of each trajectory the last record that it had at the last draw, row and
    generation, int64 ``[2, n]``. ``numbers``: theirs in ``bounds``. ``identity``: the same only where all of it is.
    """

    identity: object
    handles: Tensor
    numbers: Tensor | None = None
    bounds: Boundaries | None = None

    @property
    def size(self) -> int:
        return self.handles.shape[1]

    @classmethod
    def over(cls, storage: Storage, bounds: Boundaries, numbers: Tensor) -> _Pass:
        rows = bounds.rows_at(bounds.starts[numbers] + bounds.lengths[numbers] - 1)
        return cls(object(), torch.stack([rows, storage.generations(rows)]), numbers, bounds)

    def as_of(self, storage: Storage, bounds: Boundaries, length: int) -> _Pass:
        """The pass without the trajectories that are gone by now, or too short."""
        if self.bounds is bounds:
            return self
        rows, generations = self.handles
        there = (rows < bounds.num * bounds.cells) & (storage.generations(rows) == generations)
        numbers = bounds.owners_of(bounds.positions_of(rows[there]))
        numbers = numbers[numbers >= 0]
        return _Pass.over(storage, bounds, numbers[bounds.lengths[numbers] >= length])

    def without(self, num: int) -> _Pass:
        """The pass when the first ones were drawn from."""
        return _Pass(object(), self.handles[:, num:], None if self.numbers is None else self.numbers[num:], self.bounds)


def _sides(span: Any, name: str) -> tuple[int, int]:
    """By how many records a slice may begin before its trajectory, and end behind it, at most."""
    pair = tuple(span) if isinstance(span, tuple | list) else (span, span)
    if len(pair) != 2 or any(not isinstance(side, int) or side < 0 for side in pair):
        raise ValueError(f"{name}: span must be a bool, an int from 0, or a pair of these, got {span!r}.")
    return tuple((2**31 if side else 0) if isinstance(side, bool) else side for side in pair)  # type: ignore[return-value]


def _own(value: Any, option: str, name: str) -> Tensor | None:
    """A copy of boundaries that the caller gave."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or not value.dim():
        raise TypeError(f"{name}: {option} must be a tensor with a value for each record, got {value!r}.")
    return value.detach().clone()
