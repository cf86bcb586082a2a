"""Trajectories in storages of several dimensions: each cell has its own, in time order, round the ring."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    traj,
)

ENVS, SLOTS, LENGTH = 3, 8, 5


def steps(first, num):
    """``[ENVS, num]``: environment ``b`` begins a trajectory whenever ``time + b`` is a multiple of LENGTH."""
    time = torch.arange(first, first + num).expand(ENVS, num)
    env = torch.arange(ENVS)[:, None].expand(ENVS, num)
    return TensorDict(
        {
            "time": time.clone(),
            "env": env.clone(),
            "episode": env * 1000 + (time + env) // LENGTH,
            "next": {"done": ((time + env) % LENGTH == LENGTH - 1)[..., None], "reward": time[..., None].float()},
        },
        [ENVS, num],
    )


def buffer_of(sampler=None, unit=None, **options):
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ENVS * SLOTS, ndim=2), writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=sampler, sample_unit=unit, **options,
    )  # fmt: skip
    for first, num in ((0, 4), (4, 1), (5, 6)):  # 11 steps in 8 slots: the ring has gone round
        rb.extend(steps(first, num))
    return rb


def stored():
    """Trajectories as ``(env, times)``, by environment, oldest first."""
    found = []
    for env in range(ENVS):
        runs = {}
        for time in range(3, 11):
            runs.setdefault((time + env) // LENGTH, []).append(time)
        found += [(env, times) for times in runs.values()]
    return found


def assert_places(batch):
    """Index and generation are those of the records."""
    slot, env = batch["index"].unbind(-1)
    assert torch.equal(slot, batch["time"] % SLOTS) and torch.equal(env, batch["env"])
    assert torch.equal(batch["index_generation"], batch["time"] // SLOTS)


@pytest.mark.parametrize("key", ["episode", ("next", "done")])
@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_slices_are_of_one_cell_and_follow_time(kind, key):
    keys = {"traj_key": key} if key == "episode" else {"end_key": key}
    rb = buffer_of(kind(slice_len=3, strict_length=True, **keys), batch_size=6)
    runs = dict.fromkeys((env, time) for env, times in stored() for time in times[: len(times) - 2])
    for _ in range(20):
        batch, info = rb.sample(return_info=True)
        assert_places(batch)
        assert torch.equal(torch.stack(info["index"], -1), batch["index"])
        time, env = batch["time"].view(-1, 3), batch["env"].view(-1, 3)
        assert (time == time[:, :1] + torch.arange(3)).all() and (env == env[:, :1]).all()
        assert all(place in runs for place in zip(env[:, 0].tolist(), time[:, 0].tolist(), strict=True))


def test_queries_find_the_trajectories_of_each_cell():
    rb = buffer_of()
    found = rb.query()
    assert [(int(t["env"][0]), t["time"].tolist()) for t in found] == stored()
    for trajectory in found:
        assert_places(trajectory)
    long = rb.query((traj.length >= 5) & (traj.reward.sum() > 20))
    expected = [times for _, times in stored() if len(times) >= 5 and sum(times) > 20]
    assert [t["time"].tolist() for t in long] == expected


@pytest.mark.parametrize("prefetch", [None, 2])
def test_sequences_stay_within_their_cell(prefetch):
    rb = buffer_of(unit=Sequence(3), batch_size=4, prefetch=prefetch)
    for _ in range(6):
        batch = rb.sample()
        assert_places(batch)
        anchor = batch["anchor_index"].view(4, 3, 2)
        first = batch["index"].view(4, 3, 2)[:, 0]
        assert (anchor == anchor[:, :1]).all() and torch.equal(anchor[:, 0], first)
        time, env, valid = (batch[key].view(4, 3) for key in ("time", "env", "validity_mask"))
        assert (env == env[:, :1]).all() and ((time == time[:, :1] + torch.arange(3)) | ~valid).all()
    rb.shutdown()
