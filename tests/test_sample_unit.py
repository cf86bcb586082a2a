"""Sequences around anchors: as a walk along the trajectory of the anchor gives them."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SampleUnit,
    Sequence,
    SliceSampler,
    TensorDictReplayBuffer,
    Transition,
)
from torchrb.sample_unit import checked_unit


def filled(unit, num=10, done=(3,), more=0, kind=TensorDictReplayBuffer, sampler=None):
    rb = kind(
        storage=LazyTensorStorage(10), sampler=sampler or SamplerWithoutReplacement(shuffle=False), sample_unit=unit
    )
    n = torch.arange(num + more)
    data = TensorDict(
        {"obs": n, "id": (n > 3).long(), "next": {"done": torch.tensor([[i in done] for i in n])}}, [len(n)]
    )
    rb.extend(data[:num])
    if more:
        rb.extend(data[num:])
    return rb


def walked(unit, ends, oldest, newest, anchor):
    """The records of a sequence, and which are valid, by a walk."""
    first = max([oldest, *(end + 1 for end in ends if end < anchor)])
    last = min([newest, *(end for end in ends if end >= anchor)])
    if unit.episode_boundary == "include_reset":
        first, last = oldest, newest
    if unit.episode_boundary == "stop":
        anchor = max(first, min(anchor, last - (unit.length - 1 + unit.bootstrap) * unit.dilation))
    wanted = [
        anchor + (step - unit.burn_in) * unit.dilation for step in range(unit.burn_in + unit.length + unit.bootstrap)
    ]
    return [min(max(w, first), last) for w in wanted], [first <= w <= last for w in wanted]


@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
@pytest.mark.parametrize("more", [0, 4])
def test_sequences_are_what_a_walk_gives(boundary, more):
    for length, burn_in, bootstrap, dilation in itertools.product((1, 3), (0, 2), (0, 1), (1, 2)):
        unit = Sequence(length, boundary, burn_in=burn_in, bootstrap=bootstrap, dilation=dilation)
        batch = filled(unit, more=more, done=(3, 6, 7, 11)).sample(10)
        size = burn_in + length + bootstrap
        assert batch.batch_size == (10 * size,) and batch["index"].tolist() == [n % 10 for n in batch["obs"].tolist()]
        oldest = more
        for row, anchor in enumerate(batch["anchor_index"].view(10, size)[:, 0].tolist()):
            when = anchor + 10 if anchor < more else anchor
            records, valid = walked(unit, (3, 6, 7, 11), oldest, 9 + more, when)
            part = batch[row * size : (row + 1) * size]
            assert part["obs"].tolist() == records and part["validity_mask"].tolist() == valid
            assert part["step_in_sequence"].tolist() == list(range(size))
            assert set(part["sequence_id"].tolist()) == {row} and set(part["anchor_index"].tolist()) == {anchor}
            assert part["learning_mask"].tolist() == [burn_in <= step < burn_in + length for step in range(size)]


def test_trajectories_may_be_told_by_ids_or_not_at_all():
    ids = filled(Sequence(3, traj_key="id"), done=()).sample(10)["obs"].view(10, 3)
    assert ids[3].tolist() == [3, 3, 3] and ids[4].tolist() == [4, 5, 6]
    whole = filled(Sequence(3, done_key=None)).sample(10)["obs"].view(10, 3)
    assert whole[3].tolist() == [3, 4, 5]


def test_sequences_see_what_was_written_since():
    rb = filled(Sequence(3))
    rb.sample(5)
    rb.set_at_(("next", "done"), torch.tensor([[True]]), [5])
    rb.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert rb.sample(10)["obs"].view(10, 3)[4:6].tolist() == [[4, 5, 5], [5, 5, 5]]


def test_what_the_sampler_tells_of_an_anchor_goes_to_each_record():
    index = torch.tensor([4, 0])
    storage = filled(None).storage
    _, told = Sequence(2).expand(index, {"weight": torch.tensor([0.5, 2.0]), "total": 7}, storage)
    assert told["weight"].tolist() == [0.5, 0.5, 2.0, 2.0] and told["total"] == 7


def test_priorities_weigh_each_record_of_a_sequence():
    rb = filled(Sequence(2), sampler=PrioritizedSampler(10, alpha=1.0, beta=1.0))
    rb.update_priority(torch.arange(10), torch.arange(1.0, 11.0))
    batch, info = rb.sample(4, return_info=True)
    weight = batch["priority_weight"].view(4, 2)
    assert torch.equal(weight[:, 0], weight[:, 1]) and torch.equal(info["priority_weight"], batch["priority_weight"])
    anchors = batch["anchor_index"].view(4, 2)[:, 0]
    torch.testing.assert_close(weight[:, 0] * (anchors + 1), (weight[:, 0] * (anchors + 1))[:1].expand(4))


def test_sequences_are_drawn_ahead():
    def history(prefetch):
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(10), sample_unit=Sequence(3, burn_in=1), batch_size=4, prefetch=prefetch,
            generator=torch.Generator().manual_seed(7),
        )  # fmt: skip
        done = torch.tensor([[i in (3, 6)] for i in range(8)])
        rb.extend(TensorDict({"obs": torch.arange(8), "next": {"done": done}}, [8]))
        told = [rb.sample(return_info=True) for _ in range(6)]
        rb.shutdown()
        return [(batch["obs"].tolist(), info["validity_mask"].tolist()) for batch, info in told]

    assert history(3) == history(None)


class Twice(SampleUnit):
    def expand(self, index, info, storage):
        self.saw = (index.shape, dict(info), storage)
        return torch.stack([index, index], -1), info | {"row": torch.arange(len(index)), "note": "twice"}


def test_a_unit_of_one_s_own():
    unit = Twice()
    rb = filled(unit)
    batch, info = rb.sample(3, return_info=True)
    assert batch["obs"].tolist() == [[0, 0], [1, 1], [2, 2]] and unit.saw == ((3,), {}, rb.storage)
    assert info["row"].tolist() == [0, 1, 2] and info["note"] == "twice" and "row" not in batch.keys()
    assert torch.equal(batch["index"], info["index"])
    with pytest.raises(TypeError, match="abstract"):
        SampleUnit()


def test_slices_keep_their_marks_only_where_their_records_are_the_batch():
    for unit, there in ((Transition(), True), (Sequence(2), False)):
        batch = filled(unit, sampler=SliceSampler(slice_len=2)).sample(4)
        assert (("next", "truncated") in batch.keys(True)) is there


def test_a_transition_is_what_there_is_without_a_unit():
    assert checked_unit(Transition(), "here") is None and checked_unit(None, "here") is None
    batches = []
    for unit in (None, Transition()):
        rb = filled(unit, sampler=RandomSampler())
        rb.generator = torch.Generator().manual_seed(0)
        batches.append(rb.sample(5))
    assert (batches[0] == batches[1]).all()


@pytest.mark.parametrize("wrong", [3, Transition, "Sequence"])
def test_what_is_no_unit_is_refused(wrong):
    with pytest.raises(TypeError, match="ReplayBuffer: sample_unit must be a SampleUnit, got .*Pass an instance"):
        ReplayBuffer(sample_unit=wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"length": 0}, "length must be an int from 1, got 0"),
        ({"length": 2, "burn_in": -1}, "burn_in must be an int from 0, got -1"),
        ({"length": 2, "bootstrap": True}, "bootstrap must be an int from 0, got True"),
        ({"length": 2, "dilation": 0}, "dilation must be an int from 1, got 0"),
        ({"length": 2, "episode_boundary": "cut"}, "episode_boundary must be one of .*got 'cut'"),
    ],
)
def test_sequences_that_make_no_sense_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Sequence(**options)


def test_a_field_that_is_not_stored_is_named():
    with pytest.raises(KeyError, match="Sequence: no field 'over' is stored"):
        filled(Sequence(2, done_key="over")).sample(2)


def test_a_unit_goes_to_other_processes():
    rb = filled(Sequence(2, "stop", burn_in=1))
    rb.sample(2)
    twin = pickle.loads(pickle.dumps(rb._sample_unit))
    assert repr(twin) == repr(rb._sample_unit) and twin._index is None
