"""The plain-torch twins of the ops that keep priorities and draw by them."""

from __future__ import annotations

import collections
from typing import NamedTuple

import torch
from torch import Tensor

from torchrb.ops import rng
from torchrb.ops.priority_tree import PRIORITY_FAN, PriorityTree
from torchrb.ops.reference_tables import header_of
from torchrb.ops.schemas import (
    CONTROL_JOURNAL,
    PRIORITY_DRAWABLE,
    PRIORITY_POSITION,
    PRIORITY_REFUSED,
    PRIORITY_SET,
    PRIORITY_VISITED,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
)

# --- powers ---------------------------------------------------------------------------------------------------------
# By multiplications, additions and one division, which every processor rounds alike; torch's own differ between
# processors. The C++ counterpart is ``csrc/core/power.h``.

_MOST_EXPONENT = 960.0  # of a weight: all of 2**32 together are finite
_LARGEST, _SMALLEST = 2.0**_MOST_EXPONENT, 2.0**-_MOST_EXPONENT
_SQRT_HALF = 0x3FE6A09E667F3BCD  # as bits, what the next three are, too
_BIAS = 1024 << 52
_TWO_52 = 0x4330000000000000
_ROUNDER = 1.5 * 2.0**52  # a double plus this has no room for a fraction
_TWICE_LOG2_E, _LN_2 = 2.8853900817779268, 0.6931471805599453
_ODD = [1.0 / k for k in range(1, 23, 2)]
_FACTORIAL = [1.0, 1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800,
              1 / 39916800, 1 / 479001600, 1 / 6227020800]  # fmt: skip


def log2(x: Tensor) -> Tensor:
    """Of float64 from 2**-960 to 2**960; exact for powers of 2."""
    bits = x.view(torch.int64)
    exponent = (bits - _SQRT_HALF + _BIAS) >> 52  # never negative
    fraction = (bits - ((exponent - 1024) << 52)).view(torch.float64)  # from sqrt(1/2) to sqrt(2)
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    p = torch.full_like(x, _ODD[-1])
    for coefficient in _ODD[-2::-1]:
        p = p * z + coefficient
    whole = (exponent | _TWO_52).view(torch.float64) - (2.0**52 + 1024.0)
    return whole + (s * p) * _TWICE_LOG2_E


def exp2(y: Tensor) -> Tensor:
    """2 to the power of a float64, which is taken as one from -960 to 960."""
    y = y.clamp(-_MOST_EXPONENT, _MOST_EXPONENT)
    rounded = y + _ROUNDER
    r = (y - (rounded - _ROUNDER)) * _LN_2
    p = torch.full_like(y, _FACTORIAL[-1])
    for coefficient in _FACTORIAL[-2::-1]:
        p = p * r + coefficient
    return (p.view(torch.int64) + (rounded.view(torch.int64) << 52)).view(torch.float64)


def power(x: Tensor, exponent: float) -> Tensor:
    """``x ** exponent`` of non-negative float64, within 2**-960 and 2**960; 0 for 0."""
    safe = x.clamp(_SMALLEST, _LARGEST)
    return torch.where(x > 0, safe if exponent == 1.0 else exp2(log2(safe) * exponent), 0.0)


# --- the tree -------------------------------------------------------------------------------------------------------


def _fours(x: Tensor) -> Tensor:
    """Sums of four: ``[..., 4 * n]`` to ``[..., n]``."""
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // 4, 4)
    return (parts[..., 0] + parts[..., 1]) + (parts[..., 2] + parts[..., 3])


class _Root(NamedTuple):
    total: Tensor
    most: Tensor
    least: Tensor


