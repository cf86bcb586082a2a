from __future__ import annotations

import pytest
import torch

from tests.ops.cases import assert_like_twin, assert_op_is_sound, chances, needs_kernel, op
from torchrb.ops import rng


def seed_of(number):
    return torch.tensor([number])


@needs_kernel
@pytest.mark.parametrize("block", range(2))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        seed = seed_of(chance.choice((0, -1, 2**63 - 1, -(2**63), chance.randrange(2**63))))
        size = chance.choice((1, 2, 63, 64, 65, 1000, 2**31, 2**32 - 1, chance.randint(1, 2**32 - 1)))
        num = min(size, chance.choice((0, 1, 7, 63, 64, 65, 1000)))
        assert_like_twin("draw_permuted", (seed, size, chance.randint(0, size - num), num))


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 1000, 5000])
def test_the_whole_is_a_permutation_and_its_parts_are_parts_of_it(size):
    whole = op("draw_permuted")(seed_of(7), size, 0, size)
    assert whole.dtype == torch.int64 and sorted(whole.tolist()) == list(range(size))
    third = size // 3
    places = ((0, third), (third, third), (2 * third, size - 2 * third))
    places = ((0, third), (third, third), (2 * third, size - 2 * third))
    parts = [op("draw_permuted")(seed_of(7), size, first, num) for first, num in places]
    assert torch.cat(parts).tolist() == whole.tolist()


def test_another_seed_selects_another_permutation():
    first, again, other = (op("draw_permuted")(seed_of(seed), 1000, 0, 1000).tolist() for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("size", [1, 2, 3, 64, 65, 2000, 70_000])
def test_it_is_the_permutation_that_groups_are_drawn_by(size):
    first = min(size, 100)
    assert (
        op("draw_permuted")(seed_of(5), size, 0, first).tolist()
        == rng.permute(seed_of(5), torch.arange(first), size).tolist()
    )


def test_opcheck_and_compile():
    for first, num in ((0, 0), (0, 9), (3, 2)):
        assert_op_is_sound("draw_permuted", (seed_of(3), 9, first, num))


@pytest.mark.parametrize("stretch", [(-1, 0, 0), (5, -1, 2), (5, 0, -1), (5, 0, 6), (5, 4, 2), (5, 6, 0)])
def test_a_stretch_past_the_set_is_refused(stretch):
    with pytest.raises(RuntimeError, match="must lie within the set"):
        op("draw_permuted")(seed_of(3), *stretch)
