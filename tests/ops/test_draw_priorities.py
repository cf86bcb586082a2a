import math

import pytest
import torch

from tests.ops.cases import Ranked, assert_like_twin, assert_op_is_sound, chances, needs_kernel, op
from tests.ops.test_update_priorities import append, storage


def ranked_by(priorities, alpha=1.0, eps=0.0, capacity=None):
    """The first rows of a storage have these priorities."""
    num = len(priorities)
    records = storage(capacity or num)
    append(records, num)
    ranked = Ranked(records, alpha, eps)
    ranked.update(torch.arange(num), torch.as_tensor(priorities, dtype=torch.float64))
    return ranked


def random_priorities(chance, num):
    kind = chance.choice(("zeros", "equal", "wide", "tiny", "one"))
    if kind == "equal":
        return [chance.choice((1.0, 0.1, 1 / 3))] * num
    if kind == "one":
        place = chance.randrange(num)
        return [float(i == place) for i in range(num)]
    scale = {"zeros": 0, "wide": 200, "tiny": -300}[kind]
    share = 0.7 if kind == "zeros" else 0.1
    return [0.0 if chance.random() < share else chance.random() * 10.0 ** (chance.random() * scale) for _ in range(num)]


def edge_masses(chance, ranked, num):
    """Masses at and about the ends of rows, and beyond the total."""
    ends = torch.cumsum(ranked.weights, 0)
    picks = torch.tensor([chance.randrange(len(ends)) for _ in range(num)], dtype=torch.int64)
    masses = ends[picks]
    up, down = torch.tensor(math.inf, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    masses[1::3] = torch.nextafter(masses[1::3], up)
    masses[2::3] = torch.nextafter(masses[2::3], down)
    if num > 4:
        masses[:4] = torch.tensor([0.0, -1.0, 2 * float(ends[-1]), math.nan], dtype=torch.float64)
    return masses


@needs_kernel
@pytest.mark.parametrize("block", range(4))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        num = chance.choice((1, 2, 3, 15, 16, 17, 100, 257, 5000))
        ranked = ranked_by(random_priorities(chance, num), chance.choice((1.0, 0.6)), chance.choice((0.0, 1e-8)))
        draws, beta = chance.choice((0, 1, 7, 300)), chance.choice((0.0, 0.4, 1.0, 3.0))
        masses = None if chance.random() < 0.5 else edge_masses(chance, ranked, draws)
        seed = chance.choice((0, -1, 2**63 - 1, -(2**63), chance.randrange(2**63)))
        args = ranked.draw_args(seed, draws, beta, masses, wide=chance.random() < 0.5)
        assert_like_twin("draw_priorities", args)


@pytest.mark.parametrize("block", range(4))
def test_a_row_of_zero_priority_is_never_drawn_whatever_the_mass(block):
    for chance in chances(block, 20):
        num = chance.choice((1, 2, 3, 15, 16, 17, 100, 257))
        ranked = ranked_by(random_priorities(chance, num), capacity=num + chance.choice((0, 1, 20)))
        slots, weights = ranked.draw(0, 200, masses=edge_masses(chance, ranked, 200))
        if not (ranked.weights > 0).any():
            assert (slots == -1).all() and (weights == 0).all()
            continue
        assert ((slots >= 0) & (slots < num)).all()
        assert (ranked.weights[slots] > 0).all()
        assert ((weights > 0) & (weights <= 1)).all()


def test_capacity_three_equal_priorities():
    ranked = ranked_by([1.0, 1.0, 1.0])
    assert ranked.draw(0, 3, masses=[0.5, 1.5, 2.5])[0].tolist() == [0, 1, 2]
    assert ranked.draw(0, 4, masses=[0.0, 1.0, 2.0, 3.0])[0].tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("num", [1, 2, 3, 5, 16, 17, 33, 256, 257, 1000])
def test_equal_priorities_share_the_mass_equally_at_every_capacity(num):
    ranked = ranked_by([1.0] * num)
    masses = torch.arange(num, dtype=torch.float64) + 0.5
    assert ranked.draw(0, num, masses=masses)[0].tolist() == list(range(num))


def test_a_mass_beyond_all_lands_on_the_last_positive_row():
    ranked = ranked_by([0.1, 0.2, 0.0, 0.3, 0.0, 0.0])
    assert ranked.draw(0, 2, masses=[0.6 + 1e-12, 1e9])[0].tolist() == [3, 3]


def test_importance_weights():
    ranked = ranked_by([1.0, 2.0, 4.0, 0.0])
    slots, weights = ranked.draw(0, 3, 0.5, masses=[0.5, 1.5, 4.0])
    assert slots.tolist() == [0, 1, 2]
    assert weights.tolist() == pytest.approx([1.0, 2**-0.5, 0.5], rel=1e-14)
    assert ranked.draw(0, 3, 0.0)[1].tolist() == [1.0] * 3
    assert ranked.draw(0, 3, wide=False)[1].dtype == torch.float32


@pytest.mark.parametrize("num", [3, 20, 300])
def test_rows_are_drawn_in_proportion_to_their_weights(num):
    """Each count of 40,000 draws is within five deviations: a false alarm in one of 5,000 runs of all."""
    torch.manual_seed(num)
    ranked = ranked_by(torch.rand(num) * (torch.rand(num) > 0.2), alpha=0.7, eps=0.01)
    draws = 40_000
    counts = torch.bincount(ranked.draw(7, draws)[0], minlength=num)
    p = ranked.weights / ranked.weights.sum()
    assert ((counts - draws * p).abs() <= 5 * (draws * p * (1 - p)).sqrt() + 1).all()


def test_draws_are_a_function_of_the_seed_and_a_shorter_one_begins_alike():
    ranked = ranked_by([float(i) for i in range(100)])
    first, again, other = (ranked.draw(seed, 50)[0] for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[:20], ranked.draw(3, 20)[0])


def test_opcheck_and_compile():
    ranked = ranked_by([0.5, 0.0, 2.0])
    for args in (ranked.draw_args(3, 5), ranked.draw_args(3, 0), ranked.draw_args(1, 2, 0.4, [0.1, 2.0], wide=False)):
        assert_op_is_sound("draw_priorities", args)


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    ranked = ranked_by([1.0] * 20)
    call = op("draw_priorities")
    seed, tree = torch.tensor([3]), ranked.tree
    for args, message in [
        ((seed, None, tree[:-1], 20, 3, 0.5, True), "tree must have"),
        ((seed, None, tree, 300, 3, 0.5, True), "tree must have"),
        ((seed, None, tree.float(), 20, 3, 0.5, True), "tree must have dtype Double"),
        ((seed, tree[:2], tree, 20, 3, 0.5, True), "masses must have 3 element"),
        ((seed[:0], None, tree, 20, 3, 0.5, True), "seed must have 1 element"),
        ((seed, None, tree, 20, -1, 0.5, True), "num must not be negative"),
        ((seed, None, tree, -1, 3, 0.5, True), "a tree has up to"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call(*args)
