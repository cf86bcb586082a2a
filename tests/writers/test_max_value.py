"""The writer that keeps the best: against the rule said once more, and in every way in which others write beside it."""

from __future__ import annotations

import math
import pickle
import random

import pytest
import torch
from tensordict import TensorDict

from tests.cases import RECORDS, STORAGES, TENSORDICTS, plain
from torchrb import LazyTensorStorage, ReplayBuffer, TensorDictMaxValueWriter, TensorDictReplayBuffer

each_storage = pytest.mark.parametrize("kind", STORAGES)
NAN, INF = math.nan, math.inf


def rows(scores, dtype=torch.float64, first=0):
    values = torch.tensor(scores, dtype=dtype)
    return TensorDict({"r": values, "n": torch.arange(first, first + len(values))}, [len(values)])


def best(kind="packed", capacity=3, **kwargs):
    kwargs.setdefault("rank_key", "r")
    return TensorDictReplayBuffer(storage=STORAGES[kind](capacity), writer=TensorDictMaxValueWriter(**kwargs))


def scores_of(rb):
    return [rb[slot]["r"].item() for slot in range(len(rb.storage))]


def numbers_of(rb):
    return [int(rb[slot]["n"]) for slot in range(len(rb.storage))]


class Model:
    """The rule: records come one by one, and the earlier one stays."""

    def __init__(self, capacity):
        self.capacity, self.kept, self.count, self.stamp = capacity, [], 0, 0

    def extend(self, scores):
        """Slots of the rows, -1 for those that are not there in the end."""
        came = []
        for score in scores:
            self.stamp += 1
            entry = (score == score, score if score == score else 0, -self.stamp)
            if len(self.kept) < self.capacity:
                slot = len(self.kept)
                self.kept.append(entry)
            else:
                slot = self.kept.index(min(self.kept))
                if entry[:2] <= self.kept[slot][:2]:
                    came.append((None, entry))
                    continue
                self.kept[slot] = entry
            self.count += 1
            came.append((slot, entry))
        return [-1 if slot is None or self.kept[slot] != entry else slot for slot, entry in came]


VALUES = [NAN, -INF, -1.0, 0.0, -0.0, 1.0, math.nextafter(1.0, 2.0), 2.0**53, 2.0**53 + 2, INF, 0.5]


@each_storage
@pytest.mark.parametrize("seed", range(4))
def test_any_history_leaves_what_the_rule_says_in_batches_or_one_by_one(kind, seed):
    chance, capacity = random.Random(seed), random.Random(seed).choice([1, 3, 5])
    whole, single, model, first = best(kind, capacity), best(kind, capacity), Model(capacity), 0
    for _ in range(12):
        if chance.random() < 0.1:
            for rb in (whole, single):
                rb.empty()
            model = Model(capacity)
        scores = [chance.choice(VALUES) for _ in range(chance.choice([0, 1, 2, capacity, 3 * capacity]))]
        batch = rows(scores, first=first)
        first += len(scores)
        slots = whole.extend(batch).tolist() if len(scores) else []
        added = [single.add(row) for row in batch.unbind(0)]
        assert slots == model.extend(scores)
        assert all(slot in (-1, other) for slot, other in zip(slots, added, strict=True))
        assert numbers_of(whole) == numbers_of(single)
        assert len(whole) == len(model.kept) and whole.write_count == single.write_count == model.count
        assert whole.storage.cursor == single.storage.cursor == len(whole) % capacity


@each_storage
def test_ties_go_to_whoever_was_there_first(kind):
    rb = best(kind)
    rb.extend(rows([1.0, 0.0, 1.0, 1.0]))  # 0 makes way for the last
    assert numbers_of(rb) == [0, 3, 2]
    assert rb.add(rows([1.0])[0]) is None and rb.extend(rows([1.0, -0.0])).tolist() == [-1, -1]
    assert rb.extend(rows([2.0], first=7)).tolist() == [1]  # written last of the equal ones
    assert rb.extend(rows([2.0], first=8)).tolist() == [2] and numbers_of(rb) == [0, 7, 8]


