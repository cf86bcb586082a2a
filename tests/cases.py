"""Inputs that the unit tests share: records and storages of every kind, and a form in which anything compares.

A batch of `RECORDS` is made of a list of numbers, and equal numbers make equal rows, so what a row must hold is known
from its number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorClass, TensorDict, is_non_tensor, is_tensor_collection
from torch import Tensor

from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Storage,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
SHAPES = ((), (1,), (3,), (0,), (2, 0), (2, 3), (33,))


def filled(numbers: Sequence[int] | Tensor, dtype: torch.dtype = torch.float32, shape: Sequence[int] = ()) -> Tensor:
    """``[n, *shape]`` whose rows are functions of their numbers."""
    base = torch.as_tensor(numbers, dtype=torch.int64).view(-1, *[1] * len(shape))
    steps = torch.arange(torch.Size(shape).numel()).view(1, *shape)
    whole = (base * 7 + steps * 3) % 120 - (0 if dtype == torch.uint8 else 20)
    if dtype == torch.bool:
        return whole % 2 == 0
    return (torch.complex(whole.float(), -base.float() - steps) if dtype.is_complex else whole).to(dtype)


class Rollout(TensorClass):
    """A tensorclass of three kinds of fields."""

    tokens: Tensor
    reward: Tensor
    prompt: str


def _tensordict(numbers: Sequence[int]) -> TensorDict:
    return TensorDict(
        {"x": filled(numbers, shape=(3,)), "n": torch.as_tensor(numbers, dtype=torch.int64)}, [len(numbers)]
    )


def _nested(numbers: Sequence[int]) -> TensorDict:
    inner = TensorDict(
        {"r": filled(numbers, torch.float64, (1,)), "deep": {"b": filled(numbers, torch.bool)}}, [len(numbers)]
    )
    return TensorDict({"n": torch.as_tensor(numbers, dtype=torch.int64), "next": inner}, [len(numbers)])


def _texts(numbers: Sequence[int]) -> TensorDict:
    rows = TensorDict({"n": torch.as_tensor(numbers, dtype=torch.int64)}, [len(numbers)])
    rows["prompt"] = [None if n % 3 == 0 else f"prompt é {n}" for n in numbers]
    rows["notes"] = [[n, ["x", None]] for n in numbers]
    return rows


def _rollouts(numbers: Sequence[int]) -> Rollout:
    texts = [f"p{n}" for n in numbers]
    return Rollout(
        tokens=filled(numbers, torch.int32, (4,)), reward=filled(numbers), prompt=texts, batch_size=[len(numbers)]
    )


RECORDS: dict[str, Callable[[Sequence[int]], Any]] = {
    "tensor": lambda numbers: filled(numbers, torch.int64, (2,)),
    "pytree": lambda numbers: {
        "a": filled(numbers),
        "b": (filled(numbers, torch.int8, (2,)), [filled(numbers, torch.bool)]),
    },
    "tuple": lambda numbers: (filled(numbers, torch.bfloat16, (5,)), torch.as_tensor(numbers, dtype=torch.int64)),
    "tensordict": _tensordict,
    "nested": _nested,
    "texts": _texts,
    "tensorclass": _rollouts,
}
TENSORDICTS = ("tensordict", "nested", "texts", "tensorclass")

STORAGES: dict[str, Callable[[int], Storage]] = {
    "packed": lambda capacity: LazyTensorStorage(capacity),
    "columns": lambda capacity: LazyTensorStorage(capacity, layout="columns"),
    "stack": lambda capacity: LazyStackStorage(capacity),
    "list": lambda capacity: ListStorage(capacity),
}
LAYOUTS = ("packed", "columns")


def buffer(
    storage: Storage | str = "packed", capacity: int = 8, *, tensordicts: bool = True, track: bool = True, **kwargs: Any
) -> ReplayBuffer:
    """A buffer that tracks generations and draws from a generator of its own."""
    kind, writer = (
        (TensorDictReplayBuffer, TensorDictRoundRobinWriter) if tensordicts else (ReplayBuffer, RoundRobinWriter)
    )
    kwargs.setdefault("sampler", RandomSampler())
    return kind(
        storage=STORAGES[storage](capacity) if isinstance(storage, str) else storage,
        writer=writer(track_generations=track),
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


def plain(value: Any) -> Any:
    """Anything stored or returned in a form that ``==`` compares: dtype, shape and every bit of each tensor."""
    if isinstance(value, Tensor):
        # Writing out conj and neg bits is what makes equal values equal bytes.
        whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        raw = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
        return (str(value.dtype), tuple(value.shape), raw)
    if is_non_tensor(value):
        return plain(value.tolist())
    if is_tensor_collection(value):
        entries = {key: plain(entry) for key, entry in value.items() if key not in ("index", "index_generation")}
        return (tuple(value.batch_size), entries)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value] if isinstance(value, list) else tuple(plain(item) for item in value)
    return value
