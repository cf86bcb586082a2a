"""Choosing which of many candidates are stored: the exact balanced search, alone and for many groups at once."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

import torchrb
from benchmarks.buffers import available
from benchmarks.harness import Contender, Row, faster_than
from benchmarks.workloads import Scale

_CHOSEN = 8
_BOUNDS = (0.1, 0.9)


def left_out() -> dict[str, str]:
    """The rows that have to wait."""
    if not hasattr(torchrb, "MCAdvantageSelector"):
        return {"selector": "torchrb has no MCAdvantageSelector yet"}
    if not hasattr(torchrb.MCAdvantageSelector, "select_batch"):
        return {"selector/batch": "torchrb.MCAdvantageSelector has no select_batch yet"}
    return {}


def _peer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.objectives.llm import MCAdvantageSelector
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    return MCAdvantageSelector()


def _returns(groups: int, candidates: int) -> Any:
    """A stream of returns without ties, the same for every contender."""
    generator = torch.Generator().manual_seed(11)
    return lambda: (torch.rand(groups, candidates, generator=generator),)


def _one(selector: Any, returns: Tensor) -> list[int]:
    candidates = TensorDict({"return": returns}, [returns.shape[0]])
    return selector.select(candidates, group_size=_CHOSEN, keep_return_bounds=_BOUNDS)


def _selecting(selector: Any, candidates: int) -> Contender:
    return Contender(lambda returns: _one(selector, returns[0]), _returns(1, candidates), _check)


def _check(chosen: list[int]) -> list[int]:
    if len(set(chosen)) != _CHOSEN:
        raise AssertionError(f"expected {_CHOSEN} different candidates, got {chosen}")
    return sorted(chosen)


def _batch(selector: Any, groups: int, candidates: int) -> Contender:
    def check(result: Any) -> list[list[int]]:
        index, found = result
        if not bool(found.all()):
            raise AssertionError("no subset was found where there is one")
        return [_check(row) for row in index.tolist()]

    def call(returns: Tensor) -> Any:
        return selector.select_batch(returns, group_size=_CHOSEN, keep_return_bounds=_BOUNDS)

    return Contender(call, _returns(groups, candidates), check)


def _loop(selector: Any, groups: int, candidates: int) -> Contender:
    def call(returns: Tensor) -> list[list[int]]:
        return [_one(selector, row) for row in returns]

    return Contender(call, _returns(groups, candidates), lambda chosen: [_check(row) for row in chosen])


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    waiting = left_out()
    if "selector" in waiting:
        return []
    table = [
        Row(
            f"selector/C({n},{_CHOSEN})",
            f"selector, balanced, exact: {_CHOSEN} of {n} ({math.comb(n, _CHOSEN):,} subsets)",
            ours=lambda n=n: _selecting(torchrb.MCAdvantageSelector(), n),
            peers=available({"torchrl": lambda n=n: _selecting(_peer(), n)}),
            goals=[faster_than("torchrl", 100)],
            peers_agree=True,
        )
        for n in scale.candidates
    ]
    if waiting:
        return table
    groups, few, n = scale.selector_batch, scale.selector_peer_batch, scale.candidates[0]
    name = f"torchrl, {few} groups one by one, time x{groups // few}"

    def theirs() -> Contender:
        contender = _loop(_peer(), few, n)
        contender.times = groups // few
        return contender

    table.append(
        Row(
            "selector/batch",
            f"selector, balanced, exact: {_CHOSEN} of {n}, {groups:,} groups in one call",
            ours=lambda: _batch(torchrb.MCAdvantageSelector(), groups, n),
            peers={name: theirs} if available({"torchrl": theirs}) else {},
            goals=[faster_than(name, 100)],
            at_most=20,
        )
    )
    return table