@pytest.mark.parametrize("kind", ["packed", "stack"])
@pytest.mark.parametrize(
    "dtype, scores",
    [
        (torch.int64, [2**53, 2**53 + 1, 2**53 + 2, 2**63 - 2, 2**63 - 1]),
        (torch.int64, [-(2**63), -(2**63) + 1]),
        (torch.float64, [1.0, math.nextafter(1.0, 2.0)]),
        (torch.uint8, [0, 127, 128, 255]),
        (torch.bool, [False, True]),
        (torch.bfloat16, [-INF, 1.0, 1.0 + 2**-7]),
    ],
)
def test_values_are_compared_in_their_own_type(kind, dtype, scores):
    rb = best(kind, 1)
    for number, score in enumerate(scores):
        assert rb.add(rows([score], dtype, number)[0]) == 0
    for score in scores:
        assert rb.add(rows([score], dtype)[0]) is None
    assert numbers_of(rb) == [len(scores) - 1]


CELLS = [[1.0, 2.0, 9.0, 0.0], [3.0, 4.0, 4.0, 3.5], [5.0, 0.0, 0.0, 6.0], [0.0, 10.0, -100.0, 0.0]]


@pytest.mark.parametrize("kind", ["packed", "stack"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("reduction, winner", [("sum", 1), ("max", 3), ("min", 1), ("mean", 1), ("median", 1)])
def test_a_field_of_several_numbers_counts_as_its_reduction(kind, dtype, reduction, winner):
    rb = best(kind, 1, reduction=reduction)
    rb.extend(rows(CELLS, dtype).reshape(4))
    assert numbers_of(rb) == [winner]
    nested = TensorDict({"r": torch.tensor(CELLS, dtype=dtype).view(4, 2, 2), "n": torch.arange(4)}, [4])
    rb = best(kind, 1, reduction=reduction)
    rb.extend(nested)
    assert numbers_of(rb) == [winner]


def test_sums_and_means_of_integers_are_exact():
    big = 2**62
    for reduction in ("sum", "mean"):
        rb = best(capacity=1, reduction=reduction)
        assert rb.extend(rows([[big, big], [big, big + 1]], torch.int64)).tolist() == [-1, 0]


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "mean", "median"])
def test_nan_anywhere_in_a_field_is_below_every_number(reduction):
    rb = best(capacity=1, reduction=reduction)
    slots = [rb.extend(rows([cells])).tolist() for cells in ([1.0, NAN], [NAN, NAN], [-INF, -INF], [0.0, NAN])]
    assert slots == [[0], [-1], [0], [-1]]


def test_ragged_records_are_ranked_by_their_own_numbers():
    rb = best("stack", 2, reduction="mean")
    scores = ([1, 2], [1, 1, 3], [9, -9, 2])
    rb.extend([TensorDict({"r": torch.tensor(score), "n": torch.tensor(i)}) for i, score in enumerate(scores)])
    assert numbers_of(rb) == [0, 1]  # means 3/2, 5/3, 2/3


@each_storage
def test_what_others_write_counts_as_it_is_now(kind):
    rb = best(kind, 4)
    other = TensorDictReplayBuffer(storage=rb.storage)
    other.extend(rows([5.0, 1.0, 2.0]))
    assert rb.extend(rows([3.0, 0.0])).tolist() == [3, -1]
    other[0] = rows([-5.0])[0]
    assert rb.extend(rows([0.0])).tolist() == [0]
    if kind != "list":
        rb.set_at_("r", torch.tensor([9.0], dtype=torch.float64), [0])
        assert rb.extend(rows([2.0, 1.5, 1.25])).tolist() == [1, -1, -1]
        rb.set_("r", torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64))
        assert rb.extend(rows([0.0, 0.0])).tolist() == [3, 2]
    other.extend(rows([7.0] * 4))
    assert rb.extend(rows([6.0, 8.0])).tolist()[0] == -1
    rb.empty()
    assert rb.extend(rows([0.0, 1.0])).tolist() == [0, 1] and other.extend(rows([4.0])).tolist() == [2]


