"""What ranking a storage's records costs, and what an exception from outside leaves of it."""

from __future__ import annotations

import random

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, TensorDictReplayBuffer
from torchrb.writers.ranking import REDUCTIONS, Ranking, worths


def filled(capacity, scores):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity))
    rb.extend(TensorDict({"r": torch.tensor(scores)}, [len(scores)]))
    return rb


def ranking_of(rb):
    ranking = Ranking(rb.storage, "r", "sum")
    ranking.catch_up("extend")
    return ranking


@pytest.mark.parametrize("stored", [100, 10_000])
def test_catching_up_looks_at_what_was_written_and_at_nothing_else(stored):
    rb = filled(stored, [float(n) for n in range(stored)])
    ranking = ranking_of(rb)
    assert ranking.rows_visited == stored
    for turn in range(5):
        rb.set_at_("r", torch.full((7,), float(turn)), torch.arange(7))
        ranking.catch_up("extend")
    assert ranking.rows_visited == stored + 35
    ranking.catch_up("extend")
    assert ranking.rows_visited == stored + 35


def test_entries_of_the_past_do_not_pile_up():
    rb = filled(20, [float(n) for n in range(20)])
    ranking = ranking_of(rb)
    for turn in range(200):
        rb.set_at_("r", torch.rand(5), torch.arange(5))
        ranking.catch_up("extend")
        assert len(ranking._heap) <= 2 * 20 + 64 + 5, turn


def test_choosing_changes_nothing_until_it_is_written():
    rb = filled(3, [1.0, 5.0, 3.0])
    ranking = ranking_of(rb)
    coming = worths(torch.tensor([2.0, 4.0, 0.0]), "r", "sum", "extend")
    first, again = ranking.place(coming), ranking.place(coming)
    assert first.slots.tolist() == again.slots.tolist() == [-1, 0, -1]
    assert first.write_count == again.write_count == 5


def test_a_choice_that_is_cut_off_is_made_anew(monkeypatch):
    rb = filled(3, [1.0, 5.0, 3.0])
    ranking = ranking_of(rb)

    class Cut(BaseException):
        pass

    class Struck(tuple):
        def __le__(self, other):
            raise Cut

    coming = worths(torch.tensor([2.0, 4.0]), "r", "sum", "extend")
    with pytest.raises(Cut):
        ranking.place([*coming, Struck((True, 1.0))])
    ranking.catch_up("extend")
    assert ranking.place(coming).slots.tolist() == [-1, 0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_are_those_of_exact_arithmetic(reduction):
    chance = random.Random(0)
    rows = [[chance.randrange(-9, 9) for _ in range(4)] for _ in range(50)]
    told = [worth for _, worth in worths(torch.tensor(rows), "r", reduction, "extend")]
    by_torch = {
        "sum": lambda x: x.sum(1),
        "mean": lambda x: x.double().mean(1),
        "max": lambda x: x.amax(1),
        "min": lambda x: x.amin(1),
        "median": lambda x: x.median(1).values,
    }[reduction](torch.tensor(rows))
    assert [float(worth) for worth in told] == by_torch.tolist()
    assert told == [worth for _, worth in worths(torch.tensor(rows).view(50, 2, 2), "r", reduction, "extend")]
