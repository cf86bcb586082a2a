"""The buffer's priorities: where writes and learners meet a sampler that keeps them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrb.buffer.parts import Parts
from torchrb.writers import RoundRobinWriter
from torchrb.writers.base import as_rows


class Priorities(Parts):
    """Priorities are set by what is written and by whoever has learned from a sample."""

    def update_priority(self, index: Any, priority: Any, *, generation: Tensor | None = None) -> None:
        """Set the priorities of records, for a `PrioritizedSampler`; without one nothing happens.

        ``index``: slots, from `extend` or a sample's ``"index"`` (with several dimensions those of cells);
        ``priority``: a number of at least 0 for each, or one for all. Among equal slots the last one counts.
        ``generation``, from a sample's ``"index_generation"``, leaves out slots that hold another record by now.
        ValueError, IndexError or TypeError, with nothing changed, for a priority that is negative, infinite or NaN, and
        for what is no slot; see `PrioritizedSampler.update_priority`.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, PrioritizedReplayBuffer
        >>> rb = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), batch_size=2)
        >>> rb.update_priority(rb.extend(torch.arange(3)), torch.tensor([1.0, 2.0, 5.0]))
        >>> rb.extend(torch.arange(1))  # a new record has the greatest priority there is
        tensor([3])
        >>> rb.sampler.priorities(rb.storage)[:4]
        tensor([1., 2., 5., 5.], dtype=torch.float64)
        """
        storage = self._storage
        with storage.lock:
            slots = index if storage.ndim == 1 else storage.rows_of(index, "update_priority")
            self._sampler.update_priority(slots, priority, storage=self._drawn_from, generation=generation)

    def mark_update(self, index: Any) -> None:
        """Give records the priority that a new one would get."""
        storage = self._storage
        with storage.lock:
            slots = index if storage.ndim == 1 else storage.rows_of(index, "mark_update")
            self._sampler.mark_update(slots, storage=self._drawn_from)

    def _add_with_priority(self, data: Any) -> int | Tensor:
        if self._storage.ndim > 1:
            return as_rows(self._storage, self._append_with_priorities(data, None, one=True)[0])
        priority = self._priorities_in(data, True, "add")
        with self._storage.lock:
            slot = self._writer.add(data)
            if priority is None or not isinstance(slot, int) or slot < 0:
                self._sampler.heed(self._drawn_from)
            else:
                self._sampler.update_priority(slot, priority, storage=self._drawn_from)
        return slot

    def _append_with_priorities(
        self, data: Any, update_priority: bool | None, one: bool = False
    ) -> tuple[Tensor, Tensor]:
        call = "add" if one else "extend"
        priorities = None if update_priority is False else self._priorities_in(data, one, call)
        with self._storage.lock:
            slots, generations = self._writer.append(data, one=one)
            if priorities is None:
                self._sampler.heed(self._drawn_from)
                return slots, generations
            written, given = slots, generations
            if not isinstance(self._writer, RoundRobinWriter):  # one that may refuse a record
                there = torch.nonzero(slots >= 0).view(-1)
                written, given, priorities = slots[there], generations[there], priorities.to(slots.device)[there]
            self._sampler.update_priority(written, priorities, storage=self._drawn_from, generation=given)
        return slots, generations

    def _heed(self) -> None:
        """Have the sampler take note of a write."""
        with self._storage.lock:
            self._sampler.heed(self._drawn_from)

    def _priorities_in(self, data: Any, one: bool, call: str) -> Tensor | None:
        """The priorities that data brings along, one for each record; None when it has none. Raises for bad ones."""
        return None
