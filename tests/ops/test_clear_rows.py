import random

import pytest
import torch

from tests.ops.cases import assert_like_twin, assert_op_is_sound, chances, lay_out, needs_kernel, op, random_records
from tests.ops.test_write_rows import LEAVES, write
from torchrb.ops.schemas import CONTROL_CURSOR, CONTROL_JOURNAL, CONTROL_LENGTH, CONTROL_STAMP, CONTROL_WRITES


def clear(records, reset_writes=True):
    return op("clear_rows_")(records.tables, records.control, records.journal, reset_writes)


@needs_kernel
@pytest.mark.parametrize("block", range(3))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        records = random_records(chance)
        assert_like_twin("clear_rows_", (records.tables, records.control, records.journal, chance.random() < 0.5))


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_every_handle_goes_stale_and_none_comes_back(kind):
    records = lay_out(LEAVES, 5, kind)
    handles = set()
    for _ in range(3):
        values = records.batch(random.Random(0), 3)
        generations = write(records, torch.tensor([0, 2, 3]), values, True)
        fresh = set(zip((0, 2, 3), generations.tolist(), strict=True))
        assert not fresh & handles
        handles |= fresh
        assert clear(records) is None
        handles |= set(enumerate(records.generations.tolist()))
        assert not (records.words & 0b11).any()
    assert records.generations.tolist() == [5, -1, 5, 5, -1]


@pytest.mark.parametrize("reset_writes", [True, False])
def test_what_is_counted_afterwards(reset_writes):
    records = lay_out(LEAVES, 5, "packed")
    values = records.batch(random.Random(0), 4)
    op("append_rows_")(records.tables, records.control, records.journal, records.layout, values, 4)
    head, stamp = int(records.control[CONTROL_JOURNAL]), int(records.control[CONTROL_STAMP])
    clear(records, reset_writes)
    assert records.control[CONTROL_CURSOR] == records.control[CONTROL_LENGTH] == 0
    assert records.control[CONTROL_WRITES] == (0 if reset_writes else 4)
    assert records.control[CONTROL_JOURNAL] == head + 4
    assert records.journal[[p % records.journal.shape[0] for p in range(head, head + 4)]].tolist() == [0, 1, 2, 3]
    assert records.control[CONTROL_STAMP] == stamp
    clear(records)
    assert records.control[CONTROL_JOURNAL] == head + 4  # nothing lived, nothing to report


def test_opcheck_and_compile():
    records = lay_out(LEAVES, 5, "columns")
    write(records, torch.tensor([0, 3]), records.batch(random.Random(0), 2), True)
    for reset_writes in (True, False):
        assert_op_is_sound("clear_rows_", (records.tables, records.control, records.journal, reset_writes))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = lay_out(LEAVES, 5, "packed")
    with pytest.raises(RuntimeError, match="journal must have dtype Long, got Int"):
        op("clear_rows_")(records.tables, records.control, records.journal.int(), True)
    with pytest.raises(RuntimeError, match="header of 16 bytes, got rows of 8"):
        op("clear_rows_")([torch.zeros(4, 8, dtype=torch.uint8)], records.control, records.journal, True)
    with pytest.raises(RuntimeError, match="rows of a table must not overlap"):
        op("clear_rows_")([torch.zeros(1, 16, dtype=torch.uint8).expand(4, 16)], records.control, records.journal, True)
