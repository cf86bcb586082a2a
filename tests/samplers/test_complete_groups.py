"""Groups that are skipped until they are complete: by number, pair, text and ragged key, in every history."""

from __future__ import annotations

import collections
import math
import pickle
import random

import pytest
import torch
from tensordict import TensorDict

from tests.cases import buffer
from torchrb import LazyStackStorage, LazyTensorStorage, PromptGroupSampler, TensorDictReplayBuffer
from torchrb.samplers.complete_groups import CompleteGroups

KEYS = {
    "int64": lambda g: g - 2,
    "int32 pairs": lambda g: torch.stack([g % 2, g // 2], 1).to(torch.int32),
    "bool": lambda g: g % 2 == 0,
    "float16": lambda g: torch.where(g == 2, -0.0, g.double() - 2).to(torch.float16),
    "text": lambda g: [f"é {number}" if number else None for number in g.tolist()],
}


def rows(groups, key="int64", first=0):
    g = torch.tensor(groups, dtype=torch.int64)
    n = torch.arange(first, first + len(groups))
    return TensorDict({"k": KEYS[key](g), "r": n.double(), "n": n, "g": g}, [len(groups)])


def skipping(kind="packed", capacity=8, k=2, **kwargs):
    sampler = PromptGroupSampler(samples_per_group=k, group_key="k", incomplete="skip", **kwargs)
    return buffer(kind, capacity, sampler=sampler)


def identity(key, group):
    return group % 2 if key == "bool" else group


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # too few groups are repeated
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
def test_only_complete_groups_are_drawn_and_all_of_them_can_be(kind, key):
    chance, rb, first = random.Random(0), skipping(kind, 12, 3), 0
    other = TensorDictReplayBuffer(storage=rb.storage)
    for turn in range(60):
        what = chance.randrange(8)
        if what < 5 or not len(rb):
            groups = [chance.randrange(6) for _ in range(chance.choice([1, 2, 5]))]
            chance.choice([rb, other]).extend(rows(groups, key, first))
            first += len(groups)
        elif what == 5:
            slot, number = chance.randrange(len(rb)), chance.randrange(6)
            rb[slot] = rows([number], key, first)[0]
            first += 1
        elif what == 6 and key != "text":
            moved = rows([chance.randrange(6)], key)
            slot = chance.randrange(len(rb))
            rb.set_at_("k", moved["k"], [slot])
            rb.set_at_("g", moved["g"], [slot])
        elif what == 7 and chance.random() < 0.2:
            rb.empty()
            continue
        groups = [identity(key, int(row["g"])) for row in rb[:].unbind(0)]
        complete = {group for group, size in collections.Counter(groups).items() if size >= 3}
        assert rb.stats()["num_groups"] == len(complete), turn
        if not complete:
            with pytest.raises(RuntimeError, match="no group has the 3 records"):
                rb.sample(6)
            continue
        _, info = rb.sample(3 * len(complete), return_info=True)
        drawn = [groups[slot] for slot in info["index"].tolist()]
        assert len(set(info["index"].tolist())) == 3 * len(complete)
        assert {*drawn} == complete and drawn == sorted(drawn, key=drawn.index) and not info["short_group"].any()


def test_a_half_overwritten_group_is_left_out_until_it_is_whole_again():
    rb = skipping(k=4)
    rb.extend(rows([0] * 4 + [1] * 4))
    rb.extend(rows([2, 2]))  # over half of group 0
    for _ in range(10):
        assert set(rb.sample(4)["g"].tolist()) == {1}
    rb.extend(rows([2, 2], first=20))
    assert {int(rb.sample(4)["g"][0]) for _ in range(40)} == {1, 2}


def test_how_many_make_a_group_complete_may_follow_from_the_batch():
    rb = buffer(sampler=PromptGroupSampler(num_groups=1, group_key="k", incomplete="skip"))
    rb.extend(rows([0, 1, 1, 2, 2, 2]))
    assert set(rb.sample(3)["g"].tolist()) == {2} and rb.stats()["num_groups"] == 1
    assert {int(rb.sample(2)["g"][0]) for _ in range(40)} == {1, 2} and rb.stats()["num_groups"] == 2
    assert len({int(rb.sample(1)["g"][0]) for _ in range(60)}) == 3


def test_a_warning_tells_of_too_few_complete_groups_and_none_of_short_ones():
    rb = skipping(k=2)
    rb.extend(rows([0, 0, 1]))
    with pytest.warns(UserWarning, match="fewer groups are stored"):
        assert set(rb.sample(4)["g"].tolist()) == {0}


def test_a_key_that_is_nan_is_refused_and_no_group():
    rb = skipping()
    keys = torch.tensor([1.0, 1.0, math.nan])
    rb.extend(TensorDict({"k": keys, "g": torch.arange(3)}, [3]))
    for _ in range(2):
        with pytest.raises(ValueError, match="NaN in the record at index 2"):
            rb.sample(2)
    rb.set_at_("k", torch.tensor([2.0]), [2])
    assert sorted(rb.sample(2)["g"].tolist()) == [0, 1]


def test_ragged_keys_group_by_the_tuple():
    rb = TensorDictReplayBuffer(
        storage=LazyStackStorage(8), sampler=PromptGroupSampler(samples_per_group=2, group_key="k", incomplete="skip")
    )
    rb.extend([TensorDict({"k": torch.arange(n), "n": torch.tensor(n)}) for n in (2, 3, 3, 4)])
    assert [int(row["n"]) for row in rb.sample(2).unbind(0)] == [3, 3]


def test_with_records_that_are_used_up_a_group_is_complete_by_what_is_left():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10),
        sampler=PromptGroupSampler(samples_per_group=2, group_key="k", incomplete="skip"),
        consume_after_n_samples=1,
    )
    rb.extend(rows([0] * 5 + [1] * 2))
    drawn = [rb.sample(2)["g"].tolist() for _ in range(3)]
    assert sorted(drawn) == [[0, 0], [0, 0], [1, 1]] and len(rb) == 1
    with pytest.raises(RuntimeError, match="no group has the 2 records of a draw; the largest has 1"):
        rb.sample(2)


def test_catching_up_looks_at_what_was_written():
    rb = buffer(capacity=5000)
    rb.extend(rows([n // 4 for n in range(5000)]))
    complete = CompleteGroups(rb.storage, "k", 4)
    complete.catch_up()
    assert (complete.rows_visited, complete.num_complete, complete.largest) == (5000, 1250, 4)
    rb.extend(rows([9000, 9000, 9000]))
    complete.catch_up()
    complete.catch_up()
    assert (complete.rows_visited, complete.num_complete) == (5003, 1249)
    complete.catch_up(always=True)
    assert complete.rows_visited == 10_003


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="incomplete must be 'repeat' or 'skip', got 'drop'"):
        PromptGroupSampler(num_groups=1, incomplete="drop")
    rb = skipping()
    rb.extend(rows([0, 0]))
    rb.sample(2)
    assert pickle.loads(pickle.dumps(rb.sampler)).incomplete == "skip"
    rb.set_sampler(PromptGroupSampler(samples_per_group=2, group_key="absent", incomplete="skip"))
    with pytest.raises(KeyError, match="absent"):
        rb.sample(2)
    assert rb.stats()["size"] == 2
