"""The op `group_advantage`: the twin against the kernel bit for bit, and both against plain statistics."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.ops.cases import assert_op_is_sound
from torchrb import ops
from torchrb.ops import reference_returns
from torchrb.ops.schemas import ADVANTAGE_KINDS

NAN, INF = math.nan, math.inf
KINDS = range(len(ADVANTAGE_KINDS))
STD, MEAN, LEAVE_ONE_OUT = KINDS


def random_returns(groups: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Reals, graded rewards, far offsets, constant groups, and holes of NaN and infinity in any of them."""
    real = torch.randn(groups, n, dtype=torch.float64)
    kind = torch.randint(0, 5, (groups, 1))
    returns = torch.where(kind == 0, (real * 2).round() / 4, real)
    returns = torch.where(kind == 1, 1e6 + returns, returns)
    returns = torch.where(kind == 2, torch.rand(groups, 1, dtype=torch.float64), returns)
    holes = (kind == 3) & (torch.rand(groups, n) < 0.3)
    hole = torch.tensor([NAN, INF, -INF], dtype=torch.float64)[torch.randint(0, 3, (groups, n))]
    return torch.where(holes, hole, returns).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_twin_and_kernel_agree_bit_for_bit(kind, dtype):
    for n, epsilon in itertools.product((1, 2, 3, 8, 33, 257), (0.0, 1e-8)):
        returns = random_returns(500, n, dtype)
        got = ops.group_advantage(returns, kind, epsilon)
        assert torch.equal(bits(got), bits(reference_returns.group_advantage(returns, kind, epsilon)))


@pytest.mark.parametrize("kind", KINDS)
def test_finite_groups_have_the_textbook_advantages(kind):
    returns = torch.randn(200, 9, dtype=torch.float64)
    mean, std = returns.mean(1, keepdim=True), returns.std(1, keepdim=True)
    expected = {
        STD: (returns - mean) / (std + 0.5),
        MEAN: returns - mean,
        LEAVE_ONE_OUT: returns - (returns.sum(1, keepdim=True) - returns) / 8,
    }[kind]
    torch.testing.assert_close(ops.group_advantage(returns, kind, 0.5), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_non_finite_returns_get_zero_and_do_not_disturb_the_others(kind):
    returns = random_returns(300, 10, torch.float64)
    got = ops.group_advantage(returns, kind, 1e-8)
    assert torch.isfinite(got).all()
    for row, advantages in zip(returns, got, strict=True):
        finite = torch.isfinite(row)
        assert (advantages[~finite] == 0).all()
        alone = ops.group_advantage(row[finite][None].contiguous(), kind, 1e-8)[0]
        assert torch.equal(advantages[finite], alone)


@pytest.mark.parametrize("epsilon", [0.0, 1e-8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_groups_are_exactly_zero(kind, epsilon, dtype):
    values = torch.cat([torch.tensor([0.7, 0.1, -1.0 / 3, 0.0, 1e30, 1e-30]), torch.randn(300)]).to(dtype)
    for n in (1, 2, 3, 7, 64):
        assert (ops.group_advantage(values[:, None].repeat(1, n), kind, epsilon) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_one_finite_return_has_nobody_to_compare_with(kind):
    returns = torch.tensor([[NAN, 3.0, INF], [NAN, NAN, -INF]])
    assert (ops.group_advantage(returns, kind, 0.0) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_far_offset_does_not_drown_the_differences(kind):
    returns = torch.randint(0, 9, (100, 8)).double()
    near, far = (ops.group_advantage(returns + offset, kind, 1e-8) for offset in (0.0, 2.0**40))
    torch.testing.assert_close(far, near, rtol=1e-12, atol=0)


@pytest.mark.parametrize("power", [-1070, -1000, -600, -452, -448, 478, 482, 600, 1000, 1020])
@pytest.mark.parametrize("kind", KINDS)
def test_returns_of_any_magnitude_have_the_advantages_of_their_scaled_copies(kind, power):
    """A power of two is exact, so that all but the last bits of what ends below the smallest normal number agree."""
    near = torch.randint(0, 8, (100, 8)).double()
    near[0] = torch.arange(8)
    far = near * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)
    epsilon = 0.0 if power < 0 else 1e-8
    got, expected = ops.group_advantage(far, kind, epsilon), ops.group_advantage(near, kind, 0.0)
    if kind != STD:
        expected = expected * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0 if power > -1022 else 2.0**-1074)
    assert torch.equal(bits(got), bits(reference_returns.group_advantage(far, kind, epsilon)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_float64_give_what_float64_can_hold(kind):
    most = torch.finfo(torch.float64).max
    returns = torch.tensor([[most, -most, NAN], [most, most, most], [most, 0.0, -most]], dtype=torch.float64)
    got = ops.group_advantage(returns, kind, 1e-8)
    expected = {
        STD: [[0.5**0.5, -(0.5**0.5), 0.0], [0.0] * 3, [1.0, 0.0, -1.0]],
        MEAN: [[most, -most, 0.0], [0.0] * 3, [most, 0.0, -most]],
        LEAVE_ONE_OUT: [[INF, -INF, 0.0], [0.0] * 3, [INF, 0.0, -INF]],
    }[kind]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert torch.equal(bits(got), bits(reference_returns.group_advantage(returns, kind, 1e-8)))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_nothing_in_nothing_out(shape):
    assert ops.group_advantage(torch.zeros(shape), STD, 1e-8).shape == shape


def test_opcheck_and_compile():
    for kind in KINDS:
        for groups, dtype in ((6, torch.float32), (2, torch.float64), (0, torch.float32)):
            assert_op_is_sound("group_advantage", (random_returns(groups, 5, dtype), kind, 1e-8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_agrees_bit_for_bit(kind, dtype):
    for n, power in itertools.product((1, 8, 33, 257), (0, 1000, -1000)):
        returns = random_returns(1000, n, dtype) * 2.0**power
        got = ops.group_advantage(returns.cuda(), kind, 1e-8).cpu()
        assert torch.equal(bits(got), bits(reference_returns.group_advantage(returns, kind, 1e-8)))
