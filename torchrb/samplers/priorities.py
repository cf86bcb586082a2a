"""Priorities of a storage's records, as the storage is now."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb import ops
from torchrb.ops.priority_tree import PRIORITY_FAN, PriorityTree
from torchrb.ops.schemas import (
    PRIORITY_DRAWABLE,
    PRIORITY_POSITION,
    PRIORITY_REFUSED,
    PRIORITY_STATE_SIZE,
)
from torchrb.storages.base import Storage
from torchrb.storages.transfer import LateNumbers

_REMEDY = "Pass td_error.abs(), and leave out or clamp what is not finite."


class Priorities:
    """A sampler's priorities of one storage's records: a sum tree that follows the storage's journal.

    A record keeps the priority that it was given; a new one has the greatest of those that were there when it was
    first looked at, or 1. Catching up costs what was written since. The caller of every method holds the storage's
    lock, and hands in the storage, which is not kept alive here. ``weighting``: alpha and eps, one tuple as long as
    they stay.
    """

    def __init__(self, storage: Storage) -> None:
        self._on_gpu = storage.device.type == "cuda"
        with torch.inference_mode(False):
            self.state = torch.zeros(PRIORITY_STATE_SIZE, dtype=torch.int64, device=storage.device)
        self._numbers = self.state.numpy().data if storage.device.type == "cpu" else None
        self._nothing = torch.empty(0, dtype=torch.int64, device=storage.device)
        self._no_priority = torch.empty(0, dtype=torch.float64, device=storage.device)
        self._weighting: tuple[float, float] | None = None
        self._late = LateNumbers()
        self.num_updates = 0  # how often priorities were set
        self._lay_out(storage)

    def _lay_out(self, storage: Storage) -> None:
        capacity = storage.tables[0].shape[0]
        self.place = PriorityTree(capacity)
        with torch.inference_mode(False):
            self.seen = torch.zeros(capacity, dtype=torch.int64, device=storage.device)
        self.tree = self.place.empty(storage.device)
        if self._on_gpu:
            storage.lock.owns(self.state, self.seen, self.tree)

    @property
    def by_slot(self) -> Tensor:
        """A view of every slot's priority, -1 where there is no record; float64."""
        return self.tree[self.place.most[0] : self.place.most[0] + self.place.capacity]

    @property
    def weights_by_slot(self) -> Tensor:
        """A view of what every slot's probability is in proportion to; float64."""
        return self.tree[: self.place.capacity]

    def catch_up(self, storage: Storage, weighting: tuple[float, float]) -> None:
        """Follow the storage."""
        numbers = self._numbers
        if (
            numbers is None
            or numbers[PRIORITY_POSITION] != storage.journal_position
            or self._weighting is not weighting
        ):
            self._update(storage, weighting, self._nothing, self._nothing, self._no_priority)

    def set(
        self,
        storage: Storage,
        weighting: tuple[float, float],
        slots: Tensor,
        generations: Tensor | None,
        priorities: Tensor,
        call: str,
    ) -> None:
        """Follow the storage, then set priorities: of slots that hold a record, with ``generations`` that very one.

        IndexError and ValueError with nothing set; on a GPU `refuse_late` raises, some time later.
        """
        self._update(storage, weighting, slots, self._nothing if generations is None else generations, priorities)
        self.num_updates += 1
        if self._numbers is None:
            if self._on_gpu:
                self._late.ask(self.state[PRIORITY_REFUSED], call)
            return
        refused = self._numbers[PRIORITY_REFUSED]
        if refused:
            self._numbers[PRIORITY_REFUSED] = 0
            slot, priority = int(slots[refused - 1]), float(priorities[refused - 1])
            if not 0 <= slot < self.place.capacity:
                raise IndexError(
                    f"{call}: index must name slots from 0 to {self.place.capacity - 1}, got {slot} in place "
                    f"{refused - 1}; nothing was changed. Use the index of a sample, or what extend returned."
                )
            raise ValueError(bad_priority(call, priority, refused - 1))

    def refuse_late(self) -> None:
        """Raise what an earlier call could not, as only the device knew."""
        if not self._on_gpu:
            return
        for row, call in self._late.told():
            if row:
                self.state[PRIORITY_REFUSED] = 0
                self._late = LateNumbers()
                raise ValueError(
                    f"{call}: an earlier call had a priority that is negative or not finite, or an index that is no "
                    f"slot, in place {row - 1}, and was left out. {_REMEDY}"
                )

    def draw(self, seed: Tensor, num: int, beta: float, wide: bool) -> tuple[Tensor, Tensor]:
        """Slots and importance weights."""
        return ops.draw_priorities(seed, None, self.tree, self.place.capacity, num, beta, wide)

    @property
    def drawable(self) -> bool:
        """Whether anything can be drawn, as far as the host knows without waiting."""
        return self._numbers is None or bool(self._numbers[PRIORITY_DRAWABLE])

    def greatest(self) -> Tensor:
        """The priority of a new record, a tensor of no dimensions."""
        top = self.place.most[-1]
        most = self.tree[top : top + PRIORITY_FAN].amax()
        return torch.where(most < 0, 1.0, most)

    def _update(
        self,
        storage: Storage,
        weighting: tuple[float, float],
        slots: Tensor,
        generations: Tensor,
        priorities: Tensor,
    ) -> None:
        tables = storage.tables
        if tables[0].shape[0] != self.place.capacity:
            self._make_room(storage)
        rebuild = self._weighting is not weighting and self._weighting != weighting
        ops.update_priorities_(
            self.tree, self.seen, self.state, storage.control, storage.journal, tables, slots, generations, priorities,
            *weighting, rebuild,
        )  # fmt: skip
        self._weighting = weighting

    def _make_room(self, storage: Storage) -> None:
        """The same priorities in a storage that has grown; what is above the rows is computed by the next update."""
        seen, kept = self.seen, self.by_slot
        self._lay_out(storage)
        self.seen[: seen.shape[0]] = seen
        self.by_slot[: kept.shape[0]] = kept
        self._weighting = None

    # --- keeping them

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of the priorities and the generations of the records that have one; everything else follows."""
        slots = torch.nonzero(self.by_slot >= 0).view(-1)
        return {
            "slots": slots,
            "generations": self.seen[slots] - 1,
            "priorities": self.by_slot[slots],
        }


def bad_priority(call: str, priority: float, place: int) -> str:
    """What an error says of a priority that is none."""
    return (
        f"{call}: a priority must be a finite number of at least 0, got {priority} in place {place}; nothing was "
        f"changed. {_REMEDY}"
    )
