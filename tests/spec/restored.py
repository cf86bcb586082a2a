"""Buffers with a history, and what one that was saved with it does from there on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from torchrb import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PromptGroupSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

CAPACITY = 12


def rows(first: int, num: int) -> TensorDict:
    numbers = torch.arange(first, first + num)
    fields = {"n": numbers, "group": numbers % 3, "reward": numbers.double() % 5, "traj": numbers // 4}
    return TensorDict(fields | {"text": ["é"] * num}, [num])


STORAGES = {
    "packed": lambda: LazyTensorStorage(CAPACITY),
    "columns": lambda: LazyTensorStorage(CAPACITY, layout="columns"),
    "adopted": lambda: TensorStorage(rows(0, CAPACITY)),
    "memmap": lambda: LazyMemmapStorage(CAPACITY),
    "stack": lambda: LazyStackStorage(CAPACITY),
    "list": lambda: ListStorage(CAPACITY),
}
SAMPLERS = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "groups": lambda: PromptGroupSampler(
        num_groups=2, group_key="group", reward_key="reward", strategy="recency"
    ),
    "priorities": lambda: PrioritizedSampler(CAPACITY, alpha=0.7, beta=0.9),
    "slices": lambda: SliceSampler(slice_len=2, traj_key="traj", strict_length=False),
    "slice passes": lambda: SliceSamplerWithoutReplacement(slice_len=2, traj_key="traj", strict_length=False),
    "best": lambda: PromptGroupSampler(num_groups=2, group_key="group", reward_key="reward", strategy="reward"),
}  # fmt: skip


def buffer(storage: str, sampler: str, limit: int | None = None, prefetch: int | None = None) -> TensorDictReplayBuffer:
    generator = torch.Generator()
    return TensorDictReplayBuffer(
        storage=STORAGES[storage](),
        sampler=SAMPLERS[sampler](),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=generator,
        batch_size=4,
        consume_after_n_samples=limit,
        prefetch=prefetch,
    )


def begun(storage: str, sampler: str, limit: int | None = None) -> TensorDictReplayBuffer:
    """A buffer with a history: wrapped, patched, drawn from."""
    rb = buffer(storage, sampler, limit)
    rb.generator.manual_seed(5)  # type: ignore[union-attr]
    for first in (0, 7, 11):
        rb.extend(rows(first, 7))
    rb[2] = rows(50, 1)[0]
    if storage != "list":
        rb.set_at_("reward", torch.tensor([9.0]).double(), torch.tensor([5]))
    rb.sample()
    if sampler == "priorities":
        rb.update_priority(torch.arange(CAPACITY), torch.arange(CAPACITY) % 5 + 0.5)
        rb.sample()
    return rb


def told(rb: TensorDictReplayBuffer) -> list[Any]:
    """What a buffer does from here on, and the generations that it gives."""
    did: list[Any] = [len(rb), rb.write_count, repr(rb.writer), rb.stats()]
    slots = torch.arange(CAPACITY)
    did.append(rb.writer.generations_of(slots).tolist())
    did += [draw(rb) for _ in range(3)]
    did.append([int(rb[i]["n"]) for i in range(len(rb))])
    index, generation = rb.extend(rows(100, 5), return_generations=True)
    did += [index.tolist(), [draw(rb) for _ in range(3)]]
    rb.empty()
    later = rb.extend(rows(200, 3), return_generations=True)[1]
    return [did, generation.tolist() + later.tolist()]


def draw(rb: TensorDictReplayBuffer) -> list[Any]:
    batch, info = rb.sample(return_info=True)
    return [info["index"].tolist(), batch["n"].tolist()]


def go_on(storage: str, sampler: str, limit: int | None, place: Path) -> list[Any]:
    """In another process: load what is in a directory, and go on."""
    warnings.simplefilter("ignore")
    rb = buffer(storage, sampler, limit)
    rb.loads(place)
    return told(rb)
