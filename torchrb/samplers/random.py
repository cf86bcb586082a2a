"""Uniform draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrb import ops
from torchrb.samplers.base import Sampler, require_records, take_seed
from torchrb.storages.base import Storage


class RandomSampler(Sampler):
    """Draws records uniformly, with replacement.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, RandomSampler, ReplayBuffer
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=RandomSampler(), batch_size=4)
    >>> _ = rb.extend(torch.arange(3))
    >>> set(rb.sample().tolist()) <= {0, 1, 2}
    True
    """

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        require_records(storage)
        return ops.draw_uniform(take_seed(generator, storage), storage.control, batch_size), {}

    def fork(self, storage: Storage) -> Sampler | None:
        return self if type(self).sample is RandomSampler.sample else None
