"""The distribution of the draws, on the numbers themselves: permutations, their pairs and their positions."""

import math

import pytest
import torch

from torchrb.ops import rng

SIZES = (1, 2, 3, 5, 8, 64, 65, 1000)


def assert_uniform(counts: torch.Tensor, expected: float) -> None:
    """Chi-square below its one-in-a-million point, by the cube-root approximation of Wilson and Hilferty.

    The seeds are fixed, so a correct generator that passes once passes always; a wrong one is some other function of
    the same seeds, and would have to be lucky.
    """
    degrees = counts.numel() - 1
    if degrees == 0:
        assert counts.sum() == counts.numel() * expected
        return
    statistic = float(((counts - expected) ** 2 / expected).sum())
    normal_point = 4.753  # a standard normal variable is larger once in a million
    spread = 2 / (9 * degrees)
    assert statistic <= degrees * (1 - spread + normal_point * math.sqrt(spread)) ** 3


@pytest.fixture
def permutations(monkeypatch):
    """A function that gives the first images of many permutations at once, int64 ``[num, positions]``.

    ``permute`` takes one seed; handing it the round keys of all seeds at once makes it compute all of them together.
    """
    random64 = rng.random64

    def of_all_seeds(seeds, stream, counter):
        return random64(seeds[:, None], stream, counter).t()[:, :, None]

    def draw(n: int, num: int, positions: int) -> torch.Tensor:
        x, block = torch.arange(positions), 16_000 // positions
        with monkeypatch.context() as patched:
            patched.setattr(rng, "random64", of_all_seeds)
            patched.setattr(rng, "_TABLE_BITS", 0)  # the table of a small set is for one seed
            parts = [
                rng.permute(seeds, x, n).expand(seeds.shape[0], positions) for seeds in torch.arange(num).split(block)
            ]
        drawn = torch.cat(parts)
        for seed in (0, num // 2, num - 1):
            assert torch.equal(drawn[seed], rng.permute(torch.tensor([seed]), x, n))
        return drawn

    return draw


@pytest.mark.parametrize("n", SIZES)
def test_images_are_a_permutation(n):
    for seed in (0, 1, -1, 2**63 - 1, -(2**63)):
        assert rng.permute(torch.tensor([seed]), torch.arange(n), n).sort().values.tolist() == list(range(n))


@pytest.mark.parametrize("n", SIZES)
def test_each_image_is_equally_likely_at_each_position(n, permutations):
    num = max(2000, 30 * n)
    drawn = permutations(n, num, min(n, 8))
    for position in range(drawn.shape[1]):
        assert_uniform(torch.bincount(drawn[:, position], minlength=n), num / n)


@pytest.mark.parametrize("n", [n for n in SIZES if 1 < n <= 65])
def test_each_ordered_pair_is_equally_likely(n, permutations):
    num = max(2000, 10 * n * (n - 1))
    drawn = permutations(n, num, 2)
    counts = torch.bincount(drawn[:, 0] * n + drawn[:, 1], minlength=n * n).view(n, n)
    assert not counts.diagonal().any()
    assert_uniform(counts[~torch.eye(n, dtype=torch.bool)], num / (n * (n - 1)))


def test_pairs_of_a_large_set_are_equally_likely_by_their_distance(permutations):
    """For n = 1000 pairs are too many to count; a network that mixes poorly shows in differences of neighbours."""
    n, num = 1000, 50_000
    drawn = permutations(n, num, 2)
    difference = (drawn[:, 1] - drawn[:, 0]) % n
    assert not (difference == 0).any()
    assert_uniform(torch.bincount(difference, minlength=n)[1:], num / (n - 1))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_order_is_equally_likely(n, permutations):
    num = 100 * math.factorial(n)
    names = (permutations(n, num, n) * n ** torch.arange(n)).sum(dim=1)  # one number for each order
    orders, counts = names.unique(return_counts=True)
    assert orders.shape[0] == math.factorial(n)
    assert_uniform(counts, num / math.factorial(n))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000, 2**31, 2**32 - 1])
def test_below_stays_below_and_reaches_the_last(n):
    bits = torch.tensor([0, -1, 2**63 - 1, -(2**63), 1, 3])
    mapped = rng.below(bits, n)
    assert int(mapped.min()) == 0
    assert int(mapped.max()) == n - 1
    some = min(n, 100)
    drawn = rng.below(rng.random64(torch.tensor([0]), 5, torch.arange(20_000)), some)
    assert_uniform(torch.bincount(drawn, minlength=some), 20_000 / some)


def test_mix64_is_a_bijection_that_flips_half_of_the_bits():
    x = torch.arange(10_000)
    mixed = rng.mix64(x)
    assert mixed.unique().shape[0] == 10_000
    for bit in range(0, 63, 9):
        changed = mixed ^ rng.mix64(x ^ (1 << bit))
        flips = sum(rng.shift_right(changed, place) & 1 for place in range(64)).double().mean()
        assert abs(float(flips) - 32) < 0.3  # seven times the deviation of the mean


def test_streams_and_seeds_do_not_overlap():
    counters = torch.arange(10_000)
    drawn = [rng.random64(torch.tensor([seed]), stream, counters) for seed in (0, 1) for stream in (0, 1, 2, 3, 16, 17)]
    assert torch.cat(drawn).unique().shape[0] == 10_000 * len(drawn)
