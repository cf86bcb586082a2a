import pytest
import torch

from tests.ops.cases import (
    FLOATS,
    INTEGERS,
    Index,
    assert_op_is_sound,
    chances,
    lay_out,
    needs_kernel,
    op,
    random_values,
)
from tests.ops.test_write_rows import write
from torchrb.ops import rng
from torchrb.ops.schemas import NAN_KEY

LEAVES = [(torch.int64, ()), (torch.float32, ())]


def colliding_keys(pairs):
    """Keys of two words whose hashes are all the same: the second word undoes what the first did."""
    first = torch.arange(pairs)
    return torch.stack([first, rng.mix64(first) ^ 12345], dim=1)


def few_keys(chance, dtype, shape, num_rows):
    """Values for a key leaf, of which many are equal."""
    kind = chance.choice(("small", "special", "collide", "distinct"))
    if kind == "collide" and dtype == torch.int64 and shape == (2,):
        return colliding_keys(6)[[chance.randrange(6) for _ in range(num_rows)]]
    if kind == "special":
        return random_values(chance, dtype, (num_rows, *shape))
    most = 2 if dtype == torch.bool else {"distinct": 100}.get(kind, 4)
    count = num_rows * torch.Size(shape).numel()
    return torch.tensor([chance.randrange(most) for _ in range(count)]).view(num_rows, *shape).to(dtype)


def one_step(chance, records):
    """Something that a storage does: records written, fields patched, everything cleared."""
    capacity = records.capacity
    kind = chance.choice(("append", "append", "write", "patch", "clear" if chance.random() < 0.3 else "append"))
    num_rows = chance.choice((0, 1, 2, capacity // 2, capacity + 1))
    dtype, shape = records.leaves[0]
    values = [few_keys(chance, dtype, shape, num_rows), *records.batch(chance, num_rows, [1])]
    if kind == "clear":
        op("clear_rows_")(records.tables, records.control, records.journal, True)
    elif kind == "append":
        op("append_rows_")(records.tables, records.control, records.journal, records.layout, values, num_rows)
    else:
        slots = torch.tensor([chance.randrange(-1, capacity + 1) for _ in range(num_rows)], dtype=torch.int64)
        if kind == "write":
            write(records, slots, values, True)
        else:
            write(records, slots, values[:1], False, records.part([0]))


@needs_kernel
@pytest.mark.parametrize("block", range(8))
def test_kernel_equals_twin(block):
    """The index itself belongs to its backend; what it counts and what is drawn from it are the same."""
    for chance in chances(block, 15):
        dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (1,), (2,), (2, 2), (0,)))
        capacity = chance.choice((1, 2, 9, 40))
        records = lay_out([(dtype, shape), LEAVES[1]], capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((1, 8, 100)), dtype=torch.int64)
        mine, twin = Index(records, 0), Index(records, 0, twin=True)
        for _ in range(12):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            always = chance.random() < 0.1
            counts = mine.catch_up(always)
            assert counts == twin.catch_up(always)
            if counts[0]:
                assert mine.members() == twin.members()


@pytest.mark.parametrize("block", range(3))
def test_the_index_is_the_storage_as_it_is(block):
    for chance in chances(block, 10):
        records = lay_out(LEAVES, chance.choice((1, 7, 30)), chance.choice(("packed", "columns")))
        index = Index(records, 0)
        for _ in range(10):
            one_step(chance, records)
            expected = {}
            for slot, (word, key) in enumerate(zip(records.words.tolist(), records.cells(0).tolist(), strict=True)):
                if word & 2:
                    expected.setdefault(key, []).append(slot)
            num_groups, singletons, outcast, _ = index.catch_up()
            assert num_groups == len(expected)
            assert singletons == sum(len(rows) == 1 for rows in expected.values())
            assert outcast == -1
            assert sorted(index.members()) == sorted(expected.values())


def test_what_it_costs_is_what_was_written_since():
    records = lay_out(LEAVES, 100, "packed")
    index = Index(records, 0)
    write(records, torch.arange(100), [torch.arange(100) % 7, torch.zeros(100)], True)
    assert index.catch_up() == [7, 0, -1, 100]
    assert index.catch_up() == [7, 0, -1, 0]
    write(records, torch.tensor([5, 9]), [torch.tensor([77, 78]), torch.zeros(2)], True)
    assert index.catch_up() == [9, 2, -1, 2]


def test_a_reader_that_fell_behind_the_journal_looks_at_every_row():
    records = lay_out(LEAVES, 10, "packed")
    index = Index(records, 0)
    for key in range(3):
        write(records, torch.arange(10), [torch.full((10,), key), torch.zeros(10)], True)
    assert index.catch_up() == [1, 0, -1, 10]
    assert records.cells(0)[index.members()[0]].tolist() == [2] * 10


