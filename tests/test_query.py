"""Predicates say which fields they read and mean what they say; data falls apart into trajectories."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import Trajectory, TrajectoryPredicate, filter_trajectories, iter_trajectories, traj


def trajectory(num=4, **fields):
    reward = torch.arange(float(num))[:, None]
    return Trajectory(
        TensorDict(
            {"obs": torch.arange(num), "agent": {"loss": torch.ones(num)}, "next": {"reward": reward}, **fields}, [num]
        )
    )


# --- a trajectory


def test_fields_are_attributes_and_entries():
    t = trajectory(text=["a", "b", "c", "d"])
    assert t.length == len(t) == 4 and t.obs.tolist() == t["obs"].tolist() == [0, 1, 2, 3]
    assert t["agent", "loss"].sum() == t.agent["loss"].sum() == 4
    assert torch.equal(t.reward, t["next", "reward"]) and t.total_reward == 6 and t.text == ["a", "b", "c", "d"]
    assert set(t.keys()) == {"obs", "agent", "next", "text"} and t[1:3]["obs"].tolist() == [1, 2]
    assert t.get("reward").shape == (4, 1) and t.get("nothing", 7) == 7
    assert t.to(torch.device("cpu"))["obs"].tolist() == [0, 1, 2, 3] and t.batch_size == torch.Size([4])
    assert repr(t) == "Trajectory(length=4, keys=['agent', 'next', 'obs', 'text'])"


def test_a_field_of_its_own_name_comes_before_the_one_below_next():
    assert trajectory(reward=torch.zeros(4)).total_reward == 0


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match="no field 'nope', nor below 'next'; there are .*'obs'"):
        _ = trajectory().nope
    with pytest.raises(KeyError, match="no field 'nope'"):
        trajectory()["nope"]
    with pytest.raises(KeyError, match="no field 'index'"):
        _ = trajectory().index
    assert not hasattr(trajectory(), "nope")


# --- predicates

T, F = True, False
PREDICATES = [
    (traj.reward.sum() > 5, T, {"reward"}, "(traj.reward.sum() > 5)"),
    (traj.length >= 5, F, set(), "(traj.length >= 5)"),
    (~(traj.length >= 5), T, set(), "~(traj.length >= 5)"),
    ((traj.length == 4) & (traj.obs.max() != 3), F, {"obs"}, "((traj.length == 4) & (traj.obs.max() != 3))"),
    ((traj.length == 4) | (traj.obs.max() != 3), T, {"obs"}, "((traj.length == 4) | (traj.obs.max() != 3))"),
    (traj["agent", "loss"].mean() <= 1, T, {("agent", "loss")}, "(traj[('agent', 'loss')].mean() <= 1)"),
    (traj["next", "reward"].min() < 0, F, {("next", "reward")}, "(traj[('next', 'reward')].min() < 0)"),
    (5 < traj.reward.sum(), T, {"reward"}, "(traj.reward.sum() > 5)"),
    (traj.reward.first() == 0, T, {"reward"}, "(traj.reward.first() == 0)"),
    (traj.reward.last() == 3, T, {"reward"}, "(traj.reward.last() == 3)"),
    ((traj.reward > 2).any(), T, {"reward"}, "(traj.reward > 2).any()"),
    ((traj.reward > 2).all(), F, {"reward"}, "(traj.reward > 2).all()"),
    ((~(traj.reward > 2) & (traj.obs < 3)).any(), T, {"reward", "obs"}, "(~(traj.reward > 2) & (traj.obs < 3)).any()"),
    (traj.obs.any(), T, {"obs"}, "traj.obs.any()"),
    (traj.obs.all(), F, {"obs"}, "traj.obs.all()"),
    (traj.obs.mean() == 1.5, T, {"obs"}, "(traj.obs.mean() == 1.5)"),
    (traj.obs.std() > 1.2, T, {"obs"}, "(traj.obs.std() > 1.2)"),
    (traj.total_reward > traj.length, T, {"reward"}, "(traj.total_reward > traj.length)"),
    (traj.reward.sum() / traj.length == 1.5, T, {"reward"}, "((traj.reward.sum() / traj.length) == 1.5)"),
    ((2 * traj.obs - 1).max() == 5, T, {"obs"}, "(((2 * traj.obs) - 1).max() == 5)"),
    (abs(1 - traj.obs).max() == 2, T, {"obs"}, "(abs((1 - traj.obs)).max() == 2)"),
]


@pytest.mark.parametrize(("predicate", "matches", "keys", "text"), PREDICATES)
def test_a_predicate_means_what_it_says(predicate, matches, keys, text):
    assert predicate(trajectory()) is matches
    assert predicate.required_keys() == keys and isinstance(predicate.required_keys(), frozenset)
    assert repr(predicate) == f"TrajectoryPredicate({text})"


def test_any_callable_can_be_joined_and_then_nothing_is_known_of_what_is_read():
    long = TrajectoryPredicate(lambda t: t.length > 3, "long")
    assert long.required_keys() is None and repr(long) == "TrajectoryPredicate(long)"
    told, never = traj.obs.max() == 3, lambda t: False
    for joined in (told & long, told & (lambda t: t.length == 4), (lambda t: t.length == 4) & told, never | told):
        assert joined(trajectory()) and joined.required_keys() is None
    told = TrajectoryPredicate(lambda t: t.obs.sum() > 3, keys=["obs"])
    assert told(trajectory()) is True and (told & (traj.length > 1)).required_keys() == {"obs"}


def test_the_second_of_two_is_not_asked_when_the_first_decides():
    def unwanted(t):
        raise AssertionError

    assert not ((traj.length > 9) & unwanted)(trajectory())
    assert ((traj.length > 1) | unwanted)(trajectory())


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: (traj.length > 1) and (traj.length < 9), "is a predicate, not a bool. Combine predicates by &"),
        (lambda: 1 < traj.length < 9, "is a predicate, not a bool"),
        (lambda: not traj.reward.sum(), "is a value to compare, not a bool"),
        (lambda: (traj.reward > 1)(trajectory()), "a bool for each record. Say .any.. or .all"),
        (lambda: (traj.length > 1) & (traj.reward > 1), "a bool for each record. Say .any.. or .all"),
        (lambda: (traj.length > 1) & traj.reward.sum(), "is a value, and a predicate is wanted"),
        (lambda: (traj.length > 1) & 3, "unsupported operand"),
        (lambda: traj.length(trajectory()), "is a value, and a predicate is wanted"),
        (lambda: (traj["agent", "loss"].first() + torch.zeros(2) > 0)(trajectory()), r"gave \[2\] values"),
        (lambda: traj[3], "expected a key, a string or a tuple of strings, got 3"),
    ],
)
def test_what_is_no_predicate_says_so(build, says):
    with pytest.raises(TypeError, match=says):
        build()


# --- data


def test_data_falls_apart_into_trajectories():
    data = TensorDict({"episode": torch.tensor([0, 0, 1, 0]), "k": torch.tensor([1, 1, 1, 2])}, [4])
    assert [t.length for t in iter_trajectories(data)] == [2, 1, 1]
    assert [t.k.tolist() for t in iter_trajectories(data, "k")] == [[1, 1, 1], [2]]
    assert [t.k.tolist() for t in filter_trajectories(data, traj.k.sum() >= 2)] == [[1, 1], [2]]
    assert [t.length for t in filter_trajectories(data, lambda t: t.length < 3, trajectory_key="k")] == [1]
    assert list(iter_trajectories(data[:0])) == [] and len(filter_trajectories(data)) == 3
    both = torch.stack([data, data[[0, 2, 2, 2]]])
    assert [t.length for t in iter_trajectories(both)] == [2, 1, 1, 1, 3]


def test_what_has_no_trajectories_is_refused():
    with pytest.raises(TypeError, match="data must be a tensordict with a batch size, got Tensor"):
        list(iter_trajectories(torch.zeros(3)))
    with pytest.raises(KeyError, match="no field tells trajectories apart"):
        list(iter_trajectories(TensorDict({"x": torch.zeros(3)}, [3])))
    with pytest.raises(TypeError, match="the predicate must be built from traj, or a callable"):
        filter_trajectories(TensorDict({"episode": torch.zeros(3)}, [3]), 3)
