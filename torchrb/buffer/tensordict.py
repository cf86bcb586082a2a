"""A buffer whose batches carry the handles of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrb.buffer.replay_buffer import ReplayBuffer
from torchrb.sample_unit import Sequence
from torchrb.samplers import PrioritizedSampler
from torchrb.writers import TensorDictRoundRobinWriter


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of tensordicts: what it returns carries ``"index"``, and in samples ``"index_generation"`` when
    the writer tracks generations, and ``"priority_weight"`` with a `PrioritizedSampler` (a tensorclass has its own
    fields only: ask for ``return_info``). Default writer: `TensorDictRoundRobinWriter`.

    Keyword Args:
        priority_key: the field that priorities come from with a `PrioritizedSampler`, when records are written and in
            `update_tensordict_priority`.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
    >>> rb = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(10), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=4
    ... )
    >>> _ = rb.extend(TensorDict({"obs": torch.zeros(10, 3)}, [10]))
    >>> batch = rb.sample()
    >>> patch = {"obs": torch.ones(4, 3)}
    >>> result = rb.update_if_present(index=batch["index"], generation=batch["index_generation"], patch=patch)
    >>> bool((rb[batch["index"]]["obs"] == 1).all()), result.stale_count
    (True, 0)
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def _mark(self, data: Any, marks: Mapping[Any, Any]) -> None:
        if isinstance(data, TensorDictBase):
            for key, value in marks.items():
                if isinstance(value, Tensor) and value.shape[: data.batch_dims] == data.batch_size:
                    data.set(key, value.clone())

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of a sample's records to what it has under ``priority_key`` by now; without that, to the
        priority of new records. Several numbers of a record are reduced as the sampler says.

        ``data``: a sample, or a part of it. Where it has ``"index_generation"``, records that were overwritten since
        are left out, so that none gets the priority of its predecessor; where it has a `Sequence`'s
        ``"validity_mask"``, what only pads it. Without a `PrioritizedSampler` nothing happens.
        KeyError without ``"index"``; otherwise as `update_priority`.

        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrb import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
        >>> rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), batch_size=2)
        >>> _ = rb.extend(TensorDict({"obs": torch.zeros(3)}, [3]))
        >>> batch = rb.sample()
        >>> batch["td_error"] = torch.tensor([7.0, 7.0])
        >>> rb.update_tensordict_priority(batch)
        >>> set(rb.sampler.priorities(rb.storage)[batch["index"]].tolist())
        {7.0}
        """
        sampler, call = self._sampler, "update_tensordict_priority"
        if not isinstance(sampler, PrioritizedSampler):
            return
        if isinstance(self._sample_unit, Sequence) and data.get("validity_mask", None) is not None:
            data = data[data["validity_mask"]]
        index = data.get("index", None)
        if index is None:
            raise KeyError(f"{call}: the data has no 'index'. Hand in what sample() returned, or use update_priority.")
        one, cells = data.batch_dims == 0, self._storage.ndim > 1
        generation, priority = data.get("index_generation", None), data.get(self.priority_key, None)
        if cells:  # each place of the batch is one
            index, one = index.reshape(-1, self._storage.ndim), False
            generation = None if generation is None else generation.reshape(-1)
            priority = None if priority is None else priority.reshape(index.shape[0], -1)
        else:
            at = self._storage.stack_dim % max(data.batch_dims, 1)
            index, generation = _a_row_each(index, one, at), _a_row_each(generation, one, at)
            priority = priority.movedim(at, 0) if at and priority is not None else priority
        if priority is None:
            self.mark_update(index)
        else:
            self.update_priority(index, sampler.reduced(priority, one, call), generation=generation)

    def _priorities_in(self, data: Any, one: bool, call: str) -> Tensor | None:
        sampler = self._sampler
        if not isinstance(sampler, PrioritizedSampler):
            return None
        if isinstance(data, list):
            parts = [self._priorities_in(record, True, call) for record in data]
            return (
                torch.cat([p for p in parts if p is not None]) if parts and all(p is not None for p in parts) else None
            )
        values = data.get(self.priority_key, None) if hasattr(data, "get") else None
        if not isinstance(values, Tensor):
            return None
        cells = self._storage.ndim - 1
        if cells:
            if values.dim() < cells + (not one):
                return None  # the storage will say what is wrong
            values, one = values.flatten(0, cells - one), False
        priorities = sampler.reduced(values, one, call)
        sampler.check(priorities, call)
        return priorities

    def _finished(self, data: Any, info: Mapping[str, Any]) -> Any:
        if isinstance(data, TensorDictBase):
            at = self._storage.stack_dim
            for key, value in info.items():
                if type(value) is tuple:
                    data.set(key, torch.stack([_along(part, data) for part in value], -1))
                else:
                    data.set(key, value if value.dim() == data.batch_dims else _along(value, data, at))
        return data


def _along(value: Tensor, data: TensorDictBase, at: int = 0) -> Tensor:
    """Values of records, one for each place in the batch: records may have batch dimensions of their own, among which
    theirs is the one ``at``.
    """
    inner = data.batch_dims - value.dim()
    if inner <= 0:
        return value
    before = at % data.batch_dims if value.dim() == 1 else 0
    return value.view(*[1] * before, *value.shape, *[1] * (inner - before)).expand(data.batch_size).clone()


def _a_row_each(handles: Tensor | None, one: bool, at: int) -> Tensor | None:
    """Handles ``[n]`` of a batch, in which those of records with batch dimensions of their own are repeated."""
    if handles is None or one:
        return handles
    return handles.movedim(at, 0).reshape(handles.shape[at], -1)[:, 0]
