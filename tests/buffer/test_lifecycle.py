"""A buffer says how it is doing."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import buffer
from torchrb import (
    ListStorage,
    ReplayBuffer,
)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


@pytest.mark.parametrize(("capacity", "sizes"), [(10, [5]), (4, [3, 3]), (4, [])])
def test_counters(capacity, sizes):
    rb = buffer(capacity=capacity)
    for size in sizes:
        rb.extend(rows(*range(size)))
    size, told = min(sum(sizes), capacity), rb.stats()
    assert told == {"size": size, "write_count": sum(sizes), "prefetch_queue_size": 0, "initialized": True,
                    "capacity": capacity, "utilization": size / capacity}  # fmt: skip
    assert len(rb) == size and rb.write_count == sum(sizes)
    assert not {"capacity", "utilization"} & ReplayBuffer(storage=ListStorage()).stats().keys()