def test_the_order_of_groups_does_not_depend_on_the_order_of_rows():
    for keys in (torch.arange(60)[:, None] % 13, colliding_keys(60)[torch.arange(60) % 13]):
        orders = []
        for order in (torch.arange(60), torch.randperm(60)):
            records = lay_out([(torch.int64, tuple(keys.shape[1:])), LEAVES[1]], 60, "packed")
            for rows in order.split(17):
                values = [keys[rows], torch.zeros(rows.shape[0])]
                op("append_rows_")(
                    records.tables, records.control, records.journal, records.layout, values, rows.shape[0]
                )
            orders.append([records.cells(0)[members[0]].tolist() for members in Index(records, 0).members()])
        assert orders[0] == orders[1]
        assert len(orders[0]) == 13


def test_keys_of_equal_hash_are_different_groups_in_the_order_of_their_words():
    records = lay_out([(torch.int64, (2,))], 6, "packed")
    write(records, torch.arange(6), [colliding_keys(6)[[5, 0, 3, 5, 1, 0]]], True)
    assert Index(records, 0).members() == [[1, 5], [4], [2], [0, 3]]


def test_integers_are_equal_whatever_their_width_and_zeros_whatever_their_sign():
    orders = []
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        records = lay_out([(dtype, ())], 8, "packed")
        write(records, torch.arange(8), [torch.tensor([3, -1, 7, -1, 0, 3, 100, -128], dtype=dtype)], True)
        orders.append(Index(records, 0).members())
    assert all(order == orders[0] for order in orders)
    records = lay_out([(torch.float32, ())], 3, "packed")
    write(records, torch.arange(3), [torch.tensor([0.0, -0.0, 1.0])], True)
    assert sorted(Index(records, 0).members()) == [[0, 1], [2]]


def test_a_nan_key_is_reported_until_it_is_overwritten_and_is_in_no_group():
    records = lay_out([(torch.float64, ())], 4, "packed")
    nan = float("nan")
    write(records, torch.arange(4), [torch.tensor([1.0, nan, 2.0, nan], dtype=torch.float64)], True)
    index = Index(records, 0)
    assert index.catch_up() == [2, 2, 1, 4]
    assert sorted(index.members()) == [[0], [2]]
    assert index.sample(0, 1, 1)[2] == NAN_KEY
    write(records, torch.tensor([1]), [torch.tensor([1.0], dtype=torch.float64)], True)
    assert index.catch_up()[2] == 3
    op("clear_rows_")(records.tables, records.control, records.journal, True)
    assert index.catch_up()[:3] == [0, 0, -1]
    write(records, torch.tensor([1]), [torch.tensor([1.0], dtype=torch.float64)], True)
    assert index.catch_up()[:3] == [1, 1, -1]
    assert index.sample(0, 1, 1)[2] == 0


@needs_kernel
def test_many_groups_equal_the_twin():
    for distinct in (3, 900, 2**60):
        records = lay_out(LEAVES, 3000, "packed")
        mine, twin = Index(records, 0), Index(records, 0, twin=True)
        for _ in range(3):
            slots = torch.randint(0, 3000, (2000,))
            write(records, slots, [torch.randint(0, distinct, (2000,)), torch.zeros(2000)], True)
            assert mine.catch_up() == twin.catch_up()
            assert mine.sample(5, 50, 10) == twin.sample(5, 50, 10)


def test_opcheck_and_compile():
    records = lay_out([(torch.int32, (2,)), LEAVES[1]], 6, "packed")
    index = Index(records, 0)
    assert_op_is_sound("group_index_update_", index.update_args(False))
    write(records, torch.tensor([4, 1]), [torch.ones(2, 2, dtype=torch.int32), torch.zeros(2)], True)
    for rebuild in (True, False):
        assert_op_is_sound("group_index_update_", index.update_args(rebuild))
    index.catch_up()
    assert_op_is_sound("group_index_update_", index.update_args(False))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = lay_out([(torch.int64, (2,))], 6, "packed")
    index = Index(records, 0)
    index.links = index.links[:-1]
    with pytest.raises(RuntimeError, match="links must have"):
        index.catch_up()
    index = Index(records, 0)
    index.keys = index.keys[:5]
    with pytest.raises(RuntimeError, match="keys must have a row for each of 6 rows, got 5"):
        index.catch_up()
    index.keys = torch.zeros(6, 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="keys must hold 2 words a row, got 1"):
        index.catch_up()
    index = Index(records, 0)
    index.state = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="state must have 8 element"):
        index.catch_up()
