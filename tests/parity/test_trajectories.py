"""Slices, queries and sequences are those of torchrl where torchrl is right; where it is not, that is said."""

from __future__ import annotations

import collections
import inspect

import pytest
import torch
import torchrl.data as torchrl_data
from tensordict import TensorDict

import torchrb
from tests.parity.peer import OURS, PEER, both, outcome

NAMES = (
    "SliceSampler", "SliceSamplerWithoutReplacement", "Sequence", "Transition", "Trajectory", "TrajectoryPredicate",
    "traj", "iter_trajectories", "filter_trajectories",
)  # fmt: skip
for _lib, _module in ((PEER, torchrl_data), (OURS, torchrb)):
    for _name in NAMES:
        setattr(_lib, _name, getattr(_module, _name))

# torchrl warns of boundaries by flags, and of what it thinks of itself.
pytestmark = pytest.mark.filterwarnings("ignore")


def steps(ids, first=0, **fields):
    n = torch.arange(first, first + len(ids))
    nested = {"reward": n[:, None].float(), "done": torch.zeros(len(ids), 1, dtype=torch.bool)}
    return TensorDict({"episode": torch.tensor(ids), "obs": n, "next": nested, **fields}, [len(ids)])


def filled(lib, *batches, capacity=10, storage="LazyTensorStorage", **options):
    rb = lib.TensorDictReplayBuffer(storage=getattr(lib, storage)(capacity), **options)
    for batch in batches:
        rb.extend(batch)
    return rb


FIRST, SECOND = steps([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]), steps([2, 2, 3], 10)


def runs(rb, num, size):
    """The slices that are drawn, as a set; torchrl marks the last record of each."""
    found = set()
    for _ in range(num):
        batch = rb.sample(size)
        ends = batch["next", "truncated"].view(-1).nonzero().view(-1).tolist()
        for start, end in zip([-1, *ends[:-1]], ends, strict=True):
            found.add(tuple(batch["obs"][start + 1 : end + 1].tolist()))
    return found


@pytest.mark.parametrize("name", ["SliceSampler", "SliceSamplerWithoutReplacement", "Sequence", "filter_trajectories",
                                  "iter_trajectories", "TrajectoryPredicate"])  # fmt: skip
def test_parameters_are_theirs(name):
    members = (getattr(lib, name) for lib in (PEER, OURS))
    theirs, ours = (
        inspect.signature(member.__init__ if inspect.isclass(member) else member).parameters for member in members
    )
    for parameter in theirs.values():
        assert (ours[parameter.name].kind, ours[parameter.name].default) == (parameter.kind, parameter.default)
    for extra in ours.keys() - theirs.keys():
        assert ours[extra].kind is inspect.Parameter.KEYWORD_ONLY