def test_a_patch_of_the_rank_field_counts_and_handles_tell_records():
    rb = best(capacity=2, track_generations=True)
    index, generation = rb.extend(rows([1.0, 2.0, 0.0]), return_generations=True)
    assert (index.tolist(), generation.tolist()) == ([0, 1, -1], [0, 0, -1])
    result = rb.update_if_present(
        index=index, generation=generation, patch={"r": torch.tensor([9.0, 8.0, 7.0]).double()}
    )
    assert (result.updated_count, result.stale_count) == (2, 1)
    assert rb.add(rows([5.0])[0]) is None
    index, generation = rb.extend(rows([9.5, 10.0]), return_generations=True)
    assert (index.tolist(), generation.tolist()) == ([1, 0], [1, 1])
    assert rb.writer.generations_of(torch.tensor([0, 1, 5])).tolist() == [1, 1, -1]
    assert set(rb.sample(8)["index_generation"].tolist()) == {1}


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("records", TENSORDICTS)
def test_records_of_every_kind_stay_whole(kind, records):
    if kind == "list" and records == "tensorclass":
        return
    rb, make = best(kind, 3, rank_key="reward" if records == "tensorclass" else "n"), RECORDS[records]
    numbers = [3, 1, 4, 10, 5, 9, 2, 6]
    slots = rb.extend(make(numbers)).tolist()
    key = rb.writer.rank_key
    ranked = sorted(range(8), key=lambda i: make(numbers)[i].get(key).item())[-3:]
    assert sorted(i for i, slot in enumerate(slots) if slot >= 0) == sorted(ranked)
    for i in ranked:
        read = rb[slots[i]]
        assert plain(read if isinstance(read, TensorDict) else read) == plain(make(numbers)[i])


def test_what_cannot_be_ranked_is_refused_and_nothing_has_changed():
    rb = best()
    rb.extend(rows([1.0]))
    before = rb.storage.control.clone(), numbers_of(rb)
    text = TensorDict({"r": ["a"], "n": torch.zeros(1).long()}, [1])
    for data, error, told in [
        (torch.zeros(3), TypeError, "takes tensordicts, got Tensor"),
        (rows([1.0]).exclude("r"), KeyError, "missing ['r']"),
        (rows([1.0], torch.float32), ValueError, "torch.float64"),
    ]:
        with pytest.raises(error) as raised:
            rb.extend(data)
        assert told in str(raised.value)
    for data, error, told in [
        (rows([1.0]).exclude("r"), KeyError, "no field 'r'"),
        (text, TypeError, "holds no tensors"),
        (rows([1.0]).to(torch.complex64), TypeError, "real numbers"),
        (TensorDict({"r": torch.zeros(1, 0)}, [1]), TypeError, "got 0 of"),
    ]:
        fresh = best()
        with pytest.raises(error) as raised:
            fresh.extend(data)
        assert told in str(raised.value) and len(fresh) == 0 and fresh.storage.structure is None
    assert torch.equal(rb.storage.control, before[0]) and numbers_of(rb) == before[1]
    with pytest.raises(ValueError, match="reduction must be one of"):
        TensorDictMaxValueWriter(reduction="first")
    with pytest.raises(TypeError, match="must be tensordicts"):
        ReplayBuffer(storage=STORAGES["list"](2), writer=TensorDictMaxValueWriter()).extend([1, 2])


def test_a_stored_record_without_the_field_is_named_until_it_is_overwritten():
    rb = best("list", 2)
    TensorDictReplayBuffer(storage=rb.storage).extend([TensorDict({"other": torch.tensor(1)})])
    for _ in range(2):
        with pytest.raises(KeyError, match="no field 'r' is stored; stored are \\['other'\\]"):
            rb.extend(rows([1.0]))
    rb[0] = rows([0.5], first=7)[0]
    rb.extend(rows([1.0], first=8))
    assert numbers_of(rb) == [7, 8]


def test_it_travels_without_its_ranking_and_says_what_it_is():
    rb = best()
    rb.extend(rows([1.0, 2.0]))
    assert repr(rb.writer) == ("TensorDictMaxValueWriter(cursor=2, full_storage=False, rank_key='r', reduction='sum')")
    fresh = TensorDictMaxValueWriter(compilable=True)
    assert repr(fresh) == "TensorDictMaxValueWriter(rank_key=('next', 'reward'), reduction='sum')"
    assert pickle.loads(pickle.dumps(fresh)).rank_key == ("next", "reward") and not fresh.tracks_generations


def test_a_shared_storage_is_kept_by_the_best_too():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(rank_key="r"), shared=True
    )
    assert rb.extend(rows([1.0, 3.0, 2.0])).tolist() == [-1, 1, 0] and scores_of(rb) == [2.0, 3.0]
    assert rb.write_count == 3 and rb.add(rows([2.0])[0]) is None
