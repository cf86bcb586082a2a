"""What a call costs when there is next to nothing to move: 3 leaves, 8 rows.

Nothing here waits for memory, so calls are timed in blocks, one behind the other, as a loop makes them.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.buffers import Filled, available, fill, ours, torchrl
from benchmarks.harness import Contender, Row, faster_than, under
from benchmarks.paths.group_draws import STRATEGIES
from benchmarks.workloads import W2, Ring, Scale

_CAPACITY = 4096
_ROWS = 8
_GROUPS = 2
_BLOCK = 50


def _small(make: Any, strategy: str | None) -> Filled:
    return Filled(fill(make(_CAPACITY, strategy=strategy, groups=_GROUPS), W2, _CAPACITY), Ring(W2, _CAPACITY, _ROWS))


def _sampling(make: Any, strategy: str | None) -> Contender:
    """Draw 8 rows: uniformly, or the 4 that a strategy chooses in each of 2 groups of 8."""
    full = _small(make, strategy)

    def check(batch: Any) -> Any:
        numbers = W2.check(batch, full.ring.live)
        if strategy is not None:
            groups = numbers.view(_GROUPS, -1)
            if groups.unique().numel() != _ROWS or not bool((groups // 8 == groups[:, :1] // 8).all()):
                raise AssertionError("expected different rows of one group each")
            if strategy in ("reward", "recency", "variance"):
                _check_choice(groups, strategy)
        return batch

    return Contender(lambda: full.buffer.sample(_ROWS), check=check, block=_BLOCK)


def _check_choice(drawn: torch.Tensor, strategy: str) -> None:
    """The rewards drawn must be those that the strategy promises, found by trying all subsets."""
    for row in drawn:
        members = (row[0] // 8) * 8 + torch.arange(8)
        subsets = torch.combinations(members, row.numel())
        rewards = W2.fields(subsets.view(-1))["reward"].view(subsets.shape).to(torch.float64)
        merit = {
            "reward": rewards.sum(1),
            "recency": subsets.sum(1).to(torch.float64),
            "variance": rewards.var(1, correction=0),
        }[strategy]
        mine = W2.fields(row)["reward"].to(torch.float64)
        got = {
            "reward": mine.sum(),
            "recency": row.sum().to(torch.float64),
            "variance": mine.var(correction=0),
        }[strategy]
        if abs(float(got - merit.max())) > 1e-9:
            raise AssertionError(f"{strategy}: a better subset exists")


def _extending(make: Any) -> Contender:
    full = _small(make, None)
    return Contender(full.buffer.extend, lambda: (full.ring.next(),), block=_BLOCK)


def _op_call() -> Contender:
    """One op with its outputs: read 8 rows of 3 leaves, from Python."""
    full = _small(ours, None)
    columns = [full.buffer.storage.reward_column(key) for key in ("prompt", "reward", "tokens")]
    tables, layout = columns[0].tables, [number for column in columns for number in column.leaf]
    templates = [column.template for column in columns]
    generator = torch.Generator().manual_seed(3)
    read = torch.ops.torchrb.read_rows.default

    def inputs() -> tuple:
        return (torch.randint(_CAPACITY, (_ROWS,), generator=generator),)

    return Contender(lambda slots: read(tables, layout, templates, slots), inputs, block=_BLOCK)


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    blocks = 3 * scale.repeats
    table = [
        Row(
            f"overhead/{strategy or 'uniform'}",
            f"sample(8), 3 leaves: {'uniform' if strategy is None else f'group draw 2 x 4 of 8, {strategy}'}",
            ours=lambda strategy=strategy: _sampling(ours, strategy),
            peers=available({"torchrl": lambda strategy=strategy: _sampling(torchrl, strategy)}),
            goals=[under(0.013 if strategy is None else 0.020), faster_than("torchrl", 2)],
            at_most=blocks,
        )
        for strategy in (None, *STRATEGIES)
    ]
    return [
        *table,
        Row(
            "overhead/extend",
            "extend(8), 3 leaves",
            ours=lambda: _extending(ours),
            peers=available({"torchrl": lambda: _extending(torchrl)}),
            peers_agree=True,
            at_most=blocks,
        ),
        Row(
            "overhead/op",
            "one op call with its outputs (read_rows, 8 rows, 3 leaves)",
            ours=_op_call,
            goals=[under(0.007)],
            at_most=blocks,
        ),
    ]
