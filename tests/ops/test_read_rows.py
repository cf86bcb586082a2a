import random
import threading

import pytest
import torch

from tests.ops.cases import (
    as_bytes,
    assert_like_twin,
    assert_op_is_sound,
    chances,
    lay_out,
    needs_kernel,
    op,
    random_records,
)
from tests.ops.test_write_rows import LEAVES, random_slots, write


def read(records, slots, chosen=None):
    chosen = list(range(len(records.leaves))) if chosen is None else chosen
    templates = [records.templates[i] for i in chosen]
    return op("read_rows")(records.tables, records.part(chosen), templates, slots)


@needs_kernel
@pytest.mark.parametrize("block", range(8))
def test_kernel_equals_twin(block):
    for chance in chances(block):
        records = random_records(chance)
        chosen = [i for i in range(len(records.leaves)) if chance.random() < 0.7]
        slots = random_slots(chance, records.capacity)
        templates = [records.templates[i] for i in chosen]
        assert_like_twin("read_rows", (records.tables, records.part(chosen), templates, slots))


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_what_was_written_is_read(kind):
    chance = random.Random(0)
    records = lay_out(LEAVES, 6, kind)
    values = records.batch(chance, 4)
    generations = write(records, torch.tensor([5, 0, 3, 1]), values, True)
    leaves, read_generations = read(records, torch.tensor([3, 5, 5]))
    assert as_bytes(leaves) == as_bytes([leaf[[2, 0, 0]] for leaf in values])
    assert read_generations.tolist() == generations[[2, 0, 0]].tolist()
    assert all(leaf.is_contiguous() and leaf.dtype == dtype for leaf, (dtype, _) in zip(leaves, LEAVES, strict=True))


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_no_record_reads_as_zeros_of_generation_minus_one(kind):
    records = lay_out(LEAVES, 6, kind)
    for table in records.tables[0 if kind == "packed" else 1 :]:
        table[:, 16 if kind == "packed" else 0 :] = 1  # left-overs that must not show
    write(records, torch.tensor([2]), records.batch(random.Random(0), 1), True)
    leaves, generations = read(records, torch.tensor([0, -1, 6, 2, -(2**63), 2**63 - 1]))
    assert generations.tolist() == [-1, -1, -1, 0, -1, -1]
    for leaf in leaves:
        assert not leaf[[0, 1, 2, 4, 5]].any()


def test_a_retired_record_is_still_read_under_its_new_generation():
    records = lay_out(LEAVES, 3, "packed")
    values = records.batch(random.Random(0), 3)
    write(records, torch.arange(3), values, True)
    op("clear_rows_")(records.tables, records.control, records.journal, True)
    leaves, generations = read(records, torch.arange(3))
    assert generations.tolist() == [1, 1, 1]
    assert as_bytes(leaves) == as_bytes(values)


@needs_kernel
def test_a_batch_large_enough_for_threads_equals_the_twin():
    records = lay_out([(torch.float32, (700,)), (torch.int64, ())], 500, "packed")
    write(records, torch.arange(450), [torch.randn(450, 700), torch.arange(450)], True)
    slots = torch.randint(-5, 505, (900,))
    assert_like_twin("read_rows", (records.tables, records.layout, records.templates, slots))


@needs_kernel
@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_rows_read_under_writers_are_whole(kind):
    """Writers of whole records, of parts, and conditional ones: a row read carries one number in all its fields."""
    leaves = [(torch.int64, (4000,)), (torch.int64, ()), (torch.int64, (1000,))]
    records = lay_out(leaves, 4, kind)
    slots = torch.arange(4)

    def filled(number):
        return [torch.full((4, *shape), number) for _, shape in leaves]

    write(records, slots, filled(0), True)
    stop, problems = threading.Event(), []

    def guard(work):
        def run():
            number = 0
            try:
                while not stop.is_set():
                    number += 1
                    work(number)
            except Exception as problem:  # shown by the test, not lost in a thread
                problems.append(problem)

        return threading.Thread(target=run)

    def renew(number):
        write(records, slots, filled(number), True)

    def patch(number):
        write(records, slots, filled(-number), False)

    def update(number):
        handles = records.generations.clone()
        status = op("update_rows_if_")(
            records.tables, records.control, records.journal, records.layout, slots, handles,
            filled(10**9 + number), [], None, False,
        )  # fmt: skip
        assert status.shape == (4,)

    threads = [guard(work) for work in (renew, patch, update)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            (wide, single, other), generations = read(records, torch.cat([slots, slots]))
            assert bool((wide == single[:, None]).all())
            assert bool((other == single[:, None]).all())
            assert bool((generations >= 0).all())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems


def test_opcheck_and_compile():
    records = lay_out(LEAVES, 5, "packed")
    write(records, torch.arange(3), [torch.ones(3, *shape, dtype=dtype) for dtype, shape in LEAVES], True)
    for slots in ([], [1, 4, 1, 7]):
        slots = torch.tensor(slots, dtype=torch.int64)
        assert_op_is_sound("read_rows", (records.tables, records.layout, records.templates, slots))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    records = lay_out(LEAVES, 4, "packed")
    with pytest.raises(RuntimeError, match="slots must be contiguous"):
        read(records, torch.arange(4)[::2])
    with pytest.raises(RuntimeError, match=r"templates\[0\] must be 2 rows of 8 bytes, got 8"):
        op("read_rows")(records.tables, records.part([0]), [torch.empty(0, dtype=torch.int32)], torch.arange(2))
    with pytest.raises(RuntimeError, match="headers must be aligned"):
        op("read_rows")([torch.zeros(4, 17, dtype=torch.uint8)], [], [], torch.arange(2))
    with pytest.raises(RuntimeError, match="layout names table 3 of 1"):
        op("read_rows")(records.tables, [3, 0, 8], [torch.empty(0, dtype=torch.int64)], torch.arange(2))
