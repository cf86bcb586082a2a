import random

import pytest
import torch

from tests.ops.cases import (
    FLOATS,
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
from torchrb.ops.schemas import CONTROL_CURSOR, CONTROL_EPOCH, CONTROL_JOURNAL, CONTROL_LENGTH, CONTROL_WRITES

LEAVES = [(torch.int64, ()), (torch.float32, (3,)), (torch.bool, (5,)), (torch.int32, (0,))]


def append(records, values, num_rows):
    return op("append_rows_")(records.tables, records.control, records.journal, records.layout, values, num_rows)


@needs_kernel
@pytest.mark.parametrize("block", range(5))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        records = random_records(chance)
        num_rows = chance.choice((0, 1, 2, records.capacity, records.capacity + 1, 3 * records.capacity + 2))
        values = records.batch(chance, num_rows)
        assert_like_twin(
            "append_rows_", (records.tables, records.control, records.journal, records.layout, values, num_rows)
        )


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_the_ring_keeps_the_last_rows(kind):
    chance = random.Random(0)
    records = lay_out(LEAVES, 7, kind)
    ring: dict[int, tuple] = {}
    written = 0
    for num_rows in (3, 0, 2, 5, 7, 20, 1):
        values = records.batch(chance, num_rows)
        slots, generations = append(records, values, num_rows)
        assert slots.tolist() == [(written + row) % 7 for row in range(num_rows)]
        for row, slot in enumerate(slots.tolist()):
            ring[slot] = tuple(as_bytes(leaf[row]) for leaf in values), (written + row) // 7
            assert generations[row] == (written + row) // 7
        written += num_rows
        for slot, (content, generation) in ring.items():
            assert records.generations[slot] == generation
            for leaf in range(3):
                assert as_bytes(records.cells(leaf)[slot]) == content[leaf]
        assert records.control[CONTROL_LENGTH] == min(written, 7)
        assert records.control[CONTROL_CURSOR] == written % 7
        assert records.control[CONTROL_WRITES] == records.control[CONTROL_JOURNAL] == written


def test_handles_of_rows_that_the_same_batch_overwrote_are_stale():
    records = lay_out(LEAVES, 4, "packed")
    slots, generations = append(records, records.batch(random.Random(0), 11), 11)
    current = records.generations[slots] == generations
    assert current.tolist() == [False] * 7 + [True] * 4


def test_later_rows_have_later_stamps():
    records = lay_out(LEAVES, 5, "columns")
    for num_rows in (4, 4, 9):
        slots, _ = append(records, records.batch(random.Random(0), num_rows), num_rows)
        stamps = records.stamps[slots[-5:]]
        assert bool((stamps[1:] > stamps[:-1]).all())
        assert int(records.stamps.max()) == int(stamps[-1])


def test_the_journal_names_the_slots_in_order():
    records = lay_out([], 4, "packed")
    slots = torch.cat([append(records, [], num_rows)[0] for num_rows in (3, 1, 6)])
    head, size = int(records.control[CONTROL_JOURNAL]), records.journal.shape[0]
    assert head == 10
    assert [int(records.journal[p % size]) for p in range(head - size, head)] == slots[-size:].tolist()


@needs_kernel
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_large_enough_for_threads_equals_the_twin(seed):
    chance = random.Random(seed)
    records = lay_out([(torch.float32, (700,)), (torch.int64, ())], 500, chance.choice(("packed", "columns")))
    num_rows = (400, 900, 1700)[seed]
    values = [torch.randn(num_rows, 700), torch.arange(num_rows)]
    assert_like_twin(
        "append_rows_", (records.tables, records.control, records.journal, records.layout, values, num_rows)
    )


@needs_kernel
def test_writers_in_threads_never_share_a_handle():
    num_threads, turns, num_rows, capacity = 3, 300, 70, 1000
    records = lay_out([(torch.int64, ())], capacity, "packed")
    records.journal = torch.zeros(num_threads * turns * num_rows, dtype=torch.int64)
    values = [torch.zeros(num_rows, dtype=torch.int64)]
    handles = in_threads(num_threads, turns, lambda: torch.stack(append(records, values, num_rows), dim=1))
    written = num_threads * turns * num_rows
    assert torch.cat(handles).unique(dim=0).shape[0] == written
    assert records.control[CONTROL_WRITES] == records.control[CONTROL_JOURNAL] == written
    assert torch.equal(torch.bincount(records.journal), torch.bincount(torch.arange(written) % capacity))


def test_opcheck_and_compile():
    chance = random.Random(0)
    records = lay_out([*LEAVES, *((dtype, (2,)) for dtype in FLOATS)], 5, "packed")
    for num_rows in (0, 3, 8):
        values = records.batch(chance, num_rows)
        assert_op_is_sound(
            "append_rows_", (records.tables, records.control, records.journal, records.layout, values, num_rows)
        )


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = lay_out(LEAVES, 4, "packed")
    values = records.batch(random.Random(0), 3)
    strided = [torch.zeros(3, 2, dtype=torch.int64)[:, 0], *values[1:]]
    with pytest.raises(RuntimeError, match="values must be contiguous"):
        append(records, strided, 3)
    with pytest.raises(RuntimeError, match=r"values\[1\] must be 3 rows of 12 bytes, got 72"):
        append(records, [values[0], values[1].double(), *values[2:]], 3)
    with pytest.raises(RuntimeError, match="layout must hold three numbers"):
        append(records, values[:2], 3)
    with pytest.raises(RuntimeError, match="cursor must be below the capacity"):
        records.control[CONTROL_CURSOR] = 9
        append(records, values, 3)
    records.control[CONTROL_CURSOR] = 0
    records.layout[1] = 10_000
    with pytest.raises(RuntimeError, match="layout places 8 bytes at offset 10000"):
        append(records, values, 3)
    assert not records.tables[0].any()
    assert not records.control.any()


def test_a_journal_whose_head_turned_negative_stays_inside_its_ring():
    records = lay_out([], 4, "packed")
    around = torch.full((12,), -7)
    records.journal = around[4:8]
    records.control[CONTROL_JOURNAL] = -5
    append(records, [], 3)
    assert around[:4].tolist() == around[8:].tolist() == [-7] * 4 and set(records.journal.tolist()) >= {0, 1, 2}


@pytest.mark.parametrize("epoch", [2**40, 2**60 + 7])
def test_a_new_epoch_counts_from_its_beginning_on_top_of_any_other(epoch):
    records = lay_out([], 2, "packed")
    assert append(records, [], 3)[1].tolist() == [0, 0, 1]
    records.control[CONTROL_EPOCH] = 2**60
    _, first = append(records, [], 3)  # slots 1, 0, 1
    assert first.tolist() == [2**60, 2**60, 2**60 + 1]
    records.control[CONTROL_EPOCH] = epoch
    _, second = append(records, [], 4)
    assert second.tolist() == [epoch, epoch, epoch + 1, epoch + 1]
