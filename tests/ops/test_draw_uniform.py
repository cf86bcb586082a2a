import pytest
import torch

from tests.ops.cases import assert_like_twin, assert_op_is_sound, chances, needs_kernel, op
from torchrb.ops.schemas import CONTROL_LENGTH, CONTROL_SIZE


def control_of(length):
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
    control[CONTROL_LENGTH] = length
    return control


@needs_kernel
@pytest.mark.parametrize("block", range(2))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        seed = torch.tensor([chance.choice((0, -1, 2**63 - 1, -(2**63), chance.randrange(2**63)))])
        length = chance.choice((1, 2, 3, 1000, 2**31, 2**32 - 1, chance.randint(1, 2**32 - 1)))
        assert_like_twin("draw_uniform", (seed, control_of(length), chance.choice((0, 1, 7, 1000))))


@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_every_slot_below_the_length_is_equally_likely(length):
    """Counts of 20,000 draws stay within five deviations: a false alarm once in 20,000 runs of all four together."""
    num = 20_000
    counts = torch.bincount(op("draw_uniform")(torch.tensor([7]), control_of(length), num), minlength=length)
    assert counts.shape[0] == length
    expected = num / length
    deviation = (expected * (1 - 1 / length)) ** 0.5
    assert float((counts - expected).abs().max()) <= 5 * deviation


def test_draws_are_a_function_of_the_seed_and_a_shorter_one_begins_alike():
    control = control_of(1000)
    first, again = (op("draw_uniform")(torch.tensor([3]), control, 50) for _ in range(2))
    other = op("draw_uniform")(torch.tensor([4]), control, 50)
    shorter = op("draw_uniform")(torch.tensor([3]), control, 20)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:20], shorter)


def test_opcheck_and_compile():
    for num in (0, 1, 9):
        assert_op_is_sound("draw_uniform", (torch.tensor([3]), control_of(5), num))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    with pytest.raises(RuntimeError, match="seed must have 1 element"):
        op("draw_uniform")(torch.zeros(0, dtype=torch.int64), control_of(5), 3)
    with pytest.raises(RuntimeError, match="control must have 8 element"):
        op("draw_uniform")(torch.zeros(1, dtype=torch.int64), control_of(5)[:3], 3)
    with pytest.raises(RuntimeError, match="num must not be negative, got -1"):
        op("draw_uniform")(torch.zeros(1, dtype=torch.int64), control_of(5), -1)
