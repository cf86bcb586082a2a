"""The plain-torch twins of the ops that turn a group's returns into a choice and into gradients.

The kernels give the same answers bit for bit, so every float64 sum here has a stated order: values ascending for the
choice, candidates in order for the advantages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

HALF_LIMIT = 2**22  # entries of one half of the candidates that the last resort of `balanced_subset` may hold


# --- balanced_subset ------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """What makes a subset of ``k`` of the ascending ``values`` better than another; ``schemas.py`` says it in words."""

    values: np.ndarray
    k: int
    lower: float  # sums between lower and upper, both exclusive, are accepted
    upper: float
    middle: float
    rounding: float

    @property
    def target(self) -> float:
        return self.k * self.middle

    @property
    def squares(self) -> np.ndarray:
        """Among equal sums the sum of these orders subsets by their spread."""
        offset = self.values - self.middle
        return offset * offset

    def inside(self, sums: np.ndarray) -> np.ndarray:
        return (sums > self.lower) & (sums < self.upper)

    def near(self, nearest: float) -> tuple[float, float]:
        """The sums that count as no farther from the target than ``nearest``."""
        below, above = self.target - nearest, self.target + nearest
        return below - self.rounding * abs(below), above + self.rounding * abs(above)

    def wide(self, widest: float) -> float:
        """The least sum of squares that counts as no less than ``widest``."""
        return widest - 2 * self.rounding * (widest + abs(self.middle) * math.sqrt(self.k * widest))


def _make_rule(values: np.ndarray, k: int, low: float, high: float, rounding: float) -> _Rule:
    # An interval that is open to one side ends, when its middle is taken, at the outermost return.
    start, end = low if math.isfinite(low) else values[0], high if math.isfinite(high) else values[-1]
    lower = k * (low + rounding * abs(low)) if math.isfinite(low) else low
    upper = k * (high - rounding * abs(high)) if math.isfinite(high) else high
    return _Rule(values, k, lower, upper, float(0.5 * start + 0.5 * end), rounding)


def _class_sizes(values: np.ndarray) -> list[int]:
    """How many there are of each distinct value."""
    if len(values) == 0:
        return []
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return np.diff(np.append(starts, len(values))).tolist()


def _num_multisets(sizes: list[int], k: int) -> np.ndarray:
    """In how many ways 0, 1, ... ``k`` values can be chosen, candidates of equal value being alike (float64)."""
    ways = np.zeros(k + 1)
    ways[0] = 1
    for size in sizes:
        longer = ways.copy()
        for taken in range(1, min(size, k) + 1):
            longer[taken:] += ways[: k + 1 - taken]
        ways = longer
    return ways


def _multisets(values: np.ndarray, squares: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All choices of ``size`` values, lexicographic: positions ``[num, size]``, sums, sums of squares.

    Of equal values the first ones are taken, so that a position follows an equal, earlier one only if that one is in.
    """
    n = len(values)
    positions, start = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    sums, squared = np.zeros(1), np.zeros(1)
    for missing in range(size - 1, -1, -1):
        count = n - missing - start
        parent = np.repeat(np.arange(len(start)), count)
        position = np.arange(len(parent)) - np.repeat(np.cumsum(count) - count, count) + start[parent]
        leads = (position == start[parent]) | (values[position] != values[position - 1])
        parent, position = parent[leads], position[leads]
        positions = np.concatenate([positions[parent], position[:, None]], axis=1)
        sums, squared = sums[parent] + values[position], squared[parent] + squares[position]
        start = position + 1
    return positions, sums, squared


def _exact(rule: _Rule, order: np.ndarray) -> np.ndarray | None:
    """The best of all subsets, as candidates, ascending."""
    positions, sums, squares = _multisets(rule.values, rule.squares, rule.k)
    keep = rule.inside(sums)
    if not keep.any():
        return None
    distance = np.abs(sums - rule.target)
    nearest = distance[keep].min()
    first, last = rule.near(nearest)
    keep &= (distance <= nearest) | ((sums >= first) & (sums <= last))
    keep &= ~(squares < rule.wide(squares[keep].max()))
    chosen = np.sort(order[positions[keep]], axis=1)
    return chosen[np.lexsort(chosen.T[::-1])[0]]


