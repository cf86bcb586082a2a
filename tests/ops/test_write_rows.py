import random

import pytest
import torch

from tests.ops.cases import (
    as_bytes,
    assert_like_twin,
    assert_op_is_sound,
    chances,
    in_threads,
    lay_out,
    needs_kernel,
    op,
    random_records,
)
from torchrb.ops.schemas import CONTROL_JOURNAL, CONTROL_LENGTH, CONTROL_SIZE, CONTROL_WRITES

LEAVES = [(torch.int64, ()), (torch.float32, (3,)), (torch.bool, (5,)), (torch.int32, (0,))]


def write(records, slots, values, renew, layout=None):
    layout = records.layout if layout is None else layout
    return op("write_rows_")(records.tables, records.control, records.journal, layout, slots, values, renew)


def random_slots(chance, capacity):
    """Some ascending, some with repeats, some of them no slot of the storage."""
    kind = chance.choice(("ascending", "repeats", "outside"))
    if kind == "ascending":
        return torch.tensor(sorted(chance.sample(range(capacity), chance.randint(0, capacity))), dtype=torch.int64)
    pool = range(capacity) if kind == "repeats" else (*range(-2, capacity + 2), -(2**63), 2**63 - 1)
    return torch.tensor([chance.choice(pool) for _ in range(chance.randint(0, 2 * capacity))], dtype=torch.int64)


@needs_kernel
@pytest.mark.parametrize("block", range(8))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        records = random_records(chance)
        slots = random_slots(chance, records.capacity)
        renew = chance.random() < 0.5
        chosen = [i for i in range(len(records.leaves)) if renew or chance.random() < 0.5]
        values = records.batch(chance, slots.shape[0], chosen)
        layout = records.part(chosen)
        assert_like_twin(
            "write_rows_", (records.tables, records.control, records.journal, layout, slots, values, renew)
        )


@pytest.mark.parametrize("kind", ["packed", "columns"])
@pytest.mark.parametrize("renew", [True, False])
def test_the_last_of_equal_slots_stays(kind, renew):
    chance = random.Random(0)
    records = lay_out(LEAVES, 6, kind)
    write(records, torch.arange(6), records.batch(chance, 6), True)
    untouched = [0, 2, 3, 5]
    before = [as_bytes(records.cells(leaf)[untouched]) for leaf in range(3)]
    slots = torch.tensor([4, 1, 4, 9, 4, 1, -1])
    values = records.batch(chance, 7)
    generations = write(records, slots, values, renew)
    for leaf in range(3):
        assert as_bytes(records.cells(leaf)[[4, 1]]) == as_bytes(values[leaf][[4, 5]])
        assert as_bytes(records.cells(leaf)[untouched]) == before[leaf]
    assert generations.tolist() == ([1, 1, 2, -1, 3, 2, -1] if renew else [0, 0, 0, -1, 0, 0, -1])
    assert records.generations.tolist() == ([0, 2, 0, 0, 3, 0] if renew else [0] * 6)


def test_whole_records_take_new_stamps_and_live():
    records = lay_out(LEAVES, 4, "packed")
    write(records, torch.tensor([2, 0]), records.batch(random.Random(0), 2), True)
    assert records.words.tolist() == [0b110, 0, 0b110, 0]
    assert records.stamps[0] > records.stamps[2]
    assert records.control[CONTROL_LENGTH] == 3
    assert records.control[CONTROL_WRITES] == 0
    assert records.journal[:2].tolist() == [2, 0]


def test_parts_of_records_keep_generation_and_order():
    records = lay_out(LEAVES, 4, "columns")
    write(records, torch.arange(4), records.batch(random.Random(0), 4), True)
    words, order = records.words.clone(), records.stamps.argsort()
    new = torch.full((2, 3), 7.0)
    write(records, torch.tensor([1, 3]), [new], False, records.part([1]))
    assert torch.equal(records.words, words)
    assert torch.equal(records.stamps.argsort(), order)
    assert torch.equal(records.cells(1)[[1, 3]], new)
    assert records.control[CONTROL_JOURNAL] == 6


