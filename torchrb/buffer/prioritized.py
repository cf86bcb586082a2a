"""Buffers with priorities: configurations, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrb.buffer.replay_buffer import ReplayBuffer
from torchrb.buffer.tensordict import TensorDictReplayBuffer
from torchrb.samplers import PrioritizedSampler
from torchrb.storages import Storage

_ANY_SIZE = 2**32 - 1


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` with a `PrioritizedSampler`.

    Keyword Args:
        alpha, beta, eps, dtype: those of the sampler.
        storage: a storage, or what makes one. Default: ``ListStorage(1000)``.

    The others are those of `ReplayBuffer`.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, PrioritizedReplayBuffer
    >>> rb = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(10), batch_size=5)
    >>> index = rb.extend(torch.arange(10))
    >>> batch, info = rb.sample(return_info=True)
    >>> rb.update_priority(info["index"], torch.rand(5))
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Storage | Callable[[], Storage] | None = None,
        **kwargs: Any,
    ) -> None:
        sampler = _sampler_for(storage, kwargs, alpha, beta, eps, dtype)
        super().__init__(storage=storage, sampler=sampler, **kwargs)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler`.

    Keyword Args:
        alpha, beta, eps, reduction: those of the sampler.
        priority_key: the field that priorities come from.
        storage: a storage, or what makes one. Default: ``ListStorage(1000)``.

    The others are those of `ReplayBuffer`.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
    >>> rb = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(10), batch_size=5)
    >>> index = rb.extend(TensorDict({"obs": torch.zeros(10, 3), "td_error": torch.rand(10)}, [10]))
    >>> batch = rb.sample()
    >>> sorted(batch.keys())
    ['index', 'obs', 'priority_weight', 'td_error']
    >>> batch["td_error"] = torch.rand(5)
    >>> rb.update_tensordict_priority(batch)
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: str = "td_error",
        eps: float = 1e-8,
        storage: Storage | Callable[[], Storage] | None = None,
        reduction: str = "max",
        **kwargs: Any,
    ) -> None:
        sampler = _sampler_for(storage, kwargs, alpha, beta, eps, torch.float, reduction)
        super().__init__(priority_key=priority_key, storage=storage, sampler=sampler, **kwargs)


def _sampler_for(storage: Any, others: dict[str, Any], *settings: Any) -> Any:
    """A sampler for a storage, or for whatever a callable will make; ``others`` may have one of the user's own."""
    own = others.pop("sampler", None)
    capacity = storage.max_size if isinstance(storage, Storage) else _ANY_SIZE
    return PrioritizedSampler(capacity, *settings) if own is None else own
