import pytest
import torch

from tests.ops.cases import (
    FLOATS,
    INTEGERS,
    assert_like_twin,
    assert_op_is_sound,
    chances,
    lay_out,
    needs_kernel,
    op,
    random_records,
    random_values,
)
from tests.ops.test_write_rows import random_slots, write
from torchrb.ops.schemas import CONTROL_JOURNAL, STALE, SUPERSEDED, UPDATED, VERSION_REJECTED

ORDERED = tuple(dtype for dtype in INTEGERS + FLOATS if dtype != torch.bool)


def update(records, slots, generations, values, layout, version_leaf=(), version=None, require_newer=False):
    return op("update_rows_if_")(
        records.tables, records.control, records.journal, layout, slots, generations, values,
        list(version_leaf), version, require_newer,
    ).tolist()  # fmt: skip


def versioned(dtype=torch.int64, versions=(5, 5, 5, 5)):
    """Four live records of (version, payload of zeros)."""
    records = lay_out([(dtype, ()), (torch.float32, (2,))], 4, "packed")
    write(records, torch.arange(4), [torch.tensor(versions, dtype=dtype), torch.zeros(4, 2)], True)
    return records


def patch(records, rows, require_newer=False):
    """Rows of (slot, generation, version); row ``i`` writes the payload ``i + 1``. Returns status and payloads."""
    slots, generations, versions = (list(column) for column in zip(*rows, strict=True))
    payload = torch.arange(1.0, len(rows) + 1)[:, None].expand(-1, 2).contiguous()
    status = update(
        records, torch.tensor(slots), torch.tensor(generations), [payload], records.part([1]),
        records.part([0]), torch.tensor(versions, dtype=records.leaves[0][0]), require_newer,
    )  # fmt: skip
    return status, records.cells(1)[:, 0].tolist()


@needs_kernel
@pytest.mark.parametrize("block", range(12))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        records = random_records(chance)
        slots = random_slots(chance, records.capacity)
        inside = slots.clamp(0, records.capacity - 1)
        wrong = torch.tensor([chance.random() < 0.2 for _ in slots], dtype=torch.bool)
        generations = torch.where(wrong, chance.randint(-1, 3), records.generations[inside])
        ordered = [i for i, (dtype, shape) in enumerate(records.leaves) if dtype in ORDERED and shape in ((), (1,))]
        version_leaf, version = [], None
        if ordered and chance.random() < 0.7:
            leaf = chance.choice(ordered)
            version_leaf = records.part([leaf])
            version = random_values(chance, records.leaves[leaf][0], (slots.shape[0],))
        chosen = [i for i in range(len(records.leaves)) if chance.random() < 0.5]
        values = records.batch(chance, slots.shape[0], chosen)
        assert_like_twin(
            "update_rows_if_",
            (
                records.tables, records.control, records.journal, records.part(chosen), slots, generations, values,
                version_leaf, version, chance.random() < 0.5,
            ),
        )  # fmt: skip


def test_only_the_record_that_the_handle_names_is_written():
    records = versioned()
    write(records, torch.tensor([1]), [torch.tensor([5]), torch.zeros(1, 2)], True)
    payload = torch.arange(1.0, 7)[:, None].repeat(1, 2)
    slots, generations = torch.tensor([0, 1, 1, 2, 7, -1]), torch.tensor([0, 0, 1, 1, 0, 0])
    words = records.words.clone()
    status = update(records, slots, generations, [payload], records.part([1]))
    assert status == [UPDATED, STALE, UPDATED, STALE, STALE, STALE]
    assert records.cells(1)[:, 0].tolist() == [1, 3, 0, 0]
    assert torch.equal(records.words, words)
    head = int(records.control[CONTROL_JOURNAL])
    assert [int(records.journal[p % records.journal.shape[0]]) for p in range(head - 2, head)] == [0, 1]


def test_a_retired_or_never_written_slot_takes_nothing():
    records = versioned()
    op("clear_rows_")(records.tables, records.control, records.journal, True)
    generations = records.generations.clone()
    assert update(records, torch.arange(4), generations, [torch.ones(4, 2)], records.part([1])) == [STALE] * 4
    fresh = lay_out(records.leaves, 4, "columns")
    never = torch.full((4,), -1)
    assert update(fresh, torch.arange(4), never, [torch.ones(4, 2)], fresh.part([1])) == [STALE] * 4
    assert not records.cells(1).any()
    assert not fresh.cells(1).any()


