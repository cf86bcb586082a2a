"""What each strategy may draw from one group, found by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A record of a group: its slot, when it was written, its reward."""

    slot: int
    stamp: int
    reward: float | int


def is_valid(row: Row, strategy: str) -> bool:
    """Whether a row is drawn before those that are not."""
    if strategy == "reward":
        return not math.isnan(row.reward)
    return strategy != "variance" or math.isfinite(row.reward)


def spread(rows: Sequence[Row]) -> tuple[float, float]:
    """What `variance` maximizes, up to a constant factor: the variance, then the total."""
    least = min(row.reward for row in rows)
    x = [float(row.reward - least) for row in rows]
    return len(x) * sum(v * v for v in x) - sum(x) ** 2, sum(row.reward for row in rows)


def assert_group(strategy: str, group: Sequence[Row], drawn: Sequence[int], used: Sequence[int] = ()) -> None:
    """Hold the slots drawn from one group, in batch order, against the rule of the strategy.

    ``used``: slots of the group that earlier places of the batch took, when the group is drawn again.
    """
    k, by_slot = len(drawn), {row.slot: row for row in group}
    assert set(drawn) <= by_slot.keys(), "a row of another group was drawn"
    rows = [by_slot[slot] for slot in drawn]
    distinct, repeats = rows[: len(group)], rows[len(group) :]
    assert len({row.slot for row in distinct}) == len(distinct), "a row was repeated before all were used"
    valid = [row for row in group if is_valid(row, strategy)]
    assert all(is_valid(row, strategy) for row in repeats) or not valid, "a row without a valid reward was repeated"
    took = sum(is_valid(row, strategy) for row in distinct)
    assert took == min(k, len(valid)), "a valid row was left out for one that is not"
    assert all(is_valid(row, strategy) for row in distinct[:took]), "valid rows come first"
    if used:
        fresh = sum(row.slot not in used for row in distinct[:took])
        assert fresh == min(took, sum(row.slot not in used for row in valid)), "an unused row was left out"
        return

    best = distinct[:took]
    if strategy == "recency":
        assert best == sorted(valid, key=lambda row: row.stamp)[len(valid) - took :], "not the newest, oldest first"
    elif strategy == "reward":
        assert best == sorted(valid, key=lambda row: (-row.reward, -row.stamp, row.slot))[:took], "not the highest"
    elif strategy == "variance" and took:
        assert [row.reward for row in best] == sorted(row.reward for row in best), "not ascending"
        widest = max(spread(subset) for subset in itertools.combinations(valid, took))
        assert spread(best) == widest, f"{spread(best)} is not the widest, {widest}"
