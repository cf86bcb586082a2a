"""The group index is what one finds by looking at all records, after any history, at the cost of what was written."""

from __future__ import annotations

import collections
import math
import random

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, buffer
from torchrb import LazyStackStorage, PromptGroupSampler
from torchrb.groups import GroupIndex

each_storage = pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])
KEYS = {
    "int64": (torch.tensor([2**62, 2**62 + 1, -1, 0, 7]), None),
    "int32": (torch.tensor([-(2**31), 2**31 - 1, 0, 1, 2], dtype=torch.int32), None),
    "uint8": (torch.tensor([0, 255, 128, 127, 1], dtype=torch.uint8), None),
    "bool": (torch.tensor([True, False]), None),
    "float64": (torch.tensor([1.0, 1.0 + 2**-52, math.inf, -math.inf, 0.0], dtype=torch.float64), None),
    "float16": (torch.tensor([0.5, -0.5, 2.0, 3.0], dtype=torch.float16), None),
    "column": (torch.tensor([[0], [1], [2]]), None),
    "pairs": (torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1]]), None),
    "squares": (torch.arange(12).view(3, 2, 2), None),
    "texts": (None, ["a", "é", "", "a b", None]),
}


def row(key, place):
    values, texts = KEYS[key]
    td = TensorDict({"n": torch.tensor(place)})
    if texts is None:
        td["g"] = values[place % len(values)]
    else:
        td.set_non_tensor("g", texts[place % len(texts)])
    return td


def name(record):
    value = record["g"]
    return str(value.tolist()) if isinstance(value, torch.Tensor) else repr(value)


def sizes_found(rb):
    """Groups and their sizes by looking at every record."""
    return collections.Counter(name(rb[i]) for i in range(len(rb)))


def sizes_drawn(rb):
    """Groups and their sizes as a draw of all groups tells them."""
    sampler = PromptGroupSampler(samples_per_group=1, group_key="g")
    groups = len(sizes_found(rb))
    rb.set_sampler(sampler)
    batch, info = rb.sample(groups, return_info=True)
    names = [name(batch[i]) for i in range(groups)]
    assert len(set(names)) == groups
    return collections.Counter(dict(zip(names, info["group_size"].tolist(), strict=True)))


@each_storage
@pytest.mark.parametrize("key", KEYS)
def test_records_are_grouped_by_value(kind, key):
    rb = buffer(kind, 16)
    rb.extend([row(key, place) for place in [0, 1, 2, 3, 0, 1, 0, 9, 8]])
    assert sizes_drawn(rb) == sizes_found(rb)
    counts = sizes_found(rb).values()
    stats = rb.stats()
    assert stats["num_groups"] == len(counts) and stats["num_singleton_groups"] == list(counts).count(1)


@each_storage
@pytest.mark.parametrize("key", ["int64", "pairs", "texts"])
@pytest.mark.parametrize("seed", range(2))
def test_after_any_history_the_groups_are_those_of_the_records(kind, key, seed):
    rng = random.Random(seed)
    rb = buffer(kind, 9)
    rb.add(row(key, 0))
    index = GroupIndex(rb.storage, "g")
    for _ in range(40):
        rows = [row(key, rng.randrange(5)) for _ in range(rng.choice([1, 1, 2, 12]))]
        match rng.randrange(5):
            case 0 | 1:
                rb.extend(rows)
            case 2:
                rb[rng.randrange(len(rb))] = rows[0]
            case 3:
                if key != "texts":
                    rb.set_at_("g", rows[0]["g"], rng.randrange(len(rb)))
            case 4:
                if rng.random() < 0.3:
                    rb.empty()
                rb.add(rows[0])
        if rng.random() < 0.6:
            index.catch_up()
            found = sizes_found(rb)
            assert (index.num_groups, index.num_singletons) == (len(found), list(found.values()).count(1))
    index.catch_up()
    assert sizes_drawn(rb) == sizes_found(rb)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_catching_up_costs_what_was_written(kind):
    visits = []
    for stored in (100, 3000):
        rb = buffer(kind, 4000)
        rb.extend(TensorDict({"g": torch.arange(stored) % 50}, [stored]))
        index = GroupIndex(rb.storage, "g")
        index.catch_up()
        before = index.rows_visited
        for _ in range(5):
            rb.extend(TensorDict({"g": torch.arange(3)}, [3]))
            rb.set_at_("g", torch.tensor([7]), [0])
            index.catch_up(), index.catch_up()
        visits.append(index.rows_visited - before)
    assert visits[0] == visits[1] <= 2 * 5 * 4


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_two_zeros_are_one_group(kind, dtype):
    rb = buffer(kind, 4)
    rb.extend(TensorDict({"g": torch.tensor([0.0, -0.0, 1.0], dtype=dtype)}, [3]))
    index = GroupIndex(rb.storage, "g")
    index.catch_up()
    assert (index.num_groups, index.num_singletons) == (2, 1)


@each_storage
def test_a_nan_key_is_an_error_until_it_is_overwritten(kind):
    rb = buffer(kind, 4, sampler=PromptGroupSampler(num_groups=2, group_key="g"))
    rb.extend(TensorDict({"g": torch.tensor([0.0, math.nan, 1.0])}, [3]))
    for _ in range(2):
        with pytest.raises(ValueError, match="group key 'g' is NaN"):
            rb.sample(2)
    rb.set_at_("g", torch.tensor([1.0]), [1])
    assert sorted(rb.sample(2)["g"].tolist()) == [0.0, 1.0]
    assert rb.stats()["num_groups"] == 2


@each_storage
def test_a_key_that_is_not_stored_is_an_error_and_can_be_mended(kind):
    rb = buffer(kind, 4)
    rb.extend(TensorDict({"g": torch.zeros(2)}, [2]))
    with pytest.raises(KeyError, match="no field 'other' is stored"):
        GroupIndex(rb.storage, "other").catch_up()


def test_a_storage_without_a_bound_keeps_its_groups_as_it_grows():
    rb = buffer(LazyStackStorage(), sampler=PromptGroupSampler(num_groups=2, group_key="g"))
    for stored in (10, 1030, 2200):
        rb.extend([TensorDict({"g": torch.tensor(n % 7)}) for n in range(stored - len(rb))])
        assert sizes_drawn(rb) == sizes_found(rb) and rb.stats()["num_groups"] == 7


def test_without_writes_nothing_is_looked_at():
    rb = buffer()
    rb.extend(TensorDict({"g": torch.arange(6) % 2}, [6]))
    index = GroupIndex(rb.storage, "g")
    index.catch_up()
    visited = index.rows_visited
    index.catch_up(), rb[:], rb.sample(3), index.catch_up()
    assert index.rows_visited == visited
    index.catch_up(always=True)
    assert index.rows_visited > visited and index.num_groups == 2
