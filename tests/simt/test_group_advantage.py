"""The kernel of `group_advantage` against its twin, bit for bit, in every mode."""

from __future__ import annotations

import pytest
import torch

from torchrb.ops import reference

SIZES = [(0, 3), (1, 1), (3, 0), (31, 2), (32, 8), (64, 5), (65, 33), (200, 16)]


def random_returns(groups: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Some ties, some constant groups, some values that are not finite."""
    returns = torch.randn(groups, n, dtype=dtype)
    coarse = torch.rand(groups, 1) < 0.3
    returns = torch.where(coarse, returns.round(), returns)
    returns = torch.where(torch.rand(groups, 1) < 0.1, torch.ones((), dtype=dtype), returns)
    for value in (float("nan"), float("inf"), float("-inf")):
        returns[torch.rand(groups, n) < 0.03] = value
    return returns


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_bit_is_the_twins(emulated, dtype):
    kernels = emulated("group_advantage")
    launch = kernels.float32 if dtype == torch.float32 else kernels.float64
    for groups, n in SIZES:
        for kind in range(3):
            returns = random_returns(groups, n, dtype)
            advantages = torch.full_like(returns, 7)
            launch(returns, advantages, groups, n, kind, 1e-6)
            expected = reference.group_advantage(returns, kind, 1e-6)
            assert torch.equal(advantages, expected), (groups, n, kind)
