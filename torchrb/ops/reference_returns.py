"""The plain-torch twins of the ops that turn a group's returns into a choice and into gradients.

The kernels give the same answers bit for bit, so every float64 sum here has a stated order: values ascending for the
choice, candidates in order for the advantages.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import NamedTuple

import torch
from torch import Tensor

HALF_LIMIT = 2**23  # entries of one half of the candidates that the last resort of `balanced_subset` may hold


# --- balanced_subset ------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """What makes a subset of ``k`` of the ascending ``values`` better than another; ``schemas.py`` says it in words."""

    values: Tensor
    squares: Tensor  # (value - middle)^2: among equal sums their sum orders subsets by their spread
    k: int
    lower: float  # sums between lower and upper, both exclusive, are accepted
    upper: float
    middle: float
    target: float
    rounding: float

    def inside(self, sums: Tensor) -> Tensor:
        return (sums > self.lower) & (sums < self.upper)

    def near(self, nearest: float) -> tuple[float, float]:
        """The sums that count as no farther from the target than ``nearest``."""
        below, above = self.target - nearest, self.target + nearest
        return below - self.rounding * abs(below), above + self.rounding * abs(above)

    def wide(self, widest: float) -> float:
        """The least sum of squares that counts as no less than ``widest``."""
        return widest - 2 * self.rounding * (widest + abs(self.middle) * math.sqrt(self.k * widest))


def _make_rule(values: Tensor, k: int, low: float, high: float, rounding: float) -> _Rule:
    lower = k * (low + rounding * abs(low)) if math.isfinite(low) else low
    upper = k * (high - rounding * abs(high)) if math.isfinite(high) else high
    # An interval that is open to one side ends, when its middle is taken, at the outermost return.
    start = low if math.isfinite(low) else float(values[0])
    end = high if math.isfinite(high) else float(values[-1])
    middle = 0.5 * start + 0.5 * end
    squares = (values - middle) * (values - middle)
    return _Rule(values, squares, k, lower, upper, middle, k * middle, rounding)


def _num_multisets(values: Tensor, k: int) -> Tensor:
    """In how many ways 0, 1, ... ``k`` values can be chosen, candidates of equal value being alike (float64)."""
    ways = torch.zeros(k + 1, dtype=torch.float64)
    ways[0] = 1
    for size in torch.unique_consecutive(values, return_counts=True)[1].tolist():
        longer = ways.clone()
        for taken in range(1, min(size, k) + 1):
            longer[taken:] += ways[: k + 1 - taken]
        ways = longer
    return ways


def _multisets(values: Tensor, squares: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """All choices of ``size`` values, lexicographic: positions ``[num, size]``, sums, sums of squares.

    Of equal values the first ones are taken, so that a position follows an equal, earlier one only if that one is in.
    """
    positions, start = torch.zeros((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    sums, squared = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for missing in range(size - 1, -1, -1):
        count = len(values) - missing - start
        parent = torch.repeat_interleave(count)
        position = torch.arange(len(parent)) - (count.cumsum(0) - count)[parent] + start[parent]
        leads = (position == start[parent]) | (values[position] != values[position - 1])
        parent, position = parent[leads], position[leads]
        positions = torch.cat([positions[parent], position[:, None]], dim=1)
        sums, squared = sums[parent] + values[position], squared[parent] + squares[position]
        start = position + 1
    return positions, sums, squared


def _exact(rule: _Rule, order: Tensor) -> Tensor | None:
    """The best of all subsets, as candidates, ascending."""
    positions, sums, squares = _multisets(rule.values, rule.squares, rule.k)
    keep = rule.inside(sums)
    if not keep.any():
        return None
    distance = (sums - rule.target).abs()
    nearest = float(distance[keep].min())
    begin, end = rule.near(nearest)
    keep &= (distance <= nearest) | ((sums >= begin) & (sums <= end))
    keep &= ~(squares < rule.wide(float(squares[keep].max())))
    chosen = order[positions[keep]].sort(dim=1).values
    for place in range(rule.k):  # the lexicographically first
        chosen = chosen[chosen[:, place] == chosen[:, place].min()]
    return chosen[0]


def _cut(values: Tensor) -> int:
    """After how many values to cut, between two classes, so that the side with more subsets has few."""
    sizes = torch.unique_consecutive(values, return_counts=True)[1].tolist()
    left = list(itertools.accumulate((size + 1.0 for size in sizes), operator.mul, initial=1.0))
    right = list(itertools.accumulate((size + 1.0 for size in reversed(sizes)), operator.mul, initial=1.0))[::-1]
    more = [max(pair) for pair in zip(left, right, strict=True)]
    return sum(sizes[: more.index(min(more))])


class _Half(NamedTuple):
    """The choices of one size from half of the values: ascending sums, and for each the choice of greatest squares."""

    sums: Tensor
    squares: Tensor
    ranks: Tensor  # places among `_multisets`


def _half(values: Tensor, squares: Tensor, size: int) -> _Half:
    _, sums, squared = _multisets(values, squares, size)
    ranks = squared.argsort(descending=True, stable=True)
    ranks = ranks[sums[ranks].argsort(stable=True)]
    ordered = sums[ranks]
    first = torch.ones(len(ranks), dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return _Half(ordered[first], squared[ranks[first]], ranks[first])


class _Halves:
    """The sorted values cut in two; each choice of one half looks up what fits in the other.

    Horowitz, Sahni: Computing Partitions with Applications to the Knapsack Problem, 1974.
    """

    def __init__(self, rule: _Rule):
        self.rule, self.cut = rule, _cut(rule.values)
        self.parts = [(x[: self.cut], x[self.cut :]) for x in (rule.values, rule.squares)]
        rest = len(rule.values) - self.cut
        self.from_first = range(max(0, rule.k - rest), min(rule.k, self.cut) + 1)
        first, second = (_num_multisets(part, rule.k) for part in self.parts[0])
        self.first_entries = sum(float(first[i]) for i in self.from_first)
        self.second_entries = sum(float(second[rule.k - i]) for i in self.from_first)

    def meet(self) -> Tensor | None:
        """Positions of the nearest subset, the widest of those."""
        rule = self.rule
        (values_1, values_2), (squares_1, squares_2) = self.parts
        halves = [
            (size, _half(values_1, squares_1, size), _half(values_2, squares_2, rule.k - size))
            for size in self.from_first
        ]
        nearest, best = math.inf, None  # best: how many from the first part, their rank, the rank of the others
        for size, first, second in halves:
            after = torch.searchsorted(second.sums, rule.target - first.sums)
            for place in (after - 1, after):
                rows = torch.nonzero((place >= 0) & (place < len(second.sums))).view(-1)
                place = place[rows]
                sums = first.sums[rows] + second.sums[place]
                distance = torch.where(rule.inside(sums), (sums - rule.target).abs(), math.inf).tolist()
                if distance and min(distance) < nearest:
                    nearest = min(distance)
                    at = distance.index(nearest)
                    best = (size, first.ranks[rows[at]], second.ranks[place[at]])
        if best is None:
            return None

        low, high = rule.near(nearest)
        widest = -math.inf
        for size, first, second in halves:
            begin = torch.searchsorted(second.sums, low - first.sums)
            end = torch.searchsorted(second.sums, high - first.sums, right=True)
            squares, places = torch.full_like(first.sums, -math.inf), torch.zeros_like(begin)
            for step in range(int((end - begin).max())):
                rows = torch.nonzero(begin + step < end).view(-1)
                place = begin[rows] + step
                total = first.squares[rows] + second.squares[place]
                wins = (total > squares[rows]) & rule.inside(first.sums[rows] + second.sums[place])
                squares[rows[wins]], places[rows[wins]] = total[wins], place[wins]
            if squares.max() > widest:
                widest = float(squares.max())
                at = int(torch.nonzero(squares == widest)[0])
                best = (size, first.ranks[at], second.ranks[places[at]])
        size, rank_1, rank_2 = best
        chosen_1 = _multisets(values_1, squares_1, size)[0][rank_1]
        return torch.cat([chosen_1, self.cut + _multisets(values_2, squares_2, rule.k - size)[0][rank_2]])


def _sum_in_order(values: Tensor) -> float:
    return functools.reduce(operator.add, values.tolist(), 0.0)


def _greedy(rule: _Rule) -> Tensor | None:
    """Positions of a good subset: some of the lowest and the rest of the highest values, then single candidates are
    swapped for as long as the sum gets nearer to the target.
    """
    values, k, n = rule.values, rule.k, len(rule.values)
    starts = [torch.cat([torch.arange(low), torch.arange(n - k + low, n)]) for low in range(k + 1)]
    starts.sort(key=lambda chosen: abs(_sum_in_order(values[chosen]) - rule.target))
    for chosen in starts:
        total = _sum_in_order(values[chosen])
        for _ in range(n):
            free = torch.ones(n, dtype=torch.bool)
            free[chosen] = False
            others = torch.nonzero(free).view(-1)
            distance = ((total - values[chosen])[:, None] + values[others] - rule.target).abs().view(-1)
            out, into = divmod(int(torch.nonzero(distance == distance.min())[0]), len(others))
            swapped = chosen.clone()
            swapped[out] = others[into]
            swapped = swapped.sort().values
            new_total = _sum_in_order(values[swapped])
            if not abs(new_total - rule.target) < abs(total - rule.target):
                break
            chosen, total = swapped, new_total
        if rule.lower < total < rule.upper:
            return chosen
    return None


def _choose(row: Tensor, k: int, low: float, high: float, max_combinations: int, rounding: float) -> Tensor | None:
    """The chosen candidates of one group, ascending, or None."""
    finite = torch.nonzero(torch.isfinite(row)).view(-1)
    order = finite[row[finite].argsort(stable=True)]
    if len(order) < k or not math.isfinite(_sum_in_order(row[order].abs())):
        return None  # sums beyond float64 cannot be compared
    rule = _make_rule(row[order], k, low, high, rounding)
    if _num_multisets(rule.values, k)[k] <= max_combinations:
        return _exact(rule, order)
    halves = _Halves(rule)
    if halves.first_entries + halves.second_entries <= max_combinations:
        chosen = halves.meet()
    else:
        chosen = _greedy(rule)
        if chosen is None and max(halves.first_entries, halves.second_entries) <= HALF_LIMIT:
            chosen = halves.meet()
    return None if chosen is None else order[chosen].sort().values


def balanced_subset(
    returns: Tensor, group_size: int, low: float, high: float, max_combinations: int, rounding: float
) -> tuple[Tensor, Tensor]:
    rows = returns.detach().cpu()
    index = torch.zeros((len(rows), group_size), dtype=torch.int64)
    found = torch.zeros(len(rows), dtype=torch.bool)
    for group, row in enumerate(rows):
        chosen = _choose(row, group_size, low, high, max_combinations, rounding)
        if chosen is not None:
            index[group], found[group] = chosen, True
    return index.to(returns.device), found.to(returns.device)


# --- group_advantage ------------------------------------------------------------------------------------------------

_STD, _MEAN, _LEAVE_ONE_OUT = range(3)  # places in schemas.ADVANTAGE_KINDS


def group_advantage(returns: Tensor, kind: int, epsilon: float) -> Tensor:
    finite = torch.isfinite(returns)
    count = finite.sum(1, dtype=torch.int64).to(torch.float64)
    groups, n = returns.shape
    if n == 0:
        return torch.empty_like(returns)
    # Offsets from the group's first finite return: those of a constant group are exactly 0, and stay so.
    first = finite.to(torch.uint8).argmax(1, keepdim=True)
    wide = torch.where(finite, returns, 0.0).to(torch.float64)
    scale = _advantage_scale(wide.abs().amax(1))
    wide = wide * scale[:, None]
    offset = torch.where(finite, wide - wide.gather(1, first), 0.0)
    total = torch.zeros(groups, dtype=torch.float64, device=returns.device)
    for candidate in range(n):
        total = total + offset[:, candidate]
    deviation = torch.where(finite, offset - (total / count)[:, None], 0.0)
    if kind == _STD:
        squares = torch.zeros_like(total)
        for candidate in range(n):
            squares = squares + deviation[:, candidate] * deviation[:, candidate]
        variance = (squares / (count - 1.0)).tolist()
        std = torch.tensor([math.sqrt(x) for x in variance], dtype=torch.float64, device=returns.device)
        divisor = std + epsilon * scale  # torch.sqrt may be off by the last bit, math.sqrt is not
        advantage = deviation / divisor[:, None]
    elif kind == _LEAVE_ONE_OUT:
        advantage = deviation * count[:, None] / (count - 1.0)[:, None] * (1 / scale)[:, None]
    else:
        advantage = deviation * (1 / scale)[:, None]
    # A constant group with epsilon 0 would be 0 / 0, and one finite return has no others to compare with.
    return torch.where(finite & (deviation != 0) & (count > 1.0)[:, None], advantage, 0.0).to(returns.dtype)


def _advantage_scale(largest: Tensor) -> Tensor:
    """A power of two that keeps sums and squares of offsets within float64's range; 1 for all but extreme returns."""
    large, small = largest > 2.0**480, (largest < 2.0**-450) & (largest > 0)
    return torch.ones_like(largest).masked_fill(large, 2.0**-600).masked_fill(small, 2.0**900)
