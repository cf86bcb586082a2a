"""Writes that end differently than in torchrl, on purpose: both behaviours, and the law (or page) that asks for it."""

from __future__ import annotations

import pytest
import torch

from tests.parity.peer import OURS, both, buffer, outcome, rows


def test_law_3_writing_a_whole_record_makes_old_handles_stale():
    """`rb[i] =` and `write_all` put another record into the slot: the generation steps. torchrl leaves it."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1, 2))
        rb[0] = rows(9)[0]
        rb.write_all(rows(7, 8))
        return rb.writer.generations_of(torch.arange(3)).tolist()

    assert both(history) == ([0, 0, 0], [2, 1, 0])


def test_law_3_handles_of_a_batch_that_wraps_over_itself():
    """The rows that were lost inside one `extend` are stale from the start. Asked for afterwards, as they must be in
    torchrl, the generations make all handles look live."""

    def history(lib):
        rb = buffer(lib)
        index, generation = (
            rb.extend(rows(*range(6)), return_generations=True) if lib is OURS else
            (index := rb.extend(rows(*range(6))), rb.writer.generations_of(index))
        )  # fmt: skip
        result = rb.update_if_present(index=index, generation=generation, patch={"v": torch.arange(6) + 1})
        return result.updated.tolist(), rb[:]["v"].tolist()

    assert both(history) == (([True] * 6, [5, 6, 3, 4]), ([False, False, True, True, True, True], [5, 6, 3, 4]))


def test_law_3_emptied_slots_are_retired_once():
    """A second `empty` has no record to retire. torchrl steps the generations again; handles are stale in both."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        rb.empty(), rb.empty()
        return rb.writer.generations_of(torch.arange(4)).tolist()

    assert both(history) == ([2, 2, -1, -1], [1, 1, -1, -1])


BROKEN = {
    "dtype": lambda td: td.set("x", td["x"].float()),
    "shape": lambda td: td.set("wide", torch.zeros(2, 5)),
    "missing": lambda td: td.exclude("v"),
    "extra": lambda td: td.set("more", torch.ones(2)),
}


@pytest.mark.parametrize("how", BROKEN)
def test_law_1_a_batch_that_does_not_fit_changes_nothing(how):
    """torchrl moves cursor, length and count before it fails, or accepts the batch and invents the rest of its rows."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        error = outcome(lambda: rb.extend(BROKEN[how](rows(2, 3))))
        return isinstance(error, type), len(rb), rb.write_count, rb.extend(rows(9)).tolist()

    theirs, ours = both(history)
    assert theirs == (how in ("dtype", "shape"), 4, 4, [0])
    assert ours == (True, 2, 2, [2])


def test_law_1_a_slot_past_the_end_leaves_the_other_slots_alone():
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1, 2, 3))
        error = outcome(lambda: rb.writer.write_at(torch.tensor([0, 9]), rows(50, 51)))
        return error, rb[:]["x"].tolist()

    assert both(history) == ((IndexError, [50, 1, 2, 3]), (IndexError, [0, 1, 2, 3]))


def test_law_2_no_row_that_was_never_written_counts_as_stored():
    """Writing at a slot past what is stored would make the slots before it records. torchrl does that."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        return outcome(lambda: rb.writer.write_at(torch.tensor([3]), rows(9)).tolist()), len(rb)

    assert both(history) == (([3], 4), (IndexError, 2))


def test_law_1_writing_more_records_than_are_stored_is_an_error():
    """torchrl drops the rest in silence."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        return outcome(lambda: rb.write_all(rows(5, 6, 7))), rb[:]["x"].tolist()

    assert both(history) == ((None, [5, 6]), (ValueError, [0, 1]))


def test_law_6_values_are_not_rounded_into_another_type():
    """torchrl casts what `set_` is given: 0.5 becomes 0."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        return outcome(lambda: rb.set_("x", torch.tensor([0.5, 1.5])) is rb), rb[:]["x"].tolist()

    assert both(history) == ((True, [0, 1]), (ValueError, [0, 1]))


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyStackStorage"])
def test_law_9_what_is_returned_is_the_caller_s_own(storage):
    def history(lib):
        rb = buffer(lib, storage=storage)
        rb.extend(rows(1, 2))
        rb[0]["x"].zero_()
        return rb[:]["x"].tolist()

    assert both(history) == ([0, 2], [1, 2])


def test_law_9_what_is_handed_in_is_copied_into_a_stack():
    def history(lib):
        rb, mine = buffer(lib, storage="LazyStackStorage"), rows(1, 2)
        rb.extend(mine)
        mine["x"].zero_()
        return rb[:]["x"].tolist()

    assert both(history) == ([0, 0], [1, 2])


def test_pages_write_count_counts_add_and_extend():
    """The pages: "written so far in the buffer through add and extend". torchrl also counts `write_at`."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        rb.writer.write_at(torch.tensor([0]), rows(5))
        return rb.write_count

    assert both(history) == (3, 2)


def test_pages_write_all_takes_as_many_records_as_it_is_given():
    """The pages: "end defaults to data.shape[0]". Of a full storage torchrl 0.14.1 tries all and fails."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1, 2, 3))
        return outcome(lambda: rb.write_all(rows(7, 8))), rb[:]["x"].tolist()

    assert both(history) == ((RuntimeError, [0, 1, 2, 3]), (None, [7, 8, 2, 3]))


def test_pages_a_list_of_numbers_comes_back_as_a_tensor():
    """The first example of the page of `ReplayBuffer`; torchrl 0.14.1 does not run it."""

    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.ListStorage(10), batch_size=3)
        rb.extend(range(5))
        return outcome(lambda: type(rb.sample()))

    assert both(history) == (TypeError, torch.Tensor)


def test_index_is_not_a_field_of_the_record():
    """torchrl stores it with each record, where a user's patch can change it. Here it is added to what is read."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1))
        outcome(lambda: rb.set_("index", torch.tensor([7, 7])))
        return rb[:]["index"].tolist()

    assert both(history) == ([7, 7], [0, 1])