def test_a_partial_write_moves_the_header_and_only_its_row():
    """A reader that looked before and after must see that a patch passed, though the generation is the same."""
    records = lay_out(LEAVES, 3, "packed")
    write(records, torch.arange(3), records.batch(random.Random(0), 3), True)
    for _ in range(5000):  # past the point where the patch count wraps
        before = records.stamps.clone()
        write(records, torch.tensor([1]), [torch.zeros(1, 3)], False, records.part([1]))
        assert (records.stamps == before).tolist() == [True, False, True]
    assert records.stamps.argsort().tolist() == [0, 1, 2]


@needs_kernel
@pytest.mark.parametrize("renew", [True, False])
def test_a_batch_large_enough_for_threads_equals_the_twin(renew):
    records = lay_out([(torch.float32, (700,)), (torch.int64, ())], 500, "packed")
    slots = torch.randint(-5, 505, (900,))
    values = [torch.randn(900, 700), torch.arange(900)]
    assert_like_twin(
        "write_rows_", (records.tables, records.control, records.journal, records.layout, slots, values, renew)
    )


@needs_kernel
def test_few_rows_of_a_large_storage_equal_the_twin():
    for chance in chances(0, 20):
        records = lay_out([(torch.int64, ())], 1000, "columns")
        slots = torch.tensor([chance.choice((chance.randrange(1000), 5, 600)) for _ in range(chance.randint(2, 8))])
        args = (
            records.tables,
            records.control,
            records.journal,
            records.layout,
            slots,
            [torch.arange(slots.shape[0])],
            True,
        )
        assert_like_twin("write_rows_", args)


@needs_kernel
def test_writers_in_threads_never_share_a_generation():
    num_threads, turns, capacity = 3, 150, 2000
    records = lay_out([(torch.int64, ())], capacity, "packed")
    slots, value = torch.arange(capacity), [torch.zeros(capacity, dtype=torch.int64)]
    generations = in_threads(num_threads, turns, lambda: write(records, slots, value, True))
    every_turn = torch.arange(num_threads * turns)[:, None].expand(-1, capacity)
    assert torch.equal(torch.stack(generations).sort(dim=0).values, every_turn)
    assert records.control[CONTROL_JOURNAL] == num_threads * turns * capacity
    assert records.stamps.unique().shape[0] == capacity


def test_opcheck_and_compile():
    chance = random.Random(0)
    records = lay_out(LEAVES, 5, "columns")
    for slots in ([], [3, 1], [4, 4, -1]):
        values = records.batch(chance, len(slots))
        for renew in (True, False):
            slots = torch.as_tensor(slots, dtype=torch.int64)
            assert_op_is_sound(
                "write_rows_", (records.tables, records.control, records.journal, records.layout, slots, values, renew)
            )


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = lay_out(LEAVES, 4, "packed")
    values = records.batch(random.Random(0), 2)
    with pytest.raises(RuntimeError, match="slots must have dtype Long, got Int"):
        write(records, torch.tensor([0, 1], dtype=torch.int32), values, True)
    with pytest.raises(RuntimeError, match="slots must be contiguous"):
        write(records, torch.arange(4)[::2], values, True)
    with pytest.raises(RuntimeError, match="must be 3 rows of 8 bytes, got 16"):
        write(records, torch.arange(3), values, True)
    records.tables[0] = records.tables[0][:, ::2]
    with pytest.raises(RuntimeError, match="row of a table must be contiguous"):
        write(records, torch.arange(2), values, True)
    records.control = torch.zeros(CONTROL_SIZE - 1, dtype=torch.int64)
    records.tables[0] = lay_out(LEAVES, 4, "packed").tables[0]
    with pytest.raises(RuntimeError, match="control must have 8 element"):
        write(records, torch.arange(2), values, True)
