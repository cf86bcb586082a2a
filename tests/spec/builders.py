"""Buffers of every kind of storage, and records all of whose fields tell the same number.

`numbered` makes them, `numbers_of` reads them back and fails when a row's fields do not belong together, so that a test
of any law sees a torn or misplaced row wherever it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrb import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PromptGroupSampler,
    RandomSampler,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

WIDE = 20  # floats in the wide field: long enough to be placed on a vector boundary
GROUPS = 3


def numbered(numbers: Sequence[int] | Tensor) -> TensorDict:
    """Records whose fields, of many dtypes and shapes, are all functions of one number below 2**20."""
    n = torch.as_tensor(numbers, dtype=torch.int64)
    return TensorDict(
        {
            "n": n,
            "wide": n.to(torch.float32)[:, None] + torch.arange(WIDE),
            "flag": n % 2 == 1,
            "byte": (n % 251).to(torch.uint8),
            "half": (n % 128).to(torch.bfloat16)[:, None],
            "g": n % GROUPS,
            "next": TensorDict({"reward": n.to(torch.float64)[:, None] / 2}, [len(n)]),
            "text": [f"record {number}" for number in n.tolist()],
        },
        [len(n)],
    )


def texts_of(value: Any) -> list[Any]:
    """A non-tensor field as a plain list."""
    return list(value.tolist() if hasattr(value, "tolist") else value)


def numbers_of(batch: TensorDict) -> list[int]:
    """The numbers of a batch of `numbered` records; fails where a row mixes two records."""
    n = batch["n"].reshape(-1)
    told = numbered(n)
    for key in ("wide", "flag", "byte", "half", "g", ("next", "reward")):
        field = batch[key].reshape(told[key].shape)
        assert torch.equal(field, told[key]), f"field {key!r} does not belong to the records {n.tolist()}: {field}"
    if "text" in batch.keys():
        assert texts_of(batch["text"]) == texts_of(told["text"])
    return n.tolist()


def _adopted(capacity: int) -> Storage:
    """A `TensorStorage` over existing rows, emptied: the same start as the lazy storages have."""
    storage = TensorStorage(numbered([0] * capacity))
    storage.clear()
    return storage


STORAGES: dict[str, Callable[[int], Storage]] = {
    "packed": lambda capacity: LazyTensorStorage(capacity),
    "columns": lambda capacity: LazyTensorStorage(capacity, layout="columns"),
    "adopted": _adopted,
    "memmap": lambda capacity: LazyMemmapStorage(capacity),
    "stack": lambda capacity: LazyStackStorage(capacity),
    "list": lambda capacity: ListStorage(capacity),
}
TENSOR_STORAGES = ("packed", "columns", "adopted", "memmap")
TENSORDICT_STORAGES = (*TENSOR_STORAGES, "stack")

STRATEGIES = ("random", "recency", "reward", "variance")


def buffer_of(
    kind: str,
    capacity: int = 8,
    *,
    numbers: Sequence[int] = (),
    sampler: Any = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> TensorDictReplayBuffer:
    """A buffer that tracks generations, with a generator of its own, holding `numbered` records."""
    rb = TensorDictReplayBuffer(
        storage=STORAGES[kind](capacity),
        sampler=sampler or RandomSampler(),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(seed),
    )
    if len(numbers):
        rb.extend(numbered(numbers))
    return rb


def group_sampler(strategy: str = "random", **kwargs: Any) -> PromptGroupSampler:
    """A sampler over the groups of `numbered` records."""
    if "samples_per_group" not in kwargs:
        kwargs.setdefault("num_groups", GROUPS)
    return PromptGroupSampler(group_key="g", reward_key=("next", "reward"), strategy=strategy, **kwargs)


def grouped_buffer(
    groups: Any,
    rewards: Any = None,
    *,
    strategy: str = "random",
    k: int = 2,
    capacity: int | None = None,
    storage: Storage | None = None,
    seed: int = 0,
    **fields: Any,
) -> TensorDictReplayBuffer:
    """A buffer of records with a group ``g`` and a reward ``r``, whose sampler draws ``k`` rows a group."""
    rows = len(groups)
    record = {"g": groups, "id": torch.arange(rows), **fields}
    if rewards is not None:
        record["r"] = torch.as_tensor(rewards)
    rb = TensorDictReplayBuffer(
        storage=storage if storage is not None else LazyTensorStorage(capacity or max(rows, 1)),
        sampler=PromptGroupSampler(samples_per_group=k, group_key="g", reward_key="r", strategy=strategy),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=torch.Generator().manual_seed(seed),
    )
    rb.extend(TensorDict(record, [rows]))
    return rb