def _ascend(
    tree: Tensor, place: PriorityTree, rows: Tensor, priorities: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, _Root]:
    """What becomes of a tree when distinct ``rows``, ascending, get other priorities and weights: the entries that
    change, their values, and what the root says then.
    """
    idx, sums, most, least = rows, weights, priorities, weights
    changed, values = [], []
    for level in range(len(place.entries)):
        changed += [place.sums[level] + idx, place.most[level] + idx]
        values += [sums, most]
        if level:
            changed.append(place.least[level] + idx)
            values.append(least)
        nodes, node_of = torch.unique_consecutive(idx // PRIORITY_FAN, return_inverse=True)
        if level == len(place.entries) - 1:
            nodes, node_of = nodes.new_zeros(1), torch.zeros_like(idx)
        children = nodes[:, None] * PRIORITY_FAN + torch.arange(PRIORITY_FAN, device=tree.device)
        news = []
        for begin, new in ((place.sums[level], sums), (place.most[level], most), (place.least[level], least)):
            family = tree[begin + children]
            family[node_of, idx % PRIORITY_FAN] = new
            news.append(family)
        sums = _fours(_fours(news[0]))[:, 0]
        most = news[1].amax(1)
        least = (news[2] if level else torch.where(news[2] > 0, news[2], torch.inf)).amin(1)
        idx = nodes
    return torch.cat(changed), torch.cat(values), _Root(sums[0], most[0], least[0])


def update_priorities_(
    tree: Tensor,
    seen: Tensor,
    state: Tensor,
    control: Tensor,
    journal: Tensor,
    tables: list[Tensor],
    slots: Tensor,
    generations: Tensor,
    priorities: Tensor,
    alpha: float,
    eps: float,
    rebuild: bool,
) -> None:
    capacity, device = seen.shape[0], seen.device
    place = PriorityTree(capacity)
    words = header_of(tables)[0]
    position, head, ring = int(state[PRIORITY_POSITION]), int(control[CONTROL_JOURNAL]), journal.shape[0]
    rebuild = rebuild or position < 0
    if rebuild or head - position > ring:
        noted = torch.arange(capacity, device=device)
        visited = capacity
    else:
        noted = journal[torch.arange(position, head, device=device) % ring]
        visited = noted.shape[0]
        noted = torch.unique(noted[(noted >= 0) & (noted < capacity)])

    # Follow. All that is found out is kept aside, so that a call that is cut off has changed nothing.
    kept = tree[place.most[0] : place.most[0] + capacity].clone()
    counts, live = words >> SLOT_COUNT_SHIFT, (words & SLOT_LIVE) != 0
    marks = torch.where(live, counts, -counts)
    others = noted[seen[noted] != marks[noted]]
    kept[others] = -1.0
    left = noted if rebuild else others  # before a rebuild nothing above the rows need be right
    _, _, root = _ascend(tree, place, left, kept[left], torch.zeros_like(kept[left]))
    kept[others] = torch.where(live[others], torch.where(root.most < 0, 1.0, root.most), -1.0)

    # Set.
    wanted = priorities.to(torch.float64)
    inside = (slots >= 0) & (slots < capacity)
    refused = torch.nonzero(~(inside & (wanted >= 0) & (wanted < torch.inf))).view(-1)
    rows = others
    if not refused.shape[0]:
        given = live[slots] & (kept[slots] >= 0)
        if generations.shape[0]:
            given &= counts[slots] - 1 == generations
        for slot, value in zip(slots[given].tolist(), wanted[given].tolist(), strict=True):
            kept[slot] = value
        rows = torch.unique(torch.cat([others, slots[given]]))
    if rebuild:
        rows = noted

    weights = torch.where(kept[rows] < 0, 0.0, power(kept[rows].clamp(min=0) + eps, alpha))
    changed, values, root = _ascend(tree, place, rows, kept[rows], weights)
    told = state.clone()
    told[PRIORITY_POSITION], told[PRIORITY_DRAWABLE] = head, root.total > 0
    told[PRIORITY_VISITED] += visited
    if refused.shape[0]:
        told[PRIORITY_REFUSED] = refused[0] + 1
    elif slots.shape[0]:
        told[PRIORITY_SET] += 1
    # In one call of C code, in the middle of which no signal handler can raise.
    everywhere = torch.arange(state.shape[0], device=device)
    writes = (tree, seen, state), ((changed,), (others,), (everywhere,)), (values, marks[others], told)
    collections.deque(map(Tensor.index_put_, *writes), maxlen=0)


def _choose(parts: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Of four sums ``[n, 4]`` the one that each mass falls into, and what is left of the mass."""
    first = parts[:, 0]
    second = first + parts[:, 1]
    third = second + parts[:, 2]
    before = torch.stack([torch.zeros_like(first), first, second, third], 1)
    chosen = (mass[:, None] >= before[:, 1:]).to(torch.int64)
    chosen = chosen[:, 0] + chosen[:, 1] + chosen[:, 2]
    positive = torch.where(parts > 0, torch.arange(4, device=parts.device), 0)
    last = positive[:, 0].maximum(positive[:, 1]).maximum(positive[:, 2].maximum(positive[:, 3]))
    chosen = chosen.minimum(last)
    return chosen, mass - before.gather(1, chosen[:, None])[:, 0]


def draw_priorities(
    seed: Tensor, masses: Tensor | None, tree: Tensor, capacity: int, num: int, beta: float, wide: bool
) -> tuple[Tensor, Tensor]:
    place, dtype = PriorityTree(capacity), torch.float64 if wide else torch.float32
    top = len(place.entries) - 1
    total = _fours(_fours(tree[place.sums[top] : place.sums[top] + PRIORITY_FAN]))
    if not bool(total > 0):
        return torch.full((num,), -1, device=tree.device), torch.zeros(num, dtype=dtype, device=tree.device)
    if masses is None:
        bits = rng.random64(seed, rng.PRIORITY, torch.arange(num, device=tree.device))
        masses = rng.shift_right(bits, 11).to(torch.float64) * 2.0**-53 * total
    mass = torch.where(masses > 0, masses, 0.0)
    entry = torch.zeros(num, dtype=torch.int64, device=tree.device)
    for level in range(top, -1, -1):
        children = entry[:, None] * PRIORITY_FAN + torch.arange(PRIORITY_FAN, device=tree.device)
        sums = tree[place.sums[level] + children].view(num, 4, 4)
        quarter, mass = _choose(_fours(sums.reshape(num, 16)), mass)
        child, mass = _choose(sums[torch.arange(num, device=tree.device), quarter], mass)
        entry = entry * PRIORITY_FAN + quarter * 4 + child
    lowest = tree[place.least[top] : place.least[top] + PRIORITY_FAN]
    lowest = torch.where(lowest > 0, lowest, torch.inf).amin()
    weights = exp2((log2(tree[place.sums[0] + entry]) - log2(lowest)) * -beta)
    return entry, weights.to(dtype)
