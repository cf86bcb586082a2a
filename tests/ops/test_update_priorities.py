import math
import random

import pytest
import torch

from tests.ops.cases import Ranked, assert_like_twin, assert_op_is_sound, chances, lay_out, needs_kernel, op
from torchrb.ops.priority_tree import PRIORITY_FAN
from torchrb.ops.schemas import (
    CONTROL_JOURNAL,
    ORDERED_DTYPES,
    PRIORITY_DRAWABLE,
    PRIORITY_POSITION,
    PRIORITY_REFUSED,
    PRIORITY_SET,
    PRIORITY_VISITED,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
)

LEAVES = [(torch.int64, ()), (torch.float32, (3,))]


def storage(capacity, kind="packed"):
    return lay_out(LEAVES, capacity, kind)


def append(records, num):
    values = [torch.arange(num), torch.zeros(num, 3)]
    op("append_rows_")(records.tables, records.control, records.journal, records.layout, values, num)


def patch(records, slots):
    slots = torch.tensor(slots, dtype=torch.int64)
    op("write_rows_")(
        records.tables, records.control, records.journal, records.part([0]), slots, [torch.zeros_like(slots)], False
    )


def clear(records):
    op("clear_rows_")(records.tables, records.control, records.journal, True)


def live(records):
    return (records.words & SLOT_LIVE) != 0


