"""Conditional updates: some fields of many records, each only while its handle is good (and its version newer)."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor

from benchmarks import limits
from benchmarks.buffers import available, ours_filled, torchrl_filled
from benchmarks.harness import Contender, Row, faster_than
from benchmarks.workloads import W3, Scale

# Two leaves of 256 and 64 bytes, or two of 8 and 4.
PATCHES = {
    "wide": {"hidden": ((64,), torch.float32), "logp": ((16,), torch.float32)},
    "scalar": {"value": ((), torch.float64), "reward": ((), torch.float32)},
}
# One stream for all: contenders of different rows may share a buffer, in which versions only grow.
_VERSIONS = count(1)
_FACTORS = {
    ("wide", False): (3, 8, 8),
    ("wide", True): (5, 8, 8),
    ("scalar", False): (3, 1, 1),
    ("scalar", True): (3, 1, 1),
}


def updating(buffer: Any, capacity: int, rows: int, leaves: str, versioned: bool) -> Contender:
    """Patch random, different records through good handles; the mask of those updated is asked for."""
    generations = buffer.writer.generations_of(torch.arange(capacity))
    generator = torch.Generator().manual_seed(5)
    patch = {key: torch.zeros(rows, *shape, dtype=dtype) for key, (shape, dtype) in PATCHES[leaves].items()}
    last: list[Tensor] = []

    def inputs() -> tuple[dict[str, Any]]:
        slots = torch.randperm(capacity, generator=generator)[:rows]
        last[:] = [slots]
        for values in patch.values():
            values.add_(1)
        asked = {"index": slots, "generation": generations[slots], "patch": patch}
        return (
            asked | {"version_key": "version", "version": next(_VERSIONS), "require_newer": True}
            if versioned
            else asked,
        )

    def call(asked: dict[str, Any]) -> Tensor:
        return buffer.update_if_present(**asked).updated

    def check(updated: Tensor) -> Tensor:
        stored = buffer[last[0]]
        if not bool(updated.all()) or not all(torch.equal(stored[key], values) for key, values in patch.items()):
            raise AssertionError("a record with a good handle was not patched")
        return updated

    return Contender(call, inputs, check)


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    table = []
    for (leaves, versioned), factors in _FACTORS.items():
        for size, factor in zip(scale.update_rows, factors, strict=False):
            text = "wide leaves (256 + 64 bytes)" if leaves == "wide" else "scalar leaves (8 + 4 bytes)"
            options = (scale.w3, size, leaves, versioned)

            def mine(options: tuple = options) -> Contender:
                return updating(ours_filled(W3, scale.w3, generations=True).buffer, *options)

            def theirs(options: tuple = options) -> Contender:
                return updating(torchrl_filled(W3, scale.w3, generations=True).buffer, *options)

            table.append(
                Row(
                    f"w3/update/{leaves}{'+version' if versioned else ''}/{size}",
                    f"W3: update_if_present, {size:,} rows, {text}{', with versions' if versioned else ''}",
                    ours=mine,
                    peers=available({"torchrl": theirs}),
                    limits={"index_copy_": lambda o=options: limits.index_copies(PATCHES[o[2]], o[0], o[1])},
                    goals=[faster_than("torchrl", factor)],
                    peers_agree=True,
                )
            )
    return table
