"""How far counts may stray from what chance allows, exactly, at a stated rate of false alarms.

Seeds are fixed in the tests that use this, so a correct generator that passes once passes always; the rate says how
unlucky the choice of seeds would have to be, and how large a fault goes unseen.
"""

from __future__ import annotations

import math

from torch import Tensor

# Of one `assert_even`: by the counts one by one, and again by all together.
FALSE_ALARM = 1e-7


def binomial_bounds(trials: int, chance: float, alarm: float) -> tuple[int, int]:
    """The narrowest counts ``low <= count <= high`` that leave at most half of ``alarm`` to each side, exactly."""
    log_p, log_q = math.log(chance), math.log1p(-chance)

    def mass(count: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        return math.exp(ways + count * log_p + (trials - count) * log_q)

    low, below = 0, mass(0)
    while below <= alarm / 2:
        low += 1
        below += mass(low)
    high, above = trials, mass(trials)
    while above <= alarm / 2:
        high -= 1
        above += mass(high)
    return low, high


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The chance of a chi-square variable above a value: the closed sums for even and for odd degrees of freedom."""
    half, offset = statistic / 2, degrees % 2 / 2
    total = math.erfc(math.sqrt(half)) if offset else 0.0
    term = math.exp(-half) * half**offset / math.gamma(1 + offset)
    for step in range(degrees // 2):
        total += term
        term *= half / (step + 1 + offset)
    return total


def assert_even(counts: Tensor, trials: int, chance: float | None = None) -> None:
    """Each count is one of ``trials`` successes of ``chance`` (default: of exactly one cell each trial).

    One by one: exact binomial bounds, the alarm shared among the cells. All together, where each trial falls into one
    cell: chi-square, whose approximation wants some 5 a cell; there must be 20. Each fails a true generator with a
    chance of at most `FALSE_ALARM`.
    """
    cells = counts.reshape(-1)
    exclusive = chance is None
    chance = 1 / len(cells) if chance is None else chance
    assert trials * chance >= 20, "too few trials to tell anything"
    low, high = binomial_bounds(trials, chance, FALSE_ALARM / len(cells))
    least, most = int(cells.min()), int(cells.max())
    assert low <= least and most <= high, f"counts from {least} to {most}, allowed are {low} to {high}"
    if exclusive:
        assert int(cells.sum()) == trials
        expected = trials * chance
        statistic = float(((cells.double() - expected) ** 2 / expected).sum())
        tail = chi_square_tail(statistic, len(cells) - 1)
        assert tail >= FALSE_ALARM, f"chi-square {statistic} of {len(cells) - 1} degrees: one in {1 / tail:.0f}"
