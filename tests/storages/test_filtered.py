"""What samplers are given instead of a storage: its columns behind other headers, and a journal that tells of both."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import STORAGES, buffer
from torchrb import ops
from torchrb.consumption import Claim, Consumption
from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import SLOT_LIVE
from torchrb.samplers import RandomSampler


def made(kind="packed", capacity=6, num=4):
    rb = buffer(kind, capacity)
    rb.extend(TensorDict({"n": torch.arange(num), "r": torch.arange(num) / 2}, [num]))
    return rb, Consumption(rb.storage, 1)


def draw(consumption, num):
    return consumption.draw(RandomSampler(), num, torch.Generator().manual_seed(0), Claim(consumption))[0].tolist()


def live(storage):
    return [slot for slot, word in enumerate(words_of(storage.tables).tolist()) if word & SLOT_LIVE]


@pytest.mark.parametrize("kind", STORAGES)
def test_spent_records_are_not_live_and_the_journal_says_so(kind):
    rb, consumption = made(kind)
    view, reader = consumption.drawn_from, JournalReader()
    reader.catch_up(view.control, view.journal)
    slots = draw(consumption, 3)
    assert reader.catch_up(view.control, view.journal).tolist() == sorted(slots)
    assert live(view) == sorted({*range(4)} - {*slots}) and live(rb.storage) == [*range(4)]
    rb[slots[0]] = rb[slots[0]]
    assert slots[0] in live(consumption.drawn_from)
    assert reader.catch_up(view.control, view.journal).tolist() == [slots[0]]
    assert len(view) == 4 and view.num_drawable == 2 and view.drawable().tolist() == live(view)
    assert view.max_size == rb.storage.max_size and view.num_clears == 0


def test_columns_are_read_behind_the_headers():
    rb, consumption = made()
    draw(consumption, 2)
    view = consumption.drawn_from
    for tables, leaf, template in (view.key_column("n"), view.reward_column("r")):
        values, _ = ops.read_rows(tables, leaf, [template], torch.arange(4))
        assert values[0].tolist() in ([0, 1, 2, 3], [0.0, 0.5, 1.0, 1.5])
        assert tables[0] is view.headers
    assert torch.equal(view.generations(torch.arange(4)), rb.storage.generations(torch.arange(4)))


def test_a_change_of_more_than_the_journal_holds_makes_readers_start_anew():
    rb, consumption = made(capacity=100, num=100)
    view, reader = consumption.drawn_from, JournalReader()
    reader.catch_up(view.control, view.journal)
    draw(consumption, 100)
    rb.set_("n", torch.arange(100))
    consumption.catch_up()
    assert reader.catch_up(view.control, view.journal) is None
