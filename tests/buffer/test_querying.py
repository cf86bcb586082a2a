"""A query finds the trajectories that are stored, reads what it needs, and gives them as a sampler would."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    Compose,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    traj,
)

STORAGES = {"tensor": LazyTensorStorage, "stack": LazyStackStorage, "list": ListStorage}


def steps(ids, first=0):
    num = len(ids)
    obs = torch.arange(first, first + num)
    return TensorDict(
        {
            "episode": torch.tensor(ids),
            "obs": obs,
            "wide": torch.zeros(num, 50),
            "next": {"reward": obs[:, None] * 1.0},
        },
        [num],
    )


def filled(kind="tensor", **options):
    rb = TensorDictReplayBuffer(
        storage=STORAGES[kind](10), writer=TensorDictRoundRobinWriter(track_generations=True), **options
    )
    rb.extend(steps([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]))
    rb.extend(steps([2, 3], 10))
    return rb


WHOLE = [[2, 3], [4, 5, 6], [7, 8, 9, 10], [11]]


def observations(found):
    return [t.obs.tolist() for t in found]


@pytest.mark.parametrize("kind", STORAGES)
def test_a_query_gives_whole_trajectories_oldest_first(kind):
    rb = filled(kind)
    assert observations(rb.query()) == observations(rb.iter_trajectories()) == WHOLE
    found = rb.query(traj.reward.sum() > 30)
    assert observations(found) == [WHOLE[2]]
    assert found[0].index.tolist() == [7, 8, 9, 0] and found[0]["index_generation"].tolist() == [0, 0, 0, 1]
    assert found[0].length == 4 and found[0].wide.shape == (4, 50)
    assert observations(rb.query(lambda t: t.length == 3)) == [WHOLE[1]]
    assert observations(rb.query((traj.length == 3) | (traj.index.min() == 1))) == [WHOLE[1], WHOLE[3]]
    assert observations(rb.query(traj.length > 9)) == []
    assert [t.length for t in rb.query(trajectory_key="obs")] == [1] * 10
    assert [t.length for t in rb.iter_trajectories(trajectory_key="wide")] == [10]


def test_trajectories_carry_what_samples_carry():
    rb = filled()
    (t,) = rb.query(traj.length == 3)
    batch = rb.sample(3)
    assert set(t.keys()) == set(batch.keys())
    result = rb.update_if_present(
        index=t.index, generation=t.index_generation, patch={"obs": torch.tensor([70, 80, 90])}
    )
    assert result.updated_count == 3 and observations(rb.query(traj.obs.max() == 90)) == [[70, 80, 90]]
    plain = ReplayBuffer(storage=LazyTensorStorage(4))
    plain.extend(steps([0, 0, 1]))
    assert [sorted(t.keys()) for t in plain.query()] == [["episode", "next", "obs", "wide"]] * 2


def test_samplers_and_queries_agree():
    rb = filled(sampler=SliceSampler(num_slices=1, strict_length=False))
    drawn = {tuple(rb.sample(9)["obs"].tolist()) for _ in range(80)}
    assert drawn == {tuple(run) for run in WHOLE} == {tuple(run) for run in observations(rb.query())}


def test_records_that_are_used_up_are_in_no_trajectory():
    rb = filled(consume_after_n_samples=1, sampler=SliceSampler(slice_len=2))
    drawn = set(rb.sample(2)["obs"].tolist())
    for found in (rb.query(), rb.query(traj.length >= 1)):
        assert {n for run in observations(found) for n in run} == set(range(2, 12)) - drawn


def test_what_is_found_is_the_caller_s_own():
    rb = filled()
    for t in (*rb.query(), *rb.query(traj.length > 0)):
        t.obs.fill_(-1)
    assert observations(rb.query()) == WHOLE


def test_nothing_stored_is_nothing_found_and_wrong_keys_are_named():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    assert rb.query() == rb.query(traj.length > 1) == list(rb.iter_trajectories()) == []
    rb = filled()
    with pytest.raises(KeyError, match="query: no field 'nope' is stored"):
        rb.query(trajectory_key="nope")
    with pytest.raises(KeyError, match="iter_trajectories: no field 'nope' is stored"):
        rb.iter_trajectories(trajectory_key="nope")
    with pytest.raises(KeyError, match="no field 'nope', nor below 'next'"):
        rb.query(traj.nope.sum() > 1)
    with pytest.raises(TypeError, match="query: the predicate must be built from traj, or a callable.*got 3"):
        rb.query(3)
    with pytest.raises(TypeError, match=r"query gave \[4, 1\] values for one trajectory"):
        rb.query(lambda t: t.reward > 3 if t.length == 4 else False)
    numbers = ReplayBuffer(storage=LazyTensorStorage(4))
    numbers.extend(torch.arange(3))
    with pytest.raises(KeyError, match="no field tells trajectories apart"):
        numbers.query()


# --- what is fetched, and which transforms run


class Step:
    """A transform that says what it reads and writes."""

    def __init__(self, reads, writes, fn):
        self.in_keys, self.out_keys, self.fn, self.batches = reads, writes, fn, []

    def __call__(self, td):
        self.batches.append((td.shape[0], set(td.keys(True, True))))
        return self.fn(td)


def reads_of(monkeypatch):
    read = []
    whole, part = LazyTensorStorage.read, LazyTensorStorage.read_fields
    monkeypatch.setattr(
        LazyTensorStorage, "read", lambda self, slots, *rest: read.append(len(slots)) or whole(self, slots, *rest)
    )
    monkeypatch.setattr(
        LazyTensorStorage,
        "read_fields",
        lambda self, paths, slots: read.append((sorted(paths), len(slots))) or part(self, paths, slots),
    )
    return read


def test_only_what_a_predicate_reads_is_fetched_of_all(monkeypatch):
    rb, read = filled(), reads_of(monkeypatch)
    assert observations(rb.query(traj.reward.sum() > 30)) == [WHOLE[2]]
    whole = [entry for entry in read if isinstance(entry, int)]
    assert whole == [4] and ([("next", "reward")], 10) in read
    assert {path for entry in read if not isinstance(entry, int) for path in entry[0]} == {
        ("episode",), ("next", "reward")
    }  # fmt: skip
    read.clear()
    rb.query(lambda t: t.length > 100)
    assert 10 in read


def test_only_transforms_that_matter_run_before_it_is_known_what_matches():
    doubled = Step(["obs"], ["score"], lambda td: td.set("score", td["obs"] * 2))
    shifted = Step(["score"], [("next", "reward")], lambda td: td.set(("next", "reward"), td["score"][:, None] + 1))
    other = Step(["wide"], ["wide"], lambda td: td.set("wide", td["wide"] + 1))
    rb = filled(transform=Compose(other, Compose(doubled, shifted)))
    found = rb.query(traj.reward.max() == 13)
    assert observations(found) == [WHOLE[1]] and (found[0].wide == 1).all()
    assert [num for num, _ in other.batches] == [3] and [num for num, _ in doubled.batches] == [2, 3, 4, 1, 3]
    assert shifted.batches[0][1] == {"obs", "score", ("next", "reward")}


@pytest.mark.parametrize(
    "untold",
    [
        lambda td: td.set("obs", td["obs"] + 100),
        Step([], [], lambda td: td.set("obs", td["obs"] + 100)),
        torch.nn.Identity(),
    ],
)
def test_a_transform_that_does_not_tell_counts_as_changing_everything(untold):
    silent = Step(["wide"], ["wide"], lambda td: td)
    rb = filled(transform=Compose(silent, untold))
    more = 0 if isinstance(untold, torch.nn.Identity) else 100
    found = rb.query(traj.obs.max() == 6 + more)
    assert observations(found) == [[4 + more, 5 + more, 6 + more]]
    assert [num for num, _ in silent.batches] == [2, 3, 4, 1]


def test_boundaries_are_those_of_what_is_stored():
    rb = filled(transform=lambda td: td.set("episode", torch.zeros_like(td["episode"])))
    assert observations(rb.query()) == WHOLE and all((t.episode == 0).all() for t in rb.query())


# --- one moment


@pytest.mark.parametrize("times", [1, 2, 5])
def test_what_is_found_is_of_one_moment(times):
    """The predicate itself writes between the two looks, some times or always."""
    rb, left = filled(), [times]

    def matching(t):
        if left[0]:
            left[0] -= 1
            rb.extend(steps([9 + left[0]] * 10, 100 * left[0]))
        return True

    from torchrb import TrajectoryPredicate

    for found in (rb.query(TrajectoryPredicate(matching, keys=["obs"])), rb.query(TrajectoryPredicate(matching))):
        assert sum(t.length for t in found) == 10 and len({tuple(t.index.tolist()) for t in found}) == len(found)
        for t in found:
            assert t.obs.diff().tolist() == [1] * (t.length - 1) and len(set(t.episode.tolist())) == 1


def test_an_iterator_is_of_the_moment_of_its_call():
    rb = filled()
    iterator = rb.iter_trajectories()
    rb.extend(steps([7] * 10))
    assert observations(iterator) == WHOLE


def test_no_writer_waits_for_a_predicate():
    rb, written = filled(), []

    def writing(t):
        if not written:
            thread = threading.Thread(target=lambda: written.append(rb.extend(steps([8]))))
            thread.start()
            thread.join(20)
            assert written
        return True

    assert observations(rb.query(writing)) == WHOLE


# --- storages of several dimensions


def test_cells_are_queried_one_after_the_other():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20, ndim=2), dim_extend=1, writer=TensorDictRoundRobinWriter(track_generations=True)
    )
    ids = torch.tensor([[0] * 5 + [1] * 8, [2] * 3 + [3] * 9 + [4]])
    data = TensorDict({"obs": torch.arange(26).view(2, 13), "episode": ids}, [2, 13])
    rb.extend(data[:, :10])
    rb.extend(data[:, 10:])
    found = rb.query()
    assert observations(found) == [[3, 4], [*range(5, 13)], [*range(16, 25)], [25]]
    assert found[3].index.tolist() == [[2, 1]] and found[0].index.tolist() == [[3, 0], [4, 0]]
    (t,) = rb.query(traj.obs.max() == 24)
    assert t.obs.tolist() == [*range(16, 25)] and t.index[-1].tolist() == [1, 1]
    patch = {"obs": torch.arange(9)}
    assert rb.update_if_present(index=t.index, generation=t.index_generation, patch=patch).updated_count == 9
    assert observations(rb.query())[2] == [*range(9)]
