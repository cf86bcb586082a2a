"""A table of draws, by name: what a seed number and a history must give on every backend.

``python -m tests.spec.draw_table`` prints it as JSON, for a process with another backend to be compared with, and for
``draw_table.json``, the pinned copy, when the meaning of a draw is changed on purpose.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

PINNED = Path(__file__).with_name("draw_table.json")
STRATEGIES = ("random", "recency", "reward", "variance")


def _keys(n: int) -> dict[str, Any]:
    group = torch.arange(n) * 7 % 11
    return {
        "int64": group - 5,
        "pairs": torch.stack([group % 2, group // 2], 1).to(torch.int32),
        "bool": group % 2 == 0,
        "float32": group.float() / 3 - 1,
        "text": [f"prompt é {number}" if number else None for number in group.tolist()],
    }


def _rewards(n: int) -> dict[str, torch.Tensor]:
    base = torch.arange(n) * 7919 % 64
    holes = torch.arange(n) % 9 == 4
    return {
        "float32": torch.where(holes, math.nan, base.float() / 8),
        "float64": torch.where(holes, -math.inf, 1e9 + base.double()),
        "float16": (base.float() / 8).to(torch.float16)[:, None],
        "int64": 2**53 + base,
        "bool": base % 3 == 0,
        "means": torch.where(holes[:, None], math.nan, torch.stack([base, base * base % 13, base % 5], 1).float() / 7),
    }


def _rows(n: int) -> TensorDict:
    fields = {f"key {name}": value for name, value in _keys(n).items()}
    return TensorDict(fields | {f"reward {name}": value for name, value in _rewards(n).items()}, [n])


def _draws(layout: str) -> Iterator[tuple[str, list[int]]]:
    rb = ReplayBuffer(
        storage=LazyTensorStorage(64, layout=layout), sampler=RandomSampler(), generator=torch.Generator()
    )
    rows = _rows(100)
    for n in (1, 6, 93):  # a few rows, some more, and a ring that went round
        rb.extend(rows[:n])
        rb.generator.manual_seed(n)
        yield f"uniform, {len(rb)} rows", rb.sample(12, return_info=True)[1]["index"].tolist()
        yield f"uniform, {len(rb)} rows, next", rb.sample(5, return_info=True)[1]["index"].tolist()
        rb.set_sampler(SamplerWithoutReplacement())
        for part in ("first", "next"):
            yield f"without replacement, {len(rb)} rows, {part}", rb.sample(40, return_info=True)[1]["index"].tolist()
        rb.set_sampler(RandomSampler())
        runs = {"trajectories": torch.arange(len(rb)) * len(rb) // 97 % 5, "truncated_key": None}
        for name, sampler in {
            "slices": SliceSampler(slice_len=1, **runs),
            "short slices": SliceSampler(slice_len=8, strict_length=False, span=(2, 1), **runs),
            "slices without replacement": SliceSamplerWithoutReplacement(num_slices=2, strict_length=False, **runs),
        }.items():
            rb.set_sampler(sampler)
            yield f"{name}, {len(rb)} rows", rb.sample(16, return_info=True)[1]["index"].tolist()
        rb.set_sampler(RandomSampler())
    rb.set_at_("reward float32", torch.tensor([0.5, 99.0]), torch.tensor([3, 60]))  # parts of records stay as old

    def groups(key: str, strategy: str, reward: str, num_groups: int, per_group: int) -> list[int]:
        rb.set_sampler(
            PromptGroupSampler(
                num_groups=num_groups, group_key=f"key {key}", strategy=strategy, reward_key=f"reward {reward}"
            )
        )
        rb.generator.manual_seed(17)
        return rb.sample(num_groups * per_group, return_info=True)[1]["index"].tolist()

    for key in _keys(1):
        for strategy in STRATEGIES:
            yield f"{strategy} by {key}", groups(key, strategy, "float32", 2, 3)
    for reward in _rewards(1):
        for strategy in ("reward", "variance"):
            yield f"{strategy} of {reward}", groups("int64", strategy, reward, 3, 3)
    for strategy in STRATEGIES:
        yield f"{strategy}, short groups", groups("int64", strategy, "float32", 2, 9)
        yield f"{strategy}, too few groups", groups("bool", strategy, "float32", 4, 5)


def _large(strategy: str) -> list[int]:
    """So many rows and groups that threads share them."""
    n = 6000
    rb = ReplayBuffer(
        storage=LazyTensorStorage(n),
        sampler=PromptGroupSampler(samples_per_group=4, group_key="g", strategy=strategy, reward_key="r"),
        generator=torch.Generator().manual_seed(3),
    )
    steps = torch.arange(n)
    rb.extend(
        TensorDict({"g": steps % 1009, "r": (steps * 7919 % 997).double(), "wide": steps[:, None].expand(n, 64)}, [n])
    )
    return rb.sample(400, return_info=True)[1]["index"].tolist()


def _consumed(sampler: Sampler) -> list[int]:
    """Draws of records that may be drawn twice, while others are written over the used ones."""
    rb = ReplayBuffer(
        storage=LazyTensorStorage(90), sampler=sampler, consume_after_n_samples=2, generator=torch.Generator()
    )
    rb.generator.manual_seed(5)
    rb.extend(_rows(80))
    indices = []
    for _ in range(6):
        indices.append(rb.sample(24, return_info=True)[1]["index"].tolist())
        rb.extend(_rows(9))
    return [slot for index in indices for slot in index]


def draw_table() -> dict[str, list[int]]:
    """All draws, by name; the same for both layouts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table, columns = dict(_draws("packed")), dict(_draws("columns"))
        assert table == columns, "the layout of the storage decides a draw"
        table |= {f"{strategy}, 6000 rows": _large(strategy) for strategy in STRATEGIES}
        groups = PromptGroupSampler(num_groups=8, group_key="key int64")
        samplers = {"uniform": RandomSampler(), "without replacement": SamplerWithoutReplacement(), "random": groups}
        return table | {f"{name}, at most twice": _consumed(sampler) for name, sampler in samplers.items()}


if __name__ == "__main__":
    torch.set_num_threads(2)
    lines = [f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(index)}" for name, index in draw_table().items()]
    print("{\n" + ",\n".join(lines) + "\n}")
