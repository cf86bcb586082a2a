"""Everything that the kernels decide by arithmetic, by name, as digests of its bits: draws, subsets and advantages.

``python -m tests.native.results [LIBRARY ...]`` loads kernels over the plain twins and prints them as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from tests.ops.cases import Index, Ranked, lay_out, op
from torchrb.ops.schemas import ADVANTAGE_KINDS, CONTROL_LENGTH, CONTROL_SIZE, STRATEGIES

ROWS, GROUPS = 1500, 100


def rewards(generator: torch.Generator) -> dict[str, Tensor]:
    """Values that round in many ways, among them ties, NaN, infinities and the ends of the range."""
    base = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    base[::17, 0], base[5::97, 1], base[7::101, 0] = torch.nan, torch.inf, -torch.inf
    return {
        "float32": base[:, 0].float(),
        "float64": base[:, 1] * 1e200,
        "float16": base[:, 0].half(),
        "bfloat16": base[:, 2].bfloat16(),
        "int64": (base[:, 2] * 2**60).long(),
        "means": base.float(),
    }


def draws(generator: torch.Generator) -> Iterator[tuple[str, list[Tensor]]]:
    groups = torch.randint(GROUPS, (ROWS,), generator=generator)
    for name, values in rewards(generator).items():
        records = lay_out([(torch.int64, ()), (values.dtype, tuple(values.shape[1:]))], ROWS, "packed")
        slots = torch.arange(ROWS)
        op("write_rows_")(
            records.tables, records.control, records.journal, records.layout, slots, [groups, values], True
        )
        index = Index(records, 0)
        index.catch_up()
        for strategy in STRATEGIES:
            args = index.sample_args(11, GROUPS + 5, 7, strategy, 1)
            yield f"{strategy} of {name}", list(op("sample_groups")(*args))


def priorities(generator: torch.Generator) -> dict[str, list[Tensor]]:
    """Weights, the nodes above them, draws and importance weights."""
    records = lay_out([(torch.int64, ())], ROWS, "packed")
    op("append_rows_")(*(records.tables, records.control, records.journal, records.layout), [torch.arange(ROWS)], ROWS)
    found = {}
    for alpha in (0.6, 1.1):
        ranked = Ranked(records, alpha, 1e-8)
        values = torch.randn(ROWS, generator=generator, dtype=torch.float64).abs() * 10.0 ** (torch.arange(ROWS) % 9)
        ranked.update(torch.randperm(ROWS, generator=generator), values)
        found[f"priorities, {alpha}"] = [ranked.tree, *ranked.draw(7, 500, 0.4)]
    return found


def results() -> dict[str, str]:
    generator = torch.Generator().manual_seed(0)
    found = dict(draws(generator))
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
    control[CONTROL_LENGTH] = 12345
    found["uniform"] = [op("draw_uniform")(torch.tensor([5]), control, 1000)]
    found |= priorities(generator)
    for name, step in (("distinct", 0.0), ("tied", 0.25)):
        returns = torch.randn(6, 13, dtype=torch.float64, generator=generator)
        returns = (returns / step).round() * step if step else returns
        for size in (4, 7):
            found[f"subsets of {size}, {name}"] = list(op("balanced_subset")(returns, size, -0.1, 0.2, 5000, 1e-9))
    returns = torch.randn(40, 37, dtype=torch.float64, generator=generator) / 3
    returns[3, 5], returns[9] = torch.nan, 0.1
    for kind, name in enumerate(ADVANTAGE_KINDS):
        for dtype in (torch.float32, torch.float64):
            found[f"advantages, {name}, {dtype}"] = [op("group_advantage")(returns.to(dtype), kind, 1e-6)]
    return {name: digest(tensors) for name, tensors in found.items()}


def digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    for library in sys.argv[1:]:
        torch.ops.load_library(library)
    print(json.dumps(results()))
