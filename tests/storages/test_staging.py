"""What was noted is done exactly where the op wrote, once and in one piece for whoever looks."""

from __future__ import annotations

import gc

import pytest

from torchrb.storages.staging import Staging, placing


class Ledger:
    """A column of objects and a journal's position, which an op moves."""

    def __init__(self) -> None:
        self.position, self.column = 0, [None] * 4
        self.staging = Staging(lambda: self.position)

    def put(self, slots, values):
        return placing([self.column], slots, [values])


def test_among_equal_slots_the_last_value_stays():
    ledger = Ledger()
    assert ledger.put([2, 0, 2], ["a", "b", "c"])() == [None, None, "a"]
    assert ledger.column == ["b", None, "c", None]


@pytest.mark.parametrize("wrote", [True, False])
def test_a_write_that_is_cut_off_is_done_where_its_op_wrote_and_dropped_where_not(wrote):
    ledger = Ledger()
    with pytest.raises(KeyboardInterrupt), ledger.staging as staging:
        staging.note(ledger.put([1], ["new"]))
        ledger.position += 3 if wrote else 0
        raise KeyboardInterrupt
    assert ledger.column == [None, "new" if wrote else None, None, None]
    ledger.position += 1
    ledger.staging.settle()
    assert ledger.column[1] == ("new" if wrote else None)


def test_what_the_op_told_counts_before_what_was_expected():
    ledger = Ledger()
    with ledger.staging as staging:
        staging.note(ledger.put([1], ["guess"]))
        ledger.position += 1
        staging.written(ledger.put([3], ["told"]))
    assert ledger.column == [None, None, None, "told"]


def test_a_finish_that_is_cut_off_is_done_by_whoever_looks_next():
    ledger, calls = Ledger(), []

    def finish():
        calls.append(1)
        if len(calls) < 3:
            raise KeyboardInterrupt
        return ledger.put([0], ["late"])()

    with pytest.raises(KeyboardInterrupt), ledger.staging as staging:
        staging.written(finish)
    with pytest.raises(KeyboardInterrupt):
        ledger.staging.settle()
    ledger.staging.settle()
    ledger.staging.settle()
    assert ledger.column[0] == "late" and len(calls) == 3


def test_what_is_replaced_is_let_go_of_when_all_is_in_place():
    ledger, seen = Ledger(), []

    class Dropped:
        def __del__(self):
            ledger.staging.settle()
            seen.append(list(ledger.column))

    ledger.column[0] = Dropped()
    with ledger.staging as staging:
        staging.written(ledger.put([0, 1], ["a", "b"]))
    gc.collect()
    assert seen == [["a", "b", None, None]]
