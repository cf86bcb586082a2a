"""Passes over the storage: each record once."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb import ops
from torchrb.persistence import StateReader
from torchrb.samplers.base import Sampler, require_records, take_seed
from torchrb.storages.base import Storage

# Slots that are computed at a time, so that small draws share the cost of a call, which on the plain path is that of a
# thousand slots; and a pass begins with one block, so it must not be long.
_BLOCK = 2048


class SamplerWithoutReplacement(Sampler):
    """Draws each stored record once, in pseudo-random order, then starts over: passes over the storage.

    Args:
        drop_last: leave out the rest of a pass that is smaller than the batch. Otherwise that rest is a batch, smaller
            than asked for (of all that is stored, when the batch is larger).
        shuffle: draw in an order that the seed decides, another one for each pass; else in the order of slots, which
            takes no random number.

    A pass is over the slots that hold a record when it begins, at the first draw or the first after the last pass has
    ended. A draw gives the record that its slot holds now: one that was overwritten or patched during the pass is drawn
    as it is, once. What is written into a slot already drawn, or into one that was free, waits for the next pass; so a
    pass ends however much is written meanwhile. After `ReplayBuffer.empty` the next draw begins a new pass. To begin
    one at any time, put in a new sampler.

    Passes belong to this sampler and the storage it draws from: two buffers on one storage that share a sampler share
    the pass, and no thread draws what another one did; two samplers do not know of each other, and a sampler that is
    copied or sent to another process begins anew there. A shuffling draw takes one number from the generator, and the
    one that begins a pass uses it. What a draw costs depends on the batch, not on the buffer. On a GPU the host waits
    for the counters at each draw.

    Errors: RuntimeError when nothing is stored, or in the capture of a CUDA graph, whose replays would all draw the
    same; ValueError with ``drop_last`` for a batch larger than what is stored. The pass stays where it was.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(), batch_size=4)
    >>> _ = rb.extend(torch.arange(10))
    >>> batches = [rb.sample() for _ in range(3)]
    >>> [len(batch) for batch in batches], sorted(torch.cat(batches).tolist())
    ([4, 4, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> rb.sampler.ran_out  # the next draw begins a new pass
    True
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        for name, value in (("drop_last", drop_last), ("shuffle", shuffle)):
            if not isinstance(value, bool):
                raise TypeError(f"SamplerWithoutReplacement: {name} must be True or False, got {value!r}.")
        self.drop_last, self.shuffle = drop_last, shuffle
        self._ran_out = False
        self._passes: weakref.WeakKeyDictionary[Storage, _Pass] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"drop_last": self.drop_last, "shuffle": self.shuffle}  # passes are over storages of this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def ran_out(self) -> bool:
        """Whether the last draw ended a pass: nothing is left, or, with ``drop_last``, less than a batch as large."""
        return self._ran_out

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        if storage.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "SamplerWithoutReplacement: every replay of a CUDA graph would draw the records of its capture. "
                "Draw outside of the graph, or use RandomSampler."
            )
        require_records(storage)
        stored, fewest = storage.num_drawable, batch_size if self.drop_last else 1
        if stored < fewest:
            raise ValueError(
                f"SamplerWithoutReplacement: with drop_last a batch must fit into a pass, got batch_size={batch_size} "
                f"and {stored} stored records. Write more first, ask for fewer, or use drop_last=False."
            )
        seed = take_seed(generator, storage) if self.shuffle else None
        current = self._pass_over(storage)
        if current is None or current.left < fewest:
            current = _Pass(stored, storage.num_clears, None if seed is None else seed.clone(), storage.drawable())
        slots = current.take(min(batch_size, current.left), storage)
        self._passes[storage] = current
        self._ran_out = current.left < fewest
        return slots, {}

    def fork(self, storage: Storage) -> Sampler | None:
        if type(self).sample is not SamplerWithoutReplacement.sample:
            return None
        fork = copy.copy(self)
        current = self._passes.get(storage)
        if current is not None:
            fork._passes[storage] = copy.copy(current)
        return fork

    def take_over(self, fork: Sampler, storage: Storage) -> None:
        assert isinstance(fork, SamplerWithoutReplacement)
        self._passes[storage], self._ran_out = fork._passes[storage], fork._ran_out

    def moment(self, storage: Storage) -> tuple[Any, ...]:
        current = self._pass_over(storage)
        where = (None, 0) if current is None else (current.identity, current.drawn)
        return self.drop_last, self.shuffle, *where

    def stats(self, storage: Storage) -> dict[str, int]:
        """``pass_size`` and ``pass_drawn``: records of the pass under way, and how many of them were drawn; both 0
        where the next draw is the first of a pass, whatever its size.
        """
        current = self._pass_over(storage)
        if current is None or not current.left:
            return {"pass_size": 0, "pass_drawn": 0}
        return {"pass_size": current.size, "pass_drawn": current.drawn}

    # --- saved states

    def state_dict(self, storage: Storage) -> dict[str, Any]:
        """The pass under way, and how it is drawn."""
        current = self._pass_over(storage)
        return {
            "shuffle": self.shuffle,
            "ran_out": self._ran_out,
            "pass": None if current is None else current.state_dict(),
        }

    def plan_load(self, storage: Storage, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        reader = StateReader(state, f"load: {type(self).__name__}")
        if reader.flag("shuffle") != self.shuffle:
            raise ValueError(
                f"{reader.call}: the saved state is of a sampler with shuffle={not self.shuffle}, and this one has "
                f"shuffle={self.shuffle}. Make one like that."
            )
        ran_out = reader.flag("ran_out")
        saved = None if reader.any("pass") is None else _Pass.from_state(reader.within("pass"), size, storage.device)

        def put() -> None:
            self._ran_out = ran_out
            if saved is None:
                self._passes.pop(storage, None)
            else:
                saved.num_clears = storage.num_clears
                self._passes[storage] = saved

        return put

    def _pass_over(self, storage: Storage) -> _Pass | None:
        """The pass under way, unless the storage was emptied since it began, or lost records in some other way."""
        current = self._passes.get(storage)
        if current is None or current.num_clears != storage.num_clears or current.size > len(storage):
            return None
        return current

    def __repr__(self) -> str:
        return f"{type(self).__name__}(drop_last={self.drop_last}, shuffle={self.shuffle})"


class _Pass:
    """An order of the slots below ``size``, or of so many ``members``, computed a block at a time; without a seed they
    ascend.
    """

    def __init__(self, size: int, num_clears: int, seed: Tensor | None, members: Tensor | None) -> None:
        self.size, self.num_clears, self.drawn = size, num_clears, 0
        self.identity = object()  # copies have it too
        self._members = members
        self._seed = seed
        self._block, self._begin = torch.empty(0, dtype=torch.int64), 0  # computed slots, and the place of the first

    def state_dict(self) -> dict[str, Any]:
        """What the rest of it follows from."""
        return {
            "size": self.size,
            "drawn": self.drawn,
            "seed": None if self._seed is None else self._seed.clone(),
            "members": None if self._members is None else self._members.clone(),
        }

    @classmethod
    def from_state(cls, reader: StateReader, size: int, device: torch.device) -> _Pass:
        """A pass that was saved, over a storage of ``size`` records. ValueError for what is none."""
        num = reader.number("size", 0, size)
        seed = None if reader.any("seed") is None else reader.tensor("seed", torch.int64, 1).to(device, copy=True)
        members = None
        if reader.any("members") is not None:
            members = reader.tensor("members", torch.int64, num).to(device, copy=True)
            if bool((members < 0).any()) or bool((members >= size).any()):
                raise reader.refuse("members", f"slots below {size}")
        current = cls(num, 0, seed, members)
        current.drawn = reader.number("drawn", 0, num)
        return current

    @property
    def left(self) -> int:
        """Slots that are to be drawn yet."""
        return self.size - self.drawn

    def take(self, num: int, storage: Storage) -> Tensor:
        """The next ``num`` of at least as many, int64."""
        if self._seed is None:
            slots = torch.arange(self.drawn, self.drawn + num, device=storage.device)
        else:
            if self._begin + self._block.shape[0] < self.drawn + num:
                block = ops.draw_permuted(self._seed, self.size, self.drawn, min(max(num, _BLOCK), self.left))
                if block.is_cuda:  # the next draw may be on another stream
                    storage.lock.owns(self._seed, block)
                self._block, self._begin = block, self.drawn
            slots = self._block[self.drawn - self._begin : self.drawn - self._begin + num].clone()  # the user's own
        self.drawn += num
        return slots if self._members is None else self._members[slots]
