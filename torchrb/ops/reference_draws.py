"""The plain-torch twins of the ops that draw: uniformly, and group by group."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from torchrb.ops import rng, schemas
from torchrb.ops.reference_tables import cells_of, header_of, sortable, typed
from torchrb.ops.schemas import CONTROL_JOURNAL, CONTROL_LENGTH, INDEX_POSITION, INDEX_VISITED, SLOT_LIVE

_RANDOM, _RECENCY, _REWARD, _VARIANCE = range(len(schemas.STRATEGIES))
_INT64_MIN = torch.iinfo(torch.int64).min


def draw_uniform(seed: Tensor, control: Tensor, num: int) -> Tensor:
    bits = rng.random64(seed, rng.UNIFORM, torch.arange(num, device=control.device))
    return rng.below(bits, control[CONTROL_LENGTH])


def draw_permuted(seed: Tensor, size: int, first: int, num: int) -> Tensor:
    if min(size, first, num) < 0 or first + num > size:
        raise RuntimeError(
            f"torchrb::draw_permuted: the stretch must lie within the set, got size={size}, first={first}, num={num}."
        )
    return rng.permuted(seed, first, num, size)


def _grouped(keys: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Slots bucketed by their keys ``[n, w]``, in canonical order, and the offset of each group (and the end)."""
    n, num_words = keys.shape
    hashes = torch.zeros_like(slots)
    for word in range(num_words):
        hashes = rng.mix64(hashes ^ keys[:, word])
    # Least significant first, each sort stable: ordered by hash, then by the words, then as the slots came.
    order = torch.arange(n, device=slots.device)
    for column in [*(keys[:, word] for word in reversed(range(num_words))), hashes]:
        order = order[torch.argsort(column[order], stable=True)]
    ordered = keys[order]
    starts = torch.ones(n, dtype=torch.bool, device=slots.device)
    starts[1:] = (ordered[1:] != ordered[:-1]).any(dim=1)
    return slots[order], torch.cat([torch.nonzero(starts).view(-1), starts.new_full((1,), n, dtype=torch.int64)])


# The twin keeps a row's membership where the kernels keep their links, and groups anew when it is asked.
_OUTSIDE, _INSIDE, _OUTCAST = range(3)


def group_index_update_(
    keys: Tensor,
    links: Tensor,
    state: Tensor,
    control: Tensor,
    journal: Tensor,
    tables: list[Tensor],
    key_leaf: list[int],
    key_template: Tensor,
    rebuild: bool,
) -> None:
    capacity, num_words = keys.shape
    position, visited = int(state[INDEX_POSITION]), int(state[INDEX_VISITED])
    head, ring = int(control[CONTROL_JOURNAL]), journal.shape[0]
    if rebuild or head - position > ring:
        slots = torch.arange(capacity, device=keys.device)
    else:
        slots = journal[torch.arange(position, head, device=keys.device) % ring]
    visited += slots.shape[0]
    slots = torch.unique(slots[(slots >= 0) & (slots < capacity)])
    cells = typed(cells_of(tables, key_leaf, 0)[slots], key_template).view(slots.shape[0], num_words)
    if cells.is_floating_point():
        wide = cells.to(torch.float64)
        words, comparable = torch.where(wide == 0, 0.0, wide).view(torch.int64), ~wide.isnan().any(dim=1)
    else:
        words, comparable = cells.to(torch.int64), torch.ones_like(slots, dtype=torch.bool)
    live = (header_of(tables)[0][slots] & SLOT_LIVE) != 0
    membership = links[:capacity]
    membership[slots] = torch.where(live, torch.where(comparable, _INSIDE, _OUTCAST), _OUTSIDE).to(torch.int32)
    keys[slots] = words

    inside = torch.nonzero(membership == _INSIDE).view(-1)
    sizes = torch.diff(_grouped(keys[inside], inside)[1])
    outcasts = torch.nonzero(membership == _OUTCAST).view(-1).tolist()
    counts = [head, sizes.shape[0], int((sizes == 1).sum()), outcasts[0] if outcasts else -1, visited]
    state[: len(counts)] = torch.tensor(counts, dtype=torch.int64, device=keys.device)


def _reward_column(tables: list[Tensor], reward_leaf: list[int], template: Tensor, slots: Tensor) -> Tensor:
    """Rewards of ``slots``: their own values when of one element, else the float64 mean summed in index order."""
    rewards = cells_of(tables, reward_leaf, 0)[slots].view(template.dtype).view(slots.shape[0], -1)
    if rewards.shape[1] == 1:
        return rewards[:, 0]
    total = torch.zeros(slots.shape[0], dtype=torch.float64, device=slots.device)
    for element in range(rewards.shape[1]):
        total = total + rewards[:, element].to(torch.float64)
    return total / rewards.shape[1]


def _offset_from(smallest: float | int, value: float | int, scale: float) -> float:
    """``value - smallest`` as float64; exact before rounding for integers."""
    return float(value - smallest) if isinstance(value, int) else value * scale - smallest * scale


def _scale_of(smallest: float | int, largest: float | int) -> float:
    """A power of two that keeps the squares of differences finite; 1 for all but the largest floats."""
    return 2.0**-600 if max(abs(smallest), abs(largest)) > 2.0**500 else 1.0