def test_without_versions_the_last_of_a_record_is_written():
    records = versioned()
    payload = torch.arange(1.0, 5)[:, None].repeat(1, 2)
    status = update(records, torch.tensor([2, 2, 2, 2]), torch.tensor([0, 0, 1, 0]), [payload], records.part([1]))
    assert status == [SUPERSEDED, SUPERSEDED, STALE, UPDATED]
    assert records.cells(1)[:, 0].tolist() == [0, 0, 4, 0]


def test_with_versions_the_highest_of_a_record_is_written_and_the_last_of_equals():
    records = versioned()
    status, payloads = patch(records, [(2, 0, 6), (2, 0, 9), (1, 0, 4), (2, 0, 9), (2, 0, 7), (2, 3, 99)])
    assert status == [VERSION_REJECTED] * 3 + [UPDATED, VERSION_REJECTED, STALE]
    assert payloads == [0, 0, 4, 0]
    assert records.cells(0).tolist() == [5, 5, 9, 5]


def test_an_equal_version_is_accepted_unless_a_newer_one_is_required():
    for require_newer, expected in ((False, UPDATED), (True, VERSION_REJECTED)):
        assert patch(versioned(), [(0, 0, 5)], require_newer)[0] == [expected]
        assert patch(versioned(), [(0, 0, 6)], require_newer)[0] == [UPDATED]
        assert patch(versioned(), [(0, 0, 4)], require_newer)[0] == [VERSION_REJECTED]


def test_nan_versions():
    nan = float("nan")
    records = versioned(torch.float32, (5.0, nan, nan, -0.0))
    status, _ = patch(records, [(0, 0, nan), (1, 0, nan), (2, 0, float("-inf")), (3, 0, 0.0)])
    assert status == [VERSION_REJECTED, VERSION_REJECTED, UPDATED, UPDATED]
    assert patch(versioned(torch.float32, (-0.0, 0, 0, 0)), [(0, 0, 0.0)], True)[0] == [VERSION_REJECTED]


def test_versions_are_compared_in_their_own_type():
    large = 2**62
    records = versioned(torch.int64, (large, large, large, large))
    status, _ = patch(records, [(0, 0, large + 1), (1, 0, large - 1), (2, 0, -(2**63)), (3, 0, 2**63 - 1)], True)
    assert status == [UPDATED, VERSION_REJECTED, VERSION_REJECTED, UPDATED]


def test_an_update_keeps_generation_and_order_and_moves_the_header():
    records = versioned()
    words, stamps = records.words.clone(), records.stamps.clone()
    patch(records, [(3, 0, 6), (0, 0, 1)])
    assert torch.equal(records.words, words)
    assert (records.stamps != stamps).tolist() == [False, False, False, True]
    assert records.stamps.argsort().tolist() == [0, 1, 2, 3]


@needs_kernel
@pytest.mark.parametrize("with_version", [True, False])
def test_a_batch_large_enough_for_threads_equals_the_twin(with_version):
    records = lay_out([(torch.float32, (700,)), (torch.int64, ())], 500, "packed")
    write(records, torch.arange(450), [torch.randn(450, 700), torch.arange(450)], True)
    slots, version = torch.randint(-5, 505, (900,)), torch.randint(0, 450, (900,))
    args = (
        records.tables, records.control, records.journal, records.part([0]), slots, torch.randint(0, 2, (900,)),
        [torch.randn(900, 700)], records.part([1]), version if with_version else None, True,
    )  # fmt: skip
    assert_like_twin("update_rows_if_", args)


def test_opcheck_and_compile():
    records = versioned()
    for slots in ([], [3, 1], [2, 2, 9]):
        slots = torch.tensor(slots, dtype=torch.int64)
        n = slots.shape[0]
        for version in (None, torch.arange(n) + 5):
            assert_op_is_sound(
                "update_rows_if_",
                (
                    records.tables, records.control, records.journal, records.part([1]), slots,
                    torch.zeros(n, dtype=torch.int64), [torch.ones(n, 2)], records.part([0]), version, True,
                ),
            )  # fmt: skip


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = versioned()
    slots = torch.arange(2)
    with pytest.raises(RuntimeError, match="generations must have 2 element"):
        update(records, slots, torch.zeros(3, dtype=torch.int64), [torch.ones(2, 2)], records.part([1]))
    with pytest.raises(RuntimeError, match="version must have the dtype of the stored leaf, which has 8 bytes"):
        update(records, slots, slots, [], [], records.part([0]), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="version must have 2 element"):
        update(records, slots, slots, [], [], records.part([0]), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="of a bool, integer or floating-point dtype that orders, got ComplexFloat"):
        update(records, slots, slots, [], [], records.part([0]), torch.zeros(2, dtype=torch.complex64))
