"""A set of slots against a sorted list of them."""

from __future__ import annotations

import random

import pytest
import torch

from torchrb.consumption.ranks import SlotSet

CPU = torch.device("cpu")


@pytest.mark.parametrize("capacity", [1, 2, 63, 64, 65, 4096, 4097, 300_000])
def test_members_are_found_by_rank_whatever_was_put_in_and_taken_out(capacity):
    chance, slots, members = random.Random(capacity), SlotSet(capacity, CPU), set()
    for _ in range(20):
        some = torch.tensor(chance.sample(range(capacity), min(capacity, chance.choice([1, 3, 100]))))
        inside = torch.tensor([chance.random() < 0.6 for _ in some])
        slots.put(some, inside)
        for slot, member in zip(some.tolist(), inside.tolist(), strict=True):
            members = members | {slot} if member else members - {slot}
        ordered = sorted(members)
        assert len(slots) == len(ordered) and slots.all().tolist() == ordered
        ranks = [chance.randrange(len(ordered)) for _ in range(50)] if ordered else []
        assert slots.at(torch.tensor(ranks, dtype=torch.int64)).tolist() == [ordered[rank] for rank in ranks]


def test_what_was_cut_off_is_mended_by_doing_it_again():
    slots = SlotSet(5000, CPU)
    slots._levels[0].view(-1)[torch.tensor([70, 4999])] = 1  # as far as it came
    slots.put(torch.tensor([70, 4999]), torch.tensor([True, True]))
    assert len(slots) == 2 and slots.at(torch.tensor([1, 0])).tolist() == [4999, 70]


def test_a_set_of_no_slots_is_empty():
    assert len(SlotSet(0, CPU)) == 0 and not SlotSet(0, CPU).all().numel()
