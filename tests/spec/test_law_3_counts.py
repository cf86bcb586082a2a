"""Law 3 where records are used up: a count belongs to a record, not to the slot that holds it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.spec.builders import TENSORDICT_STORAGES, numbered
from tests.spec.histories import History
from torchrb import LazyTensorStorage, TensorDictReplayBuffer


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("kind", TENSORDICT_STORAGES)
def test_a_count_follows_its_record_through_any_history(kind, limit):
    """The history writes in every way there is; what it did to a slot, whole or in part, decides what may be drawn."""
    history, chance = History(kind, capacity=6, seed=limit), random.Random(0)
    rb = TensorDictReplayBuffer(storage=history.rb.storage, consume_after_n_samples=limit)
    times: Counter[int] = Counter()  # by the record itself, which the model keeps as long as it is there
    records: list[object] = []
    for _ in range(120):
        history.step()
        left = [slot for slot in range(history.length) if times[id(history.slots[slot])] < limit]
        assert len(rb) == len(left)
        if not left or chance.random() < 0.4:
            continue
        batch, info = rb.sample(2, return_info=True)
        slots = info["index"].tolist()
        assert {*slots} <= {*left} and batch["n"].tolist() == [history.slots[slot].number for slot in slots]
        for slot in slots:
            records.append(history.slots[slot])  # so that no other is given its id
            times[id(history.slots[slot])] += 1


@pytest.mark.parametrize("way", ["add", "write_at", "set item", "empty"])
def test_whatever_is_written_over_a_used_record_is_new(way):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(1), consume_after_n_samples=1)
    for number in range(3):
        if number == 0 or way == "add":
            rb.add(numbered([number])[0])
        elif way == "write_at":
            rb.writer.write_at(0, numbered([number])[0])
        elif way == "set item":
            rb[0] = numbered([number])[0]
        else:
            rb.empty()
            rb.add(numbered([number])[0])
        assert [int(record["n"]) for record in rb.sample(4).unbind(0)] == [number] and len(rb) == 0
