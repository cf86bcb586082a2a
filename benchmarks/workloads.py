"""The three workloads. Every record is a function of its number, so whatever a contender returns can be checked whole.

* **W1**: rows of a GRPO record, 4,628 bytes: prompt, reward, version, 512 tokens with log-probs and mask.
* **W2**: small rows, 76 bytes: prompt, reward, 8 tokens.
* **W3**: rows of 9 leaves, 712 bytes, two wide ones that conditional updates overwrite.

Rows arrive as rollouts do: the eight completions of a prompt one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from tensordict import TensorDict
from torch import Tensor

GROUP_SIZE = 8
GROUPS = 64
GROUP_DRAW = GROUPS * GROUP_SIZE
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Workload:
    """``fields(numbers)`` makes the records of these numbers, int64 ``[n]``; ``numbers(batch)`` is its inverse."""

    name: str
    fields: Callable[[Tensor], dict[str, Tensor]]
    numbers: Callable[[Mapping[str, Tensor]], Tensor]

    def batch(self, first: int, count: int) -> TensorDict:
        """Records ``first`` to ``first + count``; those of one prompt stand together."""
        fields = self.fields(torch.arange(first, first + count))
        return TensorDict(fields, [count])

    def chunks(self, rows: int):
        """Records 0 to ``rows`` in batches that fit comfortably into memory."""
        for first in range(0, rows, _CHUNK):
            yield self.batch(first, min(_CHUNK, rows - first))

    @property
    def row_bytes(self) -> int:
        return _row_bytes(self)

    def check(self, batch: Mapping[str, Tensor], live: range | None = None) -> Tensor:
        """Raise unless every row is exactly a record that was written, and one of ``live``; returns their numbers."""
        numbers = self.numbers(batch)
        for key, expected in self.fields(numbers).items():
            got = batch[key]
            if got.dtype != expected.dtype or not torch.equal(got.reshape(expected.shape), expected):
                raise AssertionError(f"{self.name}: field {key!r} is not what was written")
        if live is not None and not bool(((numbers >= live.start) & (numbers < live.stop)).all()):
            raise AssertionError(f"{self.name}: a record was returned that is not stored")
        return numbers


@cache
def _row_bytes(workload: Workload) -> int:
    return sum(leaf.element_size() * leaf[0].numel() for leaf in workload.fields(torch.arange(1)).values())


def _reward(numbers: Tensor) -> Tensor:
    """Multiples of 1/4096 in [0, 1): exact in float32, and different for the completions of one prompt."""
    return ((numbers * 2654435761) % 4096).to(torch.float32) / 4096


def _w1(numbers: Tensor) -> dict[str, Tensor]:
    tokens = (numbers[:, None] + torch.arange(512) * 7).to(torch.int32)
    return {
        "prompt": numbers // GROUP_SIZE,
        "reward": _reward(numbers),
        "version": numbers // GROUP_DRAW,
        "tokens": tokens,
        "logp": tokens.to(torch.float32) / -65536,
        "mask": (tokens & 3) != 0,
    }


def _w2(numbers: Tensor) -> dict[str, Tensor]:
    return {
        "prompt": numbers // GROUP_SIZE,
        "reward": _reward(numbers),
        "tokens": numbers[:, None] + torch.arange(8),
    }


def _w3(numbers: Tensor) -> dict[str, Tensor]:
    wide = numbers[:, None].to(torch.float32) / 1024
    return {
        "hidden": wide + torch.arange(64),
        "obs": wide - torch.arange(64),
        "logp": wide * torch.arange(16),
        "action": -wide * torch.arange(16),
        "tokens": (numbers[:, None] + torch.arange(11)).to(torch.int32),
        "prompt": numbers,
        "version": torch.full_like(numbers, 0),
        "value": numbers.to(torch.float64) / 3,
        "reward": _reward(numbers),
    }


W1 = Workload("W1", _w1, lambda batch: batch["tokens"][:, 0].to(torch.int64))
W2 = Workload("W2", _w2, lambda batch: batch["tokens"][:, 0].to(torch.int64))
W3 = Workload("W3", _w3, lambda batch: batch["prompt"].reshape(-1))


@dataclass(frozen=True)
class Scale:
    """How large everything is. ``budget_s`` bounds the calls of one contender; ``repeats`` is their most."""

    w1: int = 50_000
    w2: int = 1_000_000
    w2_small: int = 10_000
    w3: int = 100_000
    saved: int = 220_000  # rows of W1, a gigabyte
    update_rows: tuple[int, ...] = (512, 4096, 65536)
    sample_rows: int = 4096
    wide_batch: int = 65536
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    candidates: tuple[int, ...] = (16, 19)
    selector_batch: int = 1024
    selector_peer_batch: int = 32
    repeats: int = 40
    budget_s: float = 1.5


FULL = Scale()
QUICK = Scale(
    w1=1024,
    w2=4096,
    w2_small=1024,
    w3=1024,
    saved=1024,
    update_rows=(64, 512),
    sample_rows=256,
    wide_batch=1024,
    growth=(1024, 4096),
    candidates=(8,),
    selector_batch=8,
    selector_peer_batch=2,
    repeats=3,
    budget_s=0.2,
)


class Ring:
    """A contender's own stream of batches: the next records of a workload, as its cursor goes round."""

    def __init__(self, workload: Workload, capacity: int, batch: int = GROUP_DRAW) -> None:
        self.workload, self.capacity, self.batch = workload, capacity, batch
        self.written = capacity

    def next(self) -> TensorDict:
        """The next batch, and count it as written."""
        self.written += self.batch
        return self.workload.batch(self.written - self.batch, self.batch)

    @property
    def live(self) -> range:
        return range(self.written - self.capacity, self.written)