def _widest_subset(rows: list[tuple[Any, ...]], k: int) -> list[tuple[Any, ...]]:
    """``k`` of the rows (score, stamp, slot, reward) with the greatest variance; contract in ``schemas.py``."""
    ascending = sorted(rows, key=lambda row: (row[0], -row[1], row[2]))
    descending = sorted(rows, key=lambda row: (-row[0], -row[1], row[2]))
    smallest = ascending[0][3]
    scale = _scale_of(smallest, descending[0][3])
    # Sums of the i smallest and of the j largest. The subset of greatest variance is i smallest and k - i largest.
    sums = []
    for ordered in (ascending, descending):
        x = [_offset_from(smallest, row[3], scale) for row in ordered[:k]]
        sums.append((list(itertools.accumulate(x, initial=0.0)),
                     list(itertools.accumulate((v * v for v in x), initial=0.0))))  # fmt: skip
    (low, low_squares), (high, high_squares) = sums
    best, num_low = None, 0
    for i in range(k + 1):
        total = low[i] + high[k - i]
        merit = (k * (low_squares[i] + high_squares[k - i]) - total * total, total)
        if best is None or merit > best:
            best, num_low = merit, i
    chosen = ascending[:num_low]
    taken = {row[2] for row in chosen}
    return chosen + [row for row in descending if row[2] not in taken][: k - num_low]


def _select(rows: list[tuple[Any, ...]], k: int, strategy: int, used: set[int]) -> list[int]:
    """``min(k, len(rows))`` distinct slots of one group, in the order of the batch. Rows: (score, stamp, slot, reward,
    valid). Valid rows before others, then rows the batch has not used before those it has, then the strategy.
    """
    chosen: list[tuple[Any, ...]] = []
    for valid, unused in ((True, True), (True, False), (False, True), (False, False)):
        pool = [row for row in rows if row[4] == valid and (row[2] not in used) == unused]
        wanted = min(k - len(chosen), len(pool))
        if valid and strategy == _VARIANCE and 0 < wanted < len(pool):
            chosen += _widest_subset(pool, wanted)
        else:
            chosen += sorted(pool, key=lambda row: (-row[0], -row[1], row[2]))[:wanted]
    sign = -1 if strategy in (_RANDOM, _REWARD) else 1
    chosen.sort(key=lambda row: (not row[4], sign * row[0], -row[1], row[2]))
    return [row[2] for row in chosen]


def sample_groups(
    seed: Tensor,
    keys: Tensor,
    links: Tensor,
    tables: list[Tensor],
    reward_leaf: list[int],
    reward_template: Tensor,
    groups: int,
    per_group: int,
    strategy: int,
) -> tuple[Tensor, Tensor, Tensor]:
    inside = torch.nonzero(links[: keys.shape[0]] == _INSIDE).view(-1)
    members, offsets = _grouped(keys[inside], inside)
    device, available = keys.device, offsets.shape[0] - 1
    ranks = rng.permute(seed, torch.arange(min(groups, available), device=device), available)
    if groups > available:
        extra = torch.arange(groups - available, device=device)
        ranks = torch.cat([ranks, rng.below(rng.random64(seed, rng.EXTRA_GROUPS, extra), available)])
    stamps = header_of(tables)[1]

    slots, drawn = [], []
    used: dict[int, set[int]] = {}
    seen: dict[int, int] = {}
    flags = schemas.FEW_GROUPS if groups > available else 0
    flags |= schemas.NAN_KEY if bool((links[: keys.shape[0]] == _OUTCAST).any()) else 0
    for place, rank in enumerate(ranks.tolist()):
        group = members[offsets[rank] : offsets[rank + 1]]
        occurrence = seen.get(rank, 0)
        seen[rank] = occurrence + 1
        stamp = stamps[group]
        reward, valid = torch.zeros_like(stamp), torch.ones_like(stamp, dtype=torch.bool)
        if strategy in (_REWARD, _VARIANCE):
            reward = _reward_column(tables, reward_leaf, reward_template, group)
            if reward.is_floating_point():
                reward = reward.to(torch.float64)
                valid = torch.isfinite(reward) if strategy == _VARIANCE else ~reward.isnan()
            score = torch.where(valid, sortable(reward), _INT64_MIN)
        elif strategy == _RECENCY:
            score = stamp
        else:
            score = rng.random64(seed, rng.FIRST_ROW_STREAM + occurrence, group)
        rows = list(zip(*(x.tolist() for x in (score, stamp, group, reward, valid)), strict=True))
        num_valid = sum(row[4] for row in rows)

        chosen = _select(rows, per_group, strategy, used.setdefault(rank, set()))
        used[rank].update(chosen)
        if len(rows) < per_group:
            flags |= schemas.SHORT_GROUP
            pool = chosen[: num_valid or len(rows)]
            counters = torch.arange(place * per_group + len(rows), (place + 1) * per_group, device=device)
            picks = rng.below(rng.random64(seed, rng.EXTRA_ROWS, counters), len(pool))
            chosen = chosen + [pool[pick] for pick in picks.tolist()]
        if num_valid < min(per_group, len(rows)):
            flags |= schemas.NAN_DRAWN
        slots += chosen
        drawn.append([rank, len(rows), num_valid])
    return (
        torch.tensor(slots, dtype=torch.int64, device=device),
        torch.tensor(drawn, dtype=torch.int64, device=device).view(groups, 3),
        torch.tensor([flags], dtype=torch.int64, device=device),
    )