def _split(sizes: list[int]) -> int:
    """After how many values to cut, between two classes, so that both sides have about as many subsets."""
    left, right, cut = 0, len(sizes), 0
    left_subsets = right_subsets = 1.0
    while left < right:
        if left_subsets <= right_subsets:
            left_subsets *= sizes[left] + 1.0
            cut += sizes[left]
            left += 1
        else:
            right -= 1
            right_subsets *= sizes[right] + 1.0
    return cut


class _Half(NamedTuple):
    """The choices of one size from half of the values: ascending sums, and for each the choice of greatest squares."""

    sums: np.ndarray
    squares: np.ndarray
    ranks: np.ndarray  # places among `_multisets`


def _half(values: np.ndarray, squares: np.ndarray, size: int) -> _Half:
    _, sums, squared = _multisets(values, squares, size)
    ranks = np.lexsort((-squared, sums))
    ordered = sums[ranks]
    ranks = ranks[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
    return _Half(sums[ranks], squared[ranks], ranks)


def _half_entries(rule: _Rule, cut: int) -> tuple[float, float, range]:
    """The number of choices of each half, and how many values may come from the first."""
    n, k = len(rule.values), rule.k
    from_first = range(max(0, k - (n - cut)), min(k, cut) + 1)
    first, second = (_num_multisets(_class_sizes(part), k) for part in (rule.values[:cut], rule.values[cut:]))
    return sum(first[i] for i in from_first), sum(second[k - i] for i in from_first), from_first


def _meet(rule: _Rule, cut: int, from_first: range) -> np.ndarray | None:
    """Positions of the nearest subset, the widest of those: each choice of one half looks up what fits in the other
    (Horowitz, Sahni: Computing Partitions with Applications to the Knapsack Problem, 1974)."""
    parts = [(rule.values[:cut], rule.squares[:cut]), (rule.values[cut:], rule.squares[cut:])]
    halves = [(size, _half(*parts[0], size), _half(*parts[1], rule.k - size)) for size in from_first]

    nearest, best = math.inf, None  # best: (size of the first part, its rank, rank of the second)
    for size, first, second in halves:
        after = np.searchsorted(second.sums, rule.target - first.sums)
        for place in (after - 1, after):
            fits = (place >= 0) & (place < len(second.sums))
            sums = first.sums[fits] + second.sums[place[fits]]
            distance = np.where(rule.inside(sums), np.abs(sums - rule.target), math.inf)
            if len(distance) and distance.min() < nearest:
                at = distance.argmin()
                nearest = distance[at]
                best = (size, first.ranks[fits][at], second.ranks[place[fits][at]])
    if best is None:
        return None

    low, high = rule.near(nearest)
    widest = -math.inf
    for size, first, second in halves:
        begin = np.searchsorted(second.sums, low - first.sums, side="left")
        end = np.searchsorted(second.sums, high - first.sums, side="right")
        squares = np.full(len(first.sums), -math.inf)
        places = np.zeros(len(first.sums), dtype=np.int64)
        for step in range(max(0, (end - begin).max())):
            rows = np.flatnonzero(begin + step < end)
            place = begin[rows] + step
            total = first.squares[rows] + second.squares[place]
            rows_sums = first.sums[rows] + second.sums[place]
            wins = rule.inside(rows_sums) & (total > squares[rows])
            squares[rows[wins]], places[rows[wins]] = total[wins], place[wins]
        at = squares.argmax()
        if squares[at] > widest:
            widest = squares[at]
            best = (size, first.ranks[at], second.ranks[places[at]])
    size, first_rank, second_rank = best
    first_positions = _multisets(*parts[0], size)[0][first_rank]
    return np.concatenate([first_positions, cut + _multisets(*parts[1], rule.k - size)[0][second_rank]])


def _sum_in_order(values: np.ndarray) -> float:
    return float(np.add.accumulate(values)[-1])


def _greedy(rule: _Rule) -> np.ndarray | None:
    """Positions of a good subset: start from the lowest and the highest values, then swap single candidates for as
    long as the sum gets nearer to the target."""
    values, k, n = rule.values, rule.k, len(rule.values)
    starts = [np.concatenate([np.arange(i), np.arange(n - k + i, n)]) for i in range(k + 1)]
    starts.sort(key=lambda chosen: abs(_sum_in_order(values[chosen]) - rule.target))
    for chosen in starts:
        total = _sum_in_order(values[chosen])
        for _ in range(n):
            others = np.setdiff1d(np.arange(n), chosen)
            if len(others) == 0:
                break
            swapped = np.abs((total - values[chosen])[:, None] + values[others][None, :] - rule.target)
            out, into = divmod(int(swapped.argmin()), len(others))
            nearer = np.sort(np.append(np.delete(chosen, out), others[into]))
            new_total = _sum_in_order(values[nearer])
            if not abs(new_total - rule.target) < abs(total - rule.target):
                break
            chosen, total = nearer, new_total
        if rule.inside(total):
            return chosen
    return None


def _choose(row: np.ndarray, k: int, low: float, high: float, max_combinations: int, rounding: float):
    """The chosen candidates of one group, ascending, or None."""
    finite = np.flatnonzero(np.isfinite(row))
    if len(finite) < k:
        return None
    order = finite[np.argsort(row[finite], kind="stable")]
    if not math.isfinite(_sum_in_order(np.abs(row[order]))):
        return None  # sums beyond float64 cannot be compared
    rule = _make_rule(row[order], k, low, high, rounding)
    sizes = _class_sizes(rule.values)
    if _num_multisets(sizes, k)[k] <= max_combinations:
        return _exact(rule, order)
    cut = _split(sizes)
    first, second, from_first = _half_entries(rule, cut)
    if first + second <= max_combinations:
        chosen = _meet(rule, cut, from_first)
    else:
        chosen = _greedy(rule)
        if chosen is None and max(first, second) <= HALF_LIMIT:
            chosen = _meet(rule, cut, from_first)
    return None if chosen is None else np.sort(order[chosen])


def balanced_subset(returns, group_size, low, high, max_combinations, rounding):
    rows = returns.detach().cpu().numpy()
    index = np.zeros((len(rows), group_size), dtype=np.int64)
    found = np.zeros(len(rows), dtype=np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):  # squares may leave float64: they are only compared
        for group, row in enumerate(rows):
            chosen = _choose(row, group_size, low, high, max_combinations, rounding)
            if chosen is not None:
                index[group], found[group] = chosen, True
    return torch.from_numpy(index).to(returns.device), torch.from_numpy(found).to(returns.device)


# --- group_advantage ------------------------------------------------------------------------------------------------

_STD, _MEAN, _LEAVE_ONE_OUT = range(3)  # places in schemas.ADVANTAGE_KINDS


def group_advantage(returns, kind, epsilon):
    finite = torch.isfinite(returns)
    count = finite.sum(1, dtype=torch.int64).to(torch.float64)
    groups, n = returns.shape
    if n == 0:
        return torch.empty_like(returns)
    # Offsets from the group's first finite return: those of a constant group are exactly 0, and stay so.
    first = finite.to(torch.uint8).argmax(1, keepdim=True)
    wide = returns.to(torch.float64)
    offset = torch.where(finite, wide - wide.gather(1, first), 0.0)
    total = torch.zeros(groups, dtype=torch.float64, device=returns.device)
    for candidate in range(n):
        total = total + offset[:, candidate]
    deviation = torch.where(finite, offset - (total / count)[:, None], 0.0)
    if kind == _STD:
        squares = torch.zeros_like(total)
        for candidate in range(n):
            squares = squares + deviation[:, candidate] * deviation[:, candidate]
        scale = torch.sqrt(squares / (count - 1.0)) + epsilon
        advantage = deviation / scale[:, None]
    elif kind == _LEAVE_ONE_OUT:
        advantage = deviation * count[:, None] / (count - 1.0)[:, None]
    else:
        advantage = deviation
    # A constant group with epsilon 0 would be 0 / 0, and one finite return has no others to compare with.
    return torch.where(finite & (deviation != 0) & (count > 1.0)[:, None], advantage, 0.0).to(returns.dtype)
