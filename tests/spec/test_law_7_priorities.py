"""Law 7 for priorities: a draw or an update costs its batch and what was written since, not what is stored."""

from __future__ import annotations

import pytest
import torch

from torchrb import LazyTensorStorage, PrioritizedReplayBuffer
from torchrb.ops.schemas import PRIORITY_VISITED


@pytest.mark.parametrize("rows", [10, 1000])
def test_only_rows_written_since_are_looked_at(rows):
    rb = PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(2000), batch_size=16)
    rb.extend(torch.arange(rows))
    visited = rb.sampler._kept[rb.storage].state
    before = int(visited[PRIORITY_VISITED])
    for _ in range(3):
        _, info = rb.sample(return_info=True)
        rb.update_priority(info["index"], torch.rand(16))
    assert int(visited[PRIORITY_VISITED]) == before
    rb.extend(torch.arange(5))
    rb.sample()
    assert int(visited[PRIORITY_VISITED]) == before + 5