OPTIONS = [
    {"slice_len": 2}, {"slice_len": 3, "strict_length": False}, {"slice_len": 4, "strict_length": False},
    {"slice_len": 4}, {"slice_len": 3, "span": 1}, {"slice_len": 3, "span": (True, False)},
    {"slice_len": 3, "span": (2, 0)}, {"slice_len": 3, "end_key": ("next", "done")},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batches", [(FIRST,), (FIRST, SECOND)], ids=["a full ring", "a ring that turned"])
def test_slices_that_can_be_drawn_are_the_same(batches, options):
    options = {"traj_key": "episode"} | options if "end_key" not in options else options
    theirs, ours = both(lambda lib: runs(filled(lib, *batches, sampler=lib.SliceSampler(**options)), 60, 12))
    assert ours == theirs


def test_a_pass_has_one_slice_of_each_trajectory_in_both():
    def sizes(lib):
        torch.manual_seed(0)
        sampler = lib.SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")
        rb = filled(lib, FIRST, sampler=sampler)
        told = []
        for _ in range(6):
            batch = rb.sample(4)
            told.append((len(batch), rb.sampler.ran_out))
        return told

    assert sizes(PEER) == sizes(OURS) == [(4, False), (2, True)] * 3


def test_too_short_trajectories_are_no_part_of_a_pass_here():
    """torchrl counts them: the last batch of a pass with drop_last is smaller than asked for."""

    def sizes(lib):
        sampler = lib.SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode", drop_last=True)
        rb = filled(lib, steps([0, 0, 1, 1, 2, 2, 3]), sampler=sampler, batch_size=4)
        return collections.Counter(len(rb.sample()) for _ in range(40))

    theirs, ours = both(sizes)
    assert set(ours) == {4} and set(theirs) == {2, 4}


@pytest.mark.parametrize(
    "options",
    [{}, {"num_slices": 1, "slice_len": 1}, {"num_slices": 1, "end_key": "a", "end_keys": ["a"]},
     {"num_slices": 1, "ends": torch.ones(3), "traj_key": "episode", "cache_values": True}],
    ids=str,
)  # fmt: skip
def test_both_refuse_what_makes_no_sense(options):
    for lib in (PEER, OURS):
        with pytest.raises((TypeError, RuntimeError)):
            lib.SliceSampler(**options)


@pytest.mark.parametrize("size", [7, 12])
def test_both_refuse_a_batch_that_cannot_be_drawn(size):
    """Of a size that does not divide, or of slices that no trajectory has."""
    for lib in (PEER, OURS):
        with pytest.raises((ValueError, RuntimeError)):
            filled(lib, FIRST, sampler=lib.SliceSampler(num_slices=2, traj_key="episode")).sample(size)


def test_marks_are_the_same_where_flags_are_complete():
    flags = {name: torch.tensor([[i in at] for i in range(6)]) for name, at in
             {"done": (2, 5), "terminated": (2,), "truncated": (5,)}.items()}  # fmt: skip
    data = TensorDict({"episode": torch.zeros(6).long(), "next": flags}, [6])

    def marks(lib):
        rb = filled(lib, data, capacity=6, sampler=lib.SliceSampler(slice_len=6, traj_key="episode"))
        batch, info = rb.sample(6, return_info=True)
        told = {key: batch["next", key].tolist() for key in ("done", "terminated", "truncated")}
        assert told == {key: info["next", key].tolist() for key in told}
        return told

    theirs, ours = both(marks)
    assert ours == theirs


def test_a_stored_truncation_within_a_slice_is_kept_here():
    cut = torch.tensor([[i == 1] for i in range(4)])
    data = TensorDict({"episode": torch.zeros(4).long(), "next": {"truncated": cut, "done": cut}}, [4])

    def marks(lib):
        rb = filled(lib, data, capacity=4, sampler=lib.SliceSampler(slice_len=4, traj_key="episode"))
        return rb.sample(4)["next", "truncated"].view(-1).tolist()

    theirs, ours = both(marks)
    assert ours == [False, True, False, True] and theirs == [False, False, False, True]


# --- queries

PREDICATES = {
    "sum": lambda traj: traj.reward.sum() > 20,
    "length": lambda traj: ~(traj.length >= 4),
    "both": lambda traj: (traj.length >= 2) & (traj.reward.max() < 9),
    "either": lambda traj: (traj.length == 1) | (traj["next", "reward"].min() >= 7),
    "records": lambda traj: (traj.reward > 5).any() & (traj.reward > 5).all(),
    "total": lambda traj: traj.total_reward != 11,
    "swapped": lambda traj: 3 < traj.reward.mean(),
    "callable": lambda traj: lambda t: t.length == 3,
    "all": lambda traj: None,
}


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyStackStorage", "ListStorage"])
@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize("doubled", [False, True])
def test_queries_find_the_same(storage, name, doubled):
    if storage != "LazyTensorStorage" and name in ("sum", "both"):
        return  # one of a kind is enough there

    def found(lib):
        rb = filled(lib, FIRST, SECOND, storage=storage)
        if doubled:
            rb.append_transform(lambda td: td.set(("next", "reward"), td["next", "reward"] * 2))
        predicate = PREDICATES[name](lib.traj)
        keys = predicate.required_keys() if hasattr(predicate, "required_keys") else None
        return keys, [
            (t.obs.tolist(), t.reward.tolist(), t.length, float(t.total_reward), sorted(map(str, t["next"].keys())))
            for t in rb.query(predicate)
        ]

    theirs, ours = both(found)
    if storage != "LazyTensorStorage":  # where torchrl begins with slot 0, not with the oldest
        theirs[1].sort()
    assert ours == theirs


def test_a_value_can_be_compared_with_a_value_here():
    """torchrl takes any such comparison for true, and tells the fields of the left side only."""

    def found(lib):
        predicate = lib.traj.obs.first() < lib.traj.reward.last()
        return predicate.required_keys(), [t.length for t in filled(lib, FIRST, SECOND).query(predicate)]

    theirs, ours = both(found)
    assert ours == ({"obs", "reward"}, [3, 5]) and theirs == ({"obs"}, [1, 3, 5, 1])


def test_predicates_cannot_be_joined_by_words_here():
    """torchrl takes the second for both."""
    theirs, ours = both(lambda lib: outcome(lambda: (lib.traj.length > 1) and (lib.traj.length < 9)))
    assert ours is TypeError and repr(theirs) == "TrajectoryPredicate((traj.length < 9))"


@pytest.mark.parametrize(
    "fields",
    [
        ["episode"], ["traj_ids"], [("collector", "traj_ids"), "episode"], ["traj_ids", "episode", ("next", "done")],
        [("next", "done")], [("next", "terminated"), ("next", "truncated")], [("next", "truncated"), "done"],
        ["done"], ["terminated", "truncated"], [],
    ],
    ids=str,
)  # fmt: skip
def test_what_tells_trajectories_apart_is_the_same(fields):
    data = TensorDict({"obs": torch.arange(8)}, [8])
    for place, key in enumerate(fields, 2):
        ids = (key[-1] if isinstance(key, tuple) else key) in ("episode", "traj_ids")
        data[key] = torch.arange(8) // place if ids else torch.arange(8)[:, None] == place
    theirs, ours = both(lambda lib: outcome(lambda: [t.length for t in filled(lib, data, capacity=8).query()]))
    assert ours == theirs


def test_data_falls_apart_the_same():
    data = steps([0, 0, 1, 1, 0, 2])
    for lib in (PEER, OURS):
        assert [t.length for t in lib.iter_trajectories(data)] == [2, 2, 1, 1]
        assert [t.length for t in lib.filter_trajectories(data, lib.traj.length > 1)] == [2, 2]
        assert [t.length for t in lib.filter_trajectories(data, trajectory_key="obs")] == [1] * 6


# --- sequences


@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
@pytest.mark.parametrize(
    "more", [{}, {"burn_in": 2}, {"bootstrap": 1}, {"dilation": 2}, {"burn_in": 1, "bootstrap": 2}], ids=str
)
@pytest.mark.parametrize("turned", [False, True])
def test_sequences_are_the_same(boundary, more, turned):
    done = torch.tensor([[i in (3, 4, 8)] for i in range(13)])
    data = TensorDict({"obs": torch.arange(13), "next": {"done": done}}, [13])

    def drawn(lib):
        rb = filled(
            lib, data[:10], *([data[10:]] if turned else []),
            sampler=lib.SamplerWithoutReplacement(shuffle=False), sample_unit=lib.Sequence(3, boundary, **more),
        )  # fmt: skip
        batch, info = rb.sample(10, return_info=True)
        names = ("sequence_id", "step_in_sequence", "learning_mask", "validity_mask", "anchor_index")
        assert all(torch.equal(batch[name], info[name]) for name in names)
        return {name: batch[name].tolist() for name in ("obs", "index", *names)}

    theirs, ours = both(drawn)
    assert ours == theirs
