"""`group_advantages`: dense and ragged groups, and the cases from the field."""

from __future__ import annotations

import math

import pytest
import torch

from torchrb.advantages import group_advantages

NAN, INF = math.nan, math.inf
KINDS = ("std", "mean", "leave_one_out")


def test_case_29_a_nan_return_gets_zero_and_the_others_are_computed_without_it():
    got = group_advantages(torch.tensor([[1.0, NAN, 0.0]]))
    torch.testing.assert_close(got, torch.tensor([[math.sqrt(0.5), 0.0, -math.sqrt(0.5)]]))


@pytest.mark.parametrize("hole", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", KINDS)
def test_any_non_finite_return_is_like_nan(kind, hole):
    got, without = (group_advantages(torch.tensor([r]), kind=kind) for r in ([hole, 1.0, 2.0, 4.0], [1.0, 2.0, 4.0]))
    assert got[0, 0] == 0 and torch.equal(got[:, 1:], without)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3, -2.3e10])
def test_case_30_a_constant_group_is_exactly_zero(value, kind):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert (group_advantages(torch.full((1, 7), value).to(dtype), kind=kind) == 0).all()


@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 1)])
def test_case_33_flat_returns_are_never_one_group(shape):
    with pytest.raises(ValueError, match=r"shape \[groups, n\].*group_ids="):
        group_advantages(torch.zeros(shape))


def test_the_kinds():
    returns = torch.tensor([[0.0, 2.0, 4.0]])
    assert group_advantages(returns, kind="mean").tolist() == [[-2.0, 0.0, 2.0]]
    assert group_advantages(returns, kind="leave_one_out").tolist() == [[-3.0, 0.0, 3.0]]
    torch.testing.assert_close(group_advantages(returns), torch.tensor([[-1.0, 0.0, 1.0]]))
    assert group_advantages(returns, epsilon=2.0).tolist() == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_groups_are_computed_each_on_their_own(kind):
    sizes = [1, 2, 3, 4, 5, 8, 9, 100, 1, 4]
    ids = torch.repeat_interleave(torch.tensor([5, -3, 10**12, 0, 7, 8, 9, 1, 2, 3]), torch.tensor(sizes))
    ids = ids[torch.randperm(len(ids))]
    returns = torch.randn(len(ids), dtype=torch.float64)
    returns[::7] = NAN
    got = group_advantages(returns, group_ids=ids, kind=kind)
    for group in ids.unique():
        rows = ids == group
        assert torch.equal(got[rows], group_advantages(returns[rows][None], kind=kind)[0])


def test_dense_and_flat_are_the_same():
    returns = torch.rand(20, 6)
    flat = group_advantages(returns.view(-1), group_ids=torch.arange(20).repeat_interleave(6))
    assert torch.equal(flat.view(20, 6), group_advantages(returns))


def test_one_large_group_among_many_small_ones_takes_no_square_of_memory():
    # One matrix for all groups would need 80 GB.
    ids = torch.cat([torch.zeros(100_000, dtype=torch.int64), torch.arange(1, 100_001)])
    got = group_advantages(torch.rand(200_000), group_ids=ids)
    assert (got[100_000:] == 0).all() and got[:100_000].abs().min() < got[:100_000].abs().max()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
)
def test_dtypes(dtype, expected):
    returns = torch.tensor([[0, 1, 1, 0]]).to(dtype)
    got = group_advantages(returns)
    assert got.dtype == expected and got.shape == returns.shape
    torch.testing.assert_close(got.double(), group_advantages(returns.double()), rtol=1e-2, atol=0)
    flat = group_advantages(returns[0], group_ids=torch.zeros(4, dtype=torch.int32))
    assert torch.equal(flat, got[0])


def test_large_integers_are_not_rounded_first():
    returns = torch.tensor([[0, 1, 2, 3]]) + 10**9
    assert group_advantages(returns, kind="mean").tolist() == [[-1.5, -0.5, 0.5, 1.5]]


def test_views_and_gradients():
    returns = torch.rand(4, 3, requires_grad=True)
    got = group_advantages(returns.T)
    assert not got.requires_grad and got.shape == (3, 4)
    assert torch.equal(got, group_advantages(returns.detach().T.contiguous()))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty(shape):
    assert group_advantages(torch.zeros(shape)).shape == shape
    assert group_advantages(torch.zeros(0), group_ids=torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"returns": torch.zeros(2, 2), "kind": "max"}, "got 'max'"),
        ({"returns": torch.zeros(2, 2), "epsilon": -1.0}, "got -1.0"),
        ({"returns": torch.zeros(2, 2), "epsilon": NAN}, "got nan"),
        ({"returns": torch.zeros(2, 2, dtype=torch.complex64)}, "real"),
        ({"returns": torch.zeros(2, 2), "group_ids": torch.zeros(4, dtype=torch.int64)}, r"\[2, 2\] and \[4\]"),
        ({"returns": torch.zeros(4), "group_ids": torch.zeros(3, dtype=torch.int64)}, r"\[4\] and \[3\]"),
        ({"returns": torch.zeros(4), "group_ids": torch.zeros(4)}, "integers, got torch.float32"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(arguments.pop("returns"), **arguments)


def test_dense_groups_compile_whole():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(returns):
        return group_advantages(returns) * 2

    returns = torch.rand(5, 4)
    assert torch.equal(compiled(returns), group_advantages(returns) * 2)