def one_step(chance, records):
    """Something that a storage does."""
    capacity = records.capacity
    kind = chance.choice(
        ("append", "append", "append", "patch", "write", "clear" if chance.random() < 0.3 else "patch")
    )
    slots = [chance.randrange(capacity) for _ in range(chance.randrange(4))]
    if kind == "append":
        append(records, chance.choice((0, 1, 2, capacity // 2, capacity + 1)))
    elif kind == "patch":
        patch(records, slots)
    elif kind == "clear":
        clear(records)
    else:
        values = [torch.zeros(len(slots), dtype=torch.int64), torch.zeros(len(slots), 3)]
        op("write_rows_")(
            records.tables, records.control, records.journal, records.layout,
            torch.tensor(slots, dtype=torch.int64), values, True,
        )  # fmt: skip


def random_update(chance, records):
    """Slots, priorities and, perhaps, generations of an update, most of them good."""
    capacity, num = records.capacity, chance.choice((0, 1, 3, 20))
    slots = torch.tensor([chance.randrange(capacity) for _ in range(num)], dtype=torch.int64)
    pool = [0.0, 1.0, 0.5, 3.25, 1e-9, 1e30, chance.random()]
    if chance.random() < 0.1:
        pool.append(chance.choice((-1.0, math.nan, math.inf, -math.inf)))
    if num and chance.random() < 0.05:
        slots[chance.randrange(num)] = chance.choice((-1, capacity, 2**40))
    dtype = chance.choice((torch.float32, torch.float64, torch.float64, torch.float16))
    priorities = torch.tensor([chance.choice(pool) for _ in range(num)], dtype=torch.float64).to(dtype)
    generations = ()
    if chance.random() < 0.5:
        generations = [
            (records.generations[slot] if 0 <= slot < capacity and chance.random() < 0.7 else chance.randrange(-1, 3))
            for slot in slots.tolist()
        ]
    return slots, priorities, generations


class Oracle:
    """Priorities of a storage in the plainest words, for weights that are the priorities themselves."""

    def __init__(self, records):
        self.records, self.kept = records, {}

    def update(self, slots, priorities, generations=()):
        counts = (self.records.words >> SLOT_COUNT_SHIFT).tolist()
        present = {slot for slot, there in enumerate(live(self.records).tolist()) if there}
        self.kept = {s: (c, p) for s, (c, p) in self.kept.items() if s in present and counts[s] == c}
        first = max((p for _, p in self.kept.values()), default=1.0)
        for slot in present - self.kept.keys():
            self.kept[slot] = (counts[slot], first)
        slots, priorities = torch.as_tensor(slots).tolist(), priorities.double().tolist()
        if not all(0 <= s < len(counts) and 0 <= p < math.inf for s, p in zip(slots, priorities, strict=True)):
            return
        for row, (slot, priority) in enumerate(zip(slots, priorities, strict=True)):
            if slot in self.kept and (not len(generations) or counts[slot] - 1 == int(generations[row])):
                self.kept[slot] = (counts[slot], priority)


def assert_whole(ranked):
    """Every node says what its children say, and nothing is kept of rows that are not there."""
    place, tree = ranked.place, ranked.tree
    assert ((ranked.priorities >= 0) == live(ranked.records)).all()
    assert (tree[place.sums[0] + ranked.records.capacity : place.sums[0] + place.entries[0]] == 0).all()
    for level in range(1, len(place.entries)):
        num = place.entries[level - 1] // PRIORITY_FAN
        below = [tree[part[level - 1] :][: place.entries[level - 1]] for part in (place.sums, place.most, place.least)]
        sums, most, least = (part.view(num, 4, 4) for part in below)
        fours = (sums[..., 0] + sums[..., 1]) + (sums[..., 2] + sums[..., 3])
        assert torch.equal(tree[place.sums[level] :][:num], (fours[:, 0] + fours[:, 1]) + (fours[:, 2] + fours[:, 3]))
        assert torch.equal(tree[place.most[level] :][:num], most.amax((1, 2)))
        least = torch.where(least > 0, least, torch.inf)
        assert torch.equal(tree[place.least[level] :][:num], least.amin((1, 2)))


@needs_kernel
@pytest.mark.parametrize("block", range(4))
def test_kernel_equals_twin(block):
    for chance in chances(block, 15):
        capacity = chance.choice((1, 2, 15, 16, 17, 40, 300))
        records = storage(capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((1, 8, 100)), dtype=torch.int64)
        ranked = Ranked(records, chance.choice((0.0, 0.5, 1.0, 1.1, 2.0)), chance.choice((0.0, 1e-8, 0.1)))
        for _ in range(10):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            rebuild = chance.random() < 0.1
            if rebuild:
                ranked.alpha = chance.choice((0.3, 1.0))
            args = ranked.update_args(*random_update(chance, records), rebuild=rebuild)
            assert_like_twin("update_priorities_", args)
            op("update_priorities_")(*args)


@pytest.mark.parametrize("block", range(4))
def test_priorities_are_those_of_the_records_there_now(block):
    for chance in chances(block, 8):
        records = storage(chance.choice((1, 3, 16, 17, 60)))
        ranked, oracle = Ranked(records), Oracle(records)
        for _ in range(15):
            one_step(chance, records)
            update = random_update(chance, records)
            ranked.update(*update)
            oracle.update(*update)
            assert_whole(ranked)
            expected = torch.full((records.capacity,), -1.0, dtype=torch.float64)
            for slot, (_, priority) in oracle.kept.items():
                expected[slot] = priority
            assert torch.equal(ranked.priorities, expected)
            assert torch.equal(ranked.weights, expected.clamp(min=0))


def test_a_new_row_has_the_greatest_priority_of_the_rows_that_are_left():
    records = storage(4)
    ranked = Ranked(records, alpha=0.5)
    append(records, 4)
    ranked.update([0, 1, 2, 3], [9.0, 4.0, 1.0, 2.0])
    append(records, 1)  # over the greatest
    ranked.update()
    assert ranked.priorities.tolist() == [4.0, 4.0, 1.0, 2.0]
    assert ranked.weights.tolist() == pytest.approx([2.0, 2.0, 1.0, 2.0**0.5])
    append(records, 2)  # over both of the greatest but one
    ranked.update()
    assert ranked.priorities.tolist() == [4.0, 4.0, 4.0, 2.0]
    clear(records)
    ranked.update()
    assert ranked.priorities.tolist() == [-1.0] * 4 and ranked.total == 0
    append(records, 2)
    ranked.update()
    assert ranked.priorities.tolist() == [1.0, 1.0, -1.0, -1.0]


def test_a_part_update_keeps_the_priority():
    records = storage(4)
    ranked = Ranked(records)
    append(records, 3)
    ranked.update([0, 1, 2], [5.0, 6.0, 7.0])
    patch(records, [0, 2])
    ranked.update()
    assert ranked.priorities.tolist() == [5.0, 6.0, 7.0, -1.0]


@pytest.mark.parametrize("dtype", sorted(ORDERED_DTYPES - {torch.bool}, key=str), ids=str)
def test_of_equal_slots_the_last_one_counts_in_any_dtype(dtype):
    records = storage(5)
    ranked = Ranked(records)
    append(records, 4)
    ranked.update([1, 1, 3, 1], torch.tensor([2, 3, 4, 7], dtype=dtype))
    assert ranked.priorities.tolist() == [1.0, 7.0, 1.0, 4.0, -1.0]


def test_another_record_does_not_get_the_priority_of_the_one_before():
    records = storage(3)
    ranked = Ranked(records)
    append(records, 3)
    ranked.update()
    handles = records.generations.clone()
    append(records, 1)
    ranked.update([0, 1], [9.0, 5.0], handles[:2])
    assert ranked.priorities.tolist() == [1.0, 5.0, 1.0]


def test_a_bad_priority_or_slot_sets_nothing():
    records = storage(4)
    ranked = Ranked(records)
    append(records, 3)
    for slots, priorities, row in [
        ([0, 1], [3.0, math.nan], 1), ([0, 1], [-1.0, 2.0], 0), ([2, 0], [3.0, math.inf], 1), ([0, 4], [1.0, 2.0], 1),
        ([-1], [1.0], 0),
    ]:  # fmt: skip
        ranked.update(slots, priorities)
        assert ranked.state[PRIORITY_REFUSED] == row + 1 and ranked.state[PRIORITY_SET] == 0
        assert ranked.priorities.tolist() == [1.0, 1.0, 1.0, -1.0]
        ranked.state[PRIORITY_REFUSED] = 0
    ranked.update([3, 1], [5.0, 2.0])  # a slot without a record is no fault
    assert ranked.state[PRIORITY_REFUSED] == 0 and ranked.state[PRIORITY_SET] == 1
    assert ranked.priorities.tolist() == [1.0, 2.0, 1.0, -1.0]


def test_what_it_costs_is_what_was_written_since():
    records = storage(100)
    ranked = Ranked(records)
    append(records, 100)
    ranked.update()
    assert ranked.state[PRIORITY_VISITED] == 100
    ranked.update([3], [2.0])
    assert ranked.state[PRIORITY_VISITED] == 100
    append(records, 2)
    ranked.update()
    assert ranked.state[PRIORITY_VISITED] == 102
    assert ranked.state[PRIORITY_POSITION] == records.control[CONTROL_JOURNAL]


def test_whether_anything_can_be_drawn_is_told():
    records = storage(3)
    ranked = Ranked(records)
    ranked.update()
    assert not ranked.state[PRIORITY_DRAWABLE]
    append(records, 2)
    ranked.update()
    assert ranked.state[PRIORITY_DRAWABLE]
    ranked.update([0, 1], [0.0, 0.0])
    assert not ranked.state[PRIORITY_DRAWABLE]


def test_sums_do_not_drift():
    """After any number of updates the sums are those of a tree built at once."""
    records = storage(1000)
    append(records, 1000)
    ranked, fresh = Ranked(records, 0.6, 1e-8), Ranked(records, 0.6, 1e-8)
    torch.manual_seed(1)
    for _ in range(50):
        ranked.update(torch.randint(0, 1000, (64,)), torch.rand(64) * 10.0 ** torch.randint(-6, 7, (64,)))
    fresh.update(torch.arange(1000), ranked.priorities.clone())
    assert torch.equal(ranked.tree, fresh.tree)


def test_powers_are_right_to_thirteen_digits():
    records = storage(5000)
    append(records, 5000)
    torch.manual_seed(2)
    priorities = torch.rand(5000, dtype=torch.float64) * 10.0 ** torch.randint(-12, 13, (5000,))
    for alpha in (0.0, 0.1, 0.6, 1.0, 1.1, 3.0):
        ranked = Ranked(records, alpha)
        ranked.update(torch.arange(5000), priorities)
        assert torch.allclose(ranked.weights, priorities**alpha, rtol=1e-13, atol=0)


def test_weights_stay_within_what_can_be_summed():
    records = storage(3)
    append(records, 3)
    ranked = Ranked(records, 4.0)
    ranked.update([0, 1, 2], torch.tensor([1e300, 1e-300, 0.0], dtype=torch.float64))
    assert ranked.weights.tolist() == [2.0**960, 2.0**-960, 0.0]


def test_opcheck_and_compile():
    records = storage(20)
    ranked = Ranked(records, 0.7, 1e-8)
    assert_op_is_sound("update_priorities_", ranked.update_args())
    append(records, 18)
    assert_op_is_sound("update_priorities_", ranked.update_args([3, 5], [1.0, 2.0]))
    assert_op_is_sound("update_priorities_", ranked.update_args([3, 5], [1.0, 2.0], [0, 1], rebuild=True))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    ranked = Ranked(storage(20))
    for name, value, message in [
        ("tree", ranked.tree[:-1], "tree must have"),
        ("seen", ranked.seen[:-1], "seen must have 20 element"),
        ("state", ranked.state[:-1], "state must have 8 element"),
    ]:
        broken = Ranked(storage(20))
        setattr(broken, name, value)
        with pytest.raises(RuntimeError, match=message):
            broken.update()
    with pytest.raises(RuntimeError, match="priorities must have 2 element"):
        ranked.update([1, 2], [1.0])
    with pytest.raises(RuntimeError, match="generations must have none or 2 element"):
        ranked.update([1, 2], [1.0, 2.0], [1])


@needs_kernel
def test_many_rows_equal_the_twin():
    chance = random.Random(0)
    records = storage(4_000)
    ranked = Ranked(records, 0.6, 1e-8)
    for num in (4_000, 1_000, 30, 0):
        append(records, num)
        slots = torch.tensor([chance.randrange(4_000) for _ in range(num)], dtype=torch.int64)
        args = ranked.update_args(slots, torch.rand(num, dtype=torch.float64) * 4)
        assert_like_twin("update_priorities_", args)
        op("update_priorities_")(*args)
        assert_like_twin("draw_priorities", ranked.draw_args(num, 1000))
