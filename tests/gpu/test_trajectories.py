"""Trajectories on a device: slices, passes, sequences and queries are those of the same calls on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    RandomSampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    traj,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "slices": {"sampler": lambda: SliceSampler(slice_len=3, traj_key="episode")},
    "short slices": {"sampler": lambda: SliceSampler(slice_len=4, strict_length=False, span=(1, True))},
    "padded slices": {"sampler": lambda: SliceSampler(slice_len=4, strict_length=False, pad_output=True)},
    "passes": {"sampler": lambda: SliceSamplerWithoutReplacement(num_slices=3, traj_key="episode")},
    "steps": {"sampler": lambda: SliceSampler(slice_len=2, fragmented=True, step_key="step")},
    "sequences": {"sampler": RandomSampler, "sample_unit": Sequence(3, "stop", burn_in=1)},
}


def history(device: Any, options: dict[str, Any]) -> list[Any]:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(30, device=device),
        generator=torch.Generator().manual_seed(5),
        batch_size=12,
        **options | {"sampler": options["sampler"]()},
    )
    answers: list[Any] = []
    for turn in range(6):
        n = torch.arange(9 * turn, 9 * turn + 9, device=device)
        next_ = {"done": (n % 5 == 4)[:, None], "reward": n[:, None].float()}
        rb.extend(TensorDict({"episode": n // 5, "step": n % 5, "next": next_}, [9]))
        if turn == 3:
            rb.set_at_("episode", torch.tensor([99, 99], device=device), torch.tensor([4, 5], device=device))
        batch, info = rb.sample(return_info=True)
        assert batch["index"].device.type == torch.device(device).type
        answers.append({str(key): value.tolist() for key, value in batch.items(True, True)})
        answers.append({str(key): value.tolist() for key, value in info.items()})
        answers.append([t.index.tolist() for t in rb.query((traj.reward.sum() > 40) & (traj.length > 1))])
    return answers


@pytest.mark.parametrize("name", OPTIONS)
def test_trajectories_on_a_device_are_those_on_a_cpu(device, name):
    assert history(device, OPTIONS[name]) == history("cpu", OPTIONS[name])
