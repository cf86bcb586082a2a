"""How often each record was drawn, and draws among those that have some left."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from torchrb import ops
from torchrb.consumption.ranks import SlotSet
from torchrb.generations import generations_at
from torchrb.journal import JournalReader
from torchrb.ops.schemas import HEADER_BYTES, SLOT_LIVE
from torchrb.persistence import StateReader
from torchrb.samplers import RandomSampler, Sampler
from torchrb.samplers.base import NothingToDraw, require_records, take_seed
from torchrb.storages import Storage
from torchrb.storages.base import Choose, Placement
from torchrb.storages.filtered import Filtered

_NAME = "consume_after_n_samples"


class Exhausted(RuntimeError):
    """Records are stored, and none of them, or not enough, may be drawn any more."""


class Claim:
    """The records of one draw: slots, generations, and how often each was drawn. It can be given back."""

    def __init__(self, consumption: Consumption) -> None:
        self.consumption = consumption
        self.serial, self.made = 0, False
        self.slots = self.generations = self.times = torch.empty(0, dtype=torch.int64)


class Consumption:
    """Counts how often each record of a storage was returned; after ``limit`` times it is not drawn any more.

    A count belongs to a record, that is to a slot and a generation: a slot that is overwritten starts at 0, a record
    that is changed in part keeps its count. ``storage``: whose records they are. ``drawn_from``: what samplers are
    given instead of it. Everything but the counts follows from them and from the storage's journal. The caller of every
    method but `give_back` holds the storage's lock.
    """

    def __init__(self, storage: Storage, limit: int) -> None:
        self.storage, self.limit = storage, limit
        self._reader, self._serial = JournalReader(), 0
        self._last_forgotten = 0  # the serial number of the last claim before a load
        self._unsettled: Tensor | None = None  # slots whose counts have changed, until all that follows has, too
        self._left = self._spent = SlotSet(0, storage.device)
        this = weakref.proxy(self)  # no cycle: the records go as soon as nobody has the buffer
        self._unspent = Filtered(storage, lambda: this._left.all(), lambda: len(this._left))
        self._counts = torch.empty(1, 2, dtype=torch.int64)
        self._lay_out(0)

    def __getstate__(self) -> dict[str, Any]:
        return {"storage": self.storage, "limit": self.limit}  # each process counts for itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _lay_out(self, capacity: int) -> None:
        """Sets for so many slots; counts stay."""
        device = self.storage.device
        counts = torch.full((capacity + 1, 2), -1, dtype=torch.int64, device=device)
        counts[: self._counts.shape[0] - 1] = self._counts[:-1]
        counts[-1, 0] = self._serial
        self._unspent.lay_out(capacity)
        self._left, self._spent = SlotSet(capacity, device), SlotSet(capacity, device)
        # By slot, the generation of a record and how often that was drawn; last the serial number of a claim. One
        # tensor, so that one call writes all of it.
        self._counts = counts

    # --- what may be drawn

    @property
    def num_left(self) -> int:
        """Records that may be drawn."""
        self.catch_up()
        return len(self._left)

    @property
    def drawn_from(self) -> Storage:
        """The storage as samplers are to see it."""
        self.catch_up()
        return cast(Storage, self._unspent)

    def catch_up(self) -> None:
        """Follow the storage. Costs what was written or drawn since."""
        storage, tables = self.storage, self.storage.tables
        if not tables or (self._unsettled is None and not self._reader.moved(storage.control)):
            return
        slots, position = self._reader.unread(storage.control, storage.journal)
        capacity = tables[0].shape[0]
        if slots is None or self._counts.shape[0] != capacity + 1:
            self._lay_out(capacity)
            slots = torch.arange(capacity, device=storage.device)
        elif self._unsettled is not None:
            slots = torch.unique(torch.cat([slots, self._unsettled]))
        self._settle(slots)
        self._reader.accept(position)  # last: what was cut off is done again
        self._unsettled = None

    def _settle(self, slots: Tensor) -> None:
        """Bring everything to what the counts of distinct slots say."""
        tables = self.storage.tables
        headers = tables[0][:, :HEADER_BYTES].view(torch.int64)[slots]
        live = (headers[:, 0] & SLOT_LIVE) != 0
        spent = live & (self._drawn(slots, generations_at(tables, slots)) >= self.limit)
        headers[:, 0] = torch.where(spent, headers[:, 0] & ~SLOT_LIVE, headers[:, 0])
        self._unspent.put(slots, headers)
        self._left.put(slots, live & ~spent)
        self._spent.put(slots, spent)

    def _drawn(self, slots: Tensor, generations: Tensor) -> Tensor:
        """How often each of these records was drawn."""
        counts = self._counts[slots]
        return torch.where(counts[:, 0] == generations, counts[:, 1], 0)

    # --- draws

    def draw(
        self, sampler: Sampler, num: int, generator: torch.Generator | None, claim: Claim
    ) -> tuple[Tensor, dict[str, Any] | Any]:
        """Slots and what the sampler tells, as `Sampler.sample` gives them, for as many of ``num`` records as are left.
        They are counted; ``claim`` gives them back. `Exhausted` when there is nothing left to draw.
        """
        self.catch_up()
        storage, left = self.storage, len(self._left)
        require_records(storage)
        if not left or (num > left and getattr(sampler, "drop_last", False)):
            wanted = "" if not left else f", and a batch with drop_last takes {num}"
            raise Exhausted(
                f"sample: {left} of {len(storage)} stored records are left{wanted}; the others were returned "
                f"{self.limit} times ({_NAME}={self.limit}). Write new records first."
            )
        if type(sampler).sample is RandomSampler.sample:
            order = ops.draw_permuted(take_seed(generator, storage), left, 0, min(num, left))
            slots, drawn = self._left.at(order), dict[str, Any]()
        else:
            try:
                slots, drawn = sampler.sample(cast(Storage, self._unspent), num, generator)
            except NothingToDraw as error:
                if not len(self._spent):  # that is not for want of those that were used up
                    raise
                raise Exhausted(
                    f"sample: {left} of {len(storage)} stored records are left, and the sampler cannot make a batch of "
                    f"them; the others were returned {self.limit} times ({_NAME}={self.limit}). {error}"
                ) from error
            kept = self._allowed(slots)
            if not bool(kept.all()):
                if not bool(kept.any()):
                    raise RuntimeError(
                        f"sample: {sampler!r} chose none of the {left} records that are left with {_NAME}={self.limit}."
                        " A sampler of your own has to look at the slot words of the storage that it is given."
                    )
                if isinstance(drawn, dict):
                    drawn = {key: _some(value, slots.shape, kept) for key, value in drawn.items()}
                slots = slots[kept]
        self._count(slots, claim)
        return slots, drawn

    def _allowed(self, slots: Tensor) -> Tensor:
        """Which rows of a draw come first among those of their record, as long as that may be drawn."""
        tables = self.storage.tables
        live = (self._unspent.headers.view(torch.int64)[slots, 0] & SLOT_LIVE) != 0
        order = torch.argsort(slots, stable=True)
        ordered, place = slots[order], torch.arange(slots.shape[0], device=slots.device)
        starts = torch.ones_like(live)
        starts[1:] = ordered[1:] != ordered[:-1]
        earlier = torch.empty_like(slots)
        earlier[order] = place - torch.cummax(torch.where(starts, place, 0), 0).values
        return live & (self._drawn(slots, generations_at(tables, slots)) + earlier < self.limit)

    def _count(self, slots: Tensor, claim: Claim) -> None:
        claim.slots, claim.times = torch.unique(slots, return_counts=True)
        claim.generations = generations_at(self.storage.tables, claim.slots)
        self._serial += 1
        claim.serial = self._serial
        try:
            self._add(claim, claim.slots, claim.times, claim.serial)
        finally:
            claim.made = int(self._counts[-1, 0]) == claim.serial
        self.catch_up()

    def _add(self, claim: Claim, slots: Tensor, times: Tensor, serial: int) -> None:
        """Count records; `catch_up` does the rest."""
        generations = generations_at(self.storage.tables, slots)
        last = torch.tensor([[serial, 0]], device=slots.device)
        counts = torch.cat([torch.stack([generations, self._drawn(slots, generations) + times], 1), last])
        places = torch.cat([slots, torch.tensor([self._counts.shape[0] - 1], device=slots.device)])
        self._unsettled = slots
        self._counts[places] = counts

    def give_back(self, claim: Claim) -> None:
        """Take back what a draw has counted, of those records that are still there."""
        with self.storage.lock:
            if claim.serial <= self._last_forgotten:  # nothing was counted, or a load has replaced the counts
                return
            if not claim.made and int(self._counts[-1, 0]) != claim.serial:
                return
            there = generations_at(self.storage.tables, claim.slots) == claim.generations
            self.catch_up()
            self._serial += 1
            self._add(claim, claim.slots[there], -claim.times[there], self._serial)
            self.catch_up()

    # --- writes

    def place(self, num: int, values_of: Callable[[Any], Any]) -> Placement:
        """Where new records go: over the spent ones, the lowest slots first, and when there are none, on with the ring.
        So nothing that is left is overwritten before all that is spent.
        """
        self.catch_up()
        storage, cursor, capacity = self.storage, self.storage.cursor, self.storage.max_size
        steps = torch.arange(num, device=storage.device)
        ring = (cursor + steps) % capacity
        reused = min(len(self._spent), num) if num <= capacity else 0
        if reused:
            spent = self._spent.at(steps[:reused])
            ring = ring[~torch.isin(ring, spent)][: num - reused]
            if reused < num:
                cursor = (int(ring[-1]) + 1) % capacity
            return Placement(torch.cat([spent, ring]), cursor, storage.write_count + num)
        return Placement(ring, (cursor + num) % capacity, storage.write_count + num)

    # --- saved states

    def state_dict(self) -> dict[str, Any]:
        """The records that were drawn, by slot and generation, and how often each was; as `Sampler.state_dict`."""
        self.catch_up()
        slots = torch.arange(self._counts.shape[0] - 1, device=self.storage.device)
        drawn = self._drawn(slots, generations_at(self.storage.tables, slots)) if slots.shape[0] else slots
        slots = torch.nonzero(drawn > 0).view(-1)
        return {"slots": slots, "generations": self._counts[slots, 0], "drawn": drawn[slots]}

    def plan_load(self, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        """Validate saved counts for a storage that will hold ``size`` records, and return what puts them in place of
        these, as `Sampler.plan_load`. They count for the records that they belong to, and for no others.
        """
        reader = StateReader(state, f"load: {_NAME}")
        slots = reader.tensor("slots", torch.int64, None)
        num = slots.shape[0]
        generations, drawn = (reader.tensor(name, torch.int64, num) for name in ("generations", "drawn"))
        if bool((slots < 0).any()) or bool((slots >= size).any()) or torch.unique(slots).shape[0] != num:
            raise reader.refuse("slots", f"distinct slots below {size}")
        if bool((drawn < 1).any()):
            raise reader.refuse("drawn", "positive numbers")
        rows = torch.stack([generations, drawn], 1).to(self.storage.device, copy=True)
        places = slots.to(self.storage.device, copy=True)

        def put() -> None:
            self.catch_up()
            counts = torch.full_like(self._counts, -1)
            counts[-1, 0] = self._serial
            counts[places] = rows
            self._unsettled = torch.arange(counts.shape[0] - 1, device=counts.device)
            self._last_forgotten = self._serial
            self._counts.copy_(counts)
            self.catch_up()

        return put

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counts; see `plan_load` for the errors, after which nothing has changed."""
        self.plan_load(state, len(self.storage))()


def _some(value: Any, shape: torch.Size, kept: Tensor) -> Any:
    """What a sampler tells of each row, for some of the rows."""
    return value[kept] if isinstance(value, Tensor) and value.shape[:1] == shape else value


def checked_limit(limit: Any, name: str) -> int:
    """The limit, if it is one; TypeError or ValueError otherwise."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"{name}: {_NAME} must be a positive int or None, got {limit!r}.")
    if limit < 1:
        raise ValueError(f"{name}: {_NAME} must be a positive int or None, got {limit}.")
    return limit


def choice_of(consumption: Consumption | None) -> Choose | None:
    """What a writer is told of records that are used up, if any ever are. Cells are used up one by one, and written as
    whole records: there the ring goes on.
    """
    return None if consumption is None or consumption.storage.ndim > 1 else consumption.place
