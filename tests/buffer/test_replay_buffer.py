"""Buffers on one storage are one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import buffer
from torchrb import (
    PromptGroupSampler,
)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def test_two_buffers_on_one_storage_see_each_other():
    one = buffer(capacity=4, sampler=PromptGroupSampler(num_groups=1, group_key="x"), batch_size=1)
    other = buffer(one.storage)
    one.extend(rows(1, 1))
    assert one.sample()["x"].item() == 1 and len(other) == 2
    other.set_("x", torch.tensor([5, 5]))
    assert one.sample()["x"].item() == 5
    other.empty()
    with pytest.raises(RuntimeError, match="empty"):
        one.sample()
