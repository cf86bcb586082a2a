"""The plain-torch twin of every op: what serves where no kernel was compiled, and what every kernel is tested against.

Written to be read beside ``schemas.py``, which holds the contracts; speed comes second here.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import torch
from torch import Tensor

from torchrb.ops import reference_returns, rng, schemas
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_STAMP,
    CONTROL_WRITES,
    HEADER_BYTES,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
)

_PATCH_MASK = (1 << STAMP_SHIFT) - 1
_RANDOM, _RECENCY, _REWARD, _VARIANCE = range(len(schemas.STRATEGIES))
_INT64_MAX, _INT64_MIN = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min


# --- rows -----------------------------------------------------------------------------------------------------------


def _header(tables: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Views of all slot words and all stamps."""
    header = tables[0][:, :HEADER_BYTES].view(torch.int64)
    return header[:, 0], header[:, 1]


def _cells(tables: list[Tensor], layout: list[int], leaf: int) -> Tensor:
    """A leaf of all rows, as bytes ``[capacity, bytes]``, a view."""
    table, offset, nbytes = layout[3 * leaf : 3 * leaf + 3]
    return tables[table][:, offset : offset + nbytes]


def _as_bytes(values: Tensor) -> Tensor:
    """``[n, ...]`` to ``[n, bytes]``."""
    per_row = values.shape[1:].numel()
    if values.numel() == 0:
        return values.new_empty((values.shape[0], per_row * values.element_size()), dtype=torch.uint8)
    return values.detach().contiguous().view(values.shape[0], per_row).view(torch.uint8)


def _typed(cells: Tensor, template: Tensor) -> Tensor:
    """Bytes ``[n, bytes]`` as ``[n, *shape]`` of the template ``[0, *shape]``; the inverse of `_as_bytes`."""
    shape = (cells.shape[0], *template.shape[1:])
    return cells.view(template.dtype).view(shape) if cells.shape[1] else template.new_empty(shape)


def _store(tables: list[Tensor], layout: list[int], slots: Tensor, values: list[Tensor], rows: Tensor) -> None:
    """Copy ``values[leaf][rows]`` to ``slots[rows]``; these slots are distinct."""
    for leaf, value in enumerate(values):
        _cells(tables, layout, leaf)[slots[rows]] = _as_bytes(value)[rows]


def _note(journal: Tensor, control: Tensor, slots: Tensor) -> None:
    """Append slots to the journal; of more than fit, the last."""
    head, size = control[CONTROL_JOURNAL].clone(), journal.shape[0]
    kept = slots[max(0, slots.shape[0] - size) :]
    first = head + slots.shape[0] - kept.shape[0]
    journal[(first + torch.arange(kept.shape[0], device=slots.device)) % size] = kept
    control[CONTROL_JOURNAL] += slots.shape[0]


def _repeats(slots: Tensor) -> tuple[Tensor, Tensor]:
    """For each row: how many earlier rows have its slot, and whether it is the last row that has."""
    n = slots.shape[0]
    order = torch.argsort(slots, stable=True)
    ordered, place = slots[order], torch.arange(n, device=slots.device)
    starts = torch.ones(n, dtype=torch.bool, device=slots.device)
    starts[1:] = ordered[1:] != ordered[:-1]
    earlier, last = torch.empty_like(slots), torch.empty_like(starts)
    earlier[order] = place - torch.cummax(torch.where(starts, place, 0), 0).values if n else place
    last[order] = torch.cat([starts[1:], starts.new_ones(min(n, 1))])
    return earlier, last


def _renew(
    tables: list[Tensor], control: Tensor, slots: Tensor, rows: Tensor, stamps: Tensor
) -> tuple[Tensor, Tensor]:
    """Step the words of ``slots[rows]`` once for each such row. Returns each row's own generation, and which rows'
    content stays (the last one for each slot); a row outside ``rows`` gets -1 and does not stay."""
    words, all_stamps = _header(tables)
    kept = slots[rows]
    earlier, last = _repeats(kept)
    counts = (words[kept] >> SLOT_COUNT_SHIFT) + 1 + earlier
    words[kept[last]] = (counts[last] << SLOT_COUNT_SHIFT) | SLOT_LIVE
    all_stamps[kept[last]] = stamps[rows][last] << STAMP_SHIFT
    control[CONTROL_STAMP] += slots.shape[0]
    generations, stays = torch.full_like(slots, -1), torch.zeros_like(rows)
    generations[rows], stays[rows] = counts - 1, last
    return generations, stays


def _patch(tables: list[Tensor], slots: Tensor) -> None:
    """Step the patch counts in these slots' stamps; the slots are distinct."""
    _, stamps = _header(tables)
    kept = stamps[slots]
    stamps[slots] = (kept & ~_PATCH_MASK) | ((kept + 1) & _PATCH_MASK)


def append_rows_(tables, control, journal, layout, values, num_rows):
    capacity = tables[0].shape[0]
    steps = torch.arange(num_rows, device=control.device)
    slots = (control[CONTROL_CURSOR] + steps) % capacity
    everywhere = torch.ones_like(slots, dtype=torch.bool)
    generations, stays = _renew(tables, control, slots, everywhere, control[CONTROL_STAMP] + steps)
    _store(tables, layout, slots, values, stays)
    _note(journal, control, slots)
    cursor = control[CONTROL_CURSOR] + num_rows
    control[CONTROL_LENGTH] = torch.maximum(control[CONTROL_LENGTH], cursor.clamp(max=capacity))
    control[CONTROL_CURSOR] = cursor % capacity
    control[CONTROL_WRITES] += num_rows
    return slots, generations


def write_rows_(tables, control, journal, layout, slots, values, renew):
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    if renew:
        stamps = control[CONTROL_STAMP] + torch.arange(slots.shape[0], device=slots.device)
        generations, stays = _renew(tables, control, slots, inside, stamps)
        reached = torch.cat([control[CONTROL_LENGTH : CONTROL_LENGTH + 1], slots[inside] + 1])
        control[CONTROL_LENGTH] = reached.max()
    else:
        words, _ = _header(tables)
        stays = inside & _repeats(slots)[1]
        generations = torch.where(inside, (words[slots.clamp(0, capacity - 1)] >> SLOT_COUNT_SHIFT) - 1, -1)
        _patch(tables, slots[stays])
    _store(tables, layout, slots, values, stays)
    _note(journal, control, slots[inside])
    return generations


def read_rows(tables, layout, templates, slots):
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    safe = torch.where(inside, slots, 0)
    counts = _header(tables)[0][safe] >> SLOT_COUNT_SHIFT
    written = inside & (counts > 0)
    leaves = []
    for leaf, template in enumerate(templates):
        cells = _cells(tables, layout, leaf)[safe]
        cells[~written] = 0
        leaves.append(_typed(cells, template))
    return leaves, torch.where(written, counts - 1, -1)


def _is_nan(x: Tensor) -> Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def update_rows_if_(
    tables, control, journal, layout, slots, generations, values, version_leaf, version, require_newer
):
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    safe = torch.where(inside, slots, 0)
    words = _header(tables)[0][safe]
    live = inside & ((words & SLOT_LIVE) != 0) & ((words >> SLOT_COUNT_SHIFT) - 1 == generations)
    status = torch.where(live, schemas.UPDATED, schemas.STALE).to(torch.uint8)

    if version is None:
        wins = torch.zeros_like(live)
        wins[live] = _repeats(slots[live])[1]
        status[live & ~wins] = schemas.SUPERSEDED
    else:
        stored = _cells(tables, version_leaf, 0)[safe].view(version.dtype).view(-1)
        score, least = _sortable(version), _sortable(stored)  # torch does not compare every dtype
        newer = (score > least) if require_newer else (score >= least)
        accepted = live & ~_is_nan(version) & (newer | _is_nan(stored))
        # Sorting by version, then stably by slot, puts each record's winner last among its rows.
        candidates = torch.nonzero(accepted).view(-1)
        by_version = candidates[torch.argsort(score[candidates], stable=True)]
        wins = torch.zeros_like(live)
        wins[by_version] = _repeats(slots[by_version])[1]
        status[live & ~wins] = schemas.VERSION_REJECTED
        _store(tables, version_leaf, slots, [version], wins)
    _store(tables, layout, slots, values, wins)
    _patch(tables, slots[wins])
    _note(journal, control, slots[wins])
    return status


def clear_rows_(tables, control, journal, reset_writes):
    words, _ = _header(tables)
    live = (words & SLOT_LIVE) != 0
    words[live] = ((words[live] >> SLOT_COUNT_SHIFT) + 1) << SLOT_COUNT_SHIFT
    _note(journal, control, torch.nonzero(live).view(-1))
    control[CONTROL_CURSOR] = 0
    control[CONTROL_LENGTH] = 0
    if reset_writes:
        control[CONTROL_WRITES] = 0


# --- draws ----------------------------------------------------------------------------------------------------------


def draw_uniform(seed, control, num):
    bits = rng.random64(seed, rng.UNIFORM, torch.arange(num, device=control.device))
    return rng.below(bits, control[CONTROL_LENGTH])


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


def group_index_update_(keys, links, control, journal, position, tables, key_leaf, key_template):
    capacity, num_words = keys.shape
    head, ring = int(control[CONTROL_JOURNAL]), journal.shape[0]
    if position < 0 or head - position > ring:
        slots = torch.arange(capacity, device=keys.device)
    else:
        slots = journal[torch.arange(position, head, device=keys.device) % ring]
    visited = slots.shape[0]
    slots = torch.unique(slots[(slots >= 0) & (slots < capacity)])
    cells = _typed(_cells(tables, key_leaf, 0)[slots], key_template).view(slots.shape[0], num_words)
    if cells.is_floating_point():
        wide = cells.to(torch.float64)
        words, comparable = torch.where(wide == 0, 0.0, wide).view(torch.int64), ~wide.isnan().any(dim=1)
    else:
        words, comparable = cells.to(torch.int64), torch.ones_like(slots, dtype=torch.bool)
    live = (_header(tables)[0][slots] & SLOT_LIVE) != 0
    state = links[:capacity]
    state[slots] = torch.where(live, torch.where(comparable, _INSIDE, _OUTCAST), _OUTSIDE).to(torch.int32)
    keys[slots] = words

    inside = torch.nonzero(state == _INSIDE).view(-1)
    sizes = torch.diff(_grouped(keys[inside], inside)[1])
    outcasts = torch.nonzero(state == _OUTCAST).view(-1).tolist()
    counts = [head, sizes.shape[0], int((sizes == 1).sum()), outcasts[0] if outcasts else -1, visited]
    return torch.tensor(counts, dtype=torch.int64, device=keys.device)


def _reward_column(tables: list[Tensor], reward_leaf: list[int], template: Tensor, slots: Tensor) -> Tensor:
    """Rewards of ``slots``: their own values when of one element, else the float64 mean summed in index order."""
    rewards = _cells(tables, reward_leaf, 0)[slots].view(template.dtype).view(slots.shape[0], -1)
    if rewards.shape[1] == 1:
        return rewards[:, 0]
    total = torch.zeros(slots.shape[0], dtype=torch.float64, device=slots.device)
    for element in range(rewards.shape[1]):
        total = total + rewards[:, element].to(torch.float64)
    return total / rewards.shape[1]


def _sortable(rewards: Tensor) -> Tensor:
    """int64 in the order of the rewards, exactly: number > -inf > NaN, -0.0 equal to 0.0."""
    if not rewards.is_floating_point():
        return rewards.to(torch.int64)
    wide = rewards.to(torch.float64)
    bits = torch.where(wide == 0, 0.0, wide).view(torch.int64)
    return torch.where(wide.isnan(), _INT64_MIN, torch.where(bits < 0, bits ^ _INT64_MAX, bits))


def _offset_from(smallest: float | int, value: float | int) -> float:
    """``value - smallest`` as float64; exact before rounding for integers."""
    return float(value - smallest)


def _widest_subset(rows: list[tuple], k: int) -> list[tuple]:
    """``k`` of the rows (score, stamp, slot, reward) with the greatest variance; contract in ``schemas.py``."""
    ascending = sorted(rows, key=lambda row: (row[0], -row[1], row[2]))
    descending = sorted(rows, key=lambda row: (-row[0], -row[1], row[2]))
    smallest = ascending[0][3]
    # Sums of the i smallest and of the j largest. The subset of greatest variance is i smallest and k - i largest.
    sums = []
    for ordered in (ascending, descending):
        x = [_offset_from(smallest, row[3]) for row in ordered[:k]]
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


def _select(rows: list[tuple], k: int, strategy: int, used: set[int]) -> list[int]:
    """``min(k, len(rows))`` distinct slots of one group, in the order of the batch. Rows: (score, stamp, slot, reward,
    valid). Valid rows before others, then rows the batch has not used before those it has, then the strategy."""
    chosen: list[tuple] = []
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
    seed, keys, links, tables, reward_leaf, reward_template, groups, per_group, strategy
):
    inside = torch.nonzero(links[: keys.shape[0]] == _INSIDE).view(-1)
    members, offsets = _grouped(keys[inside], inside)
    device, available = keys.device, offsets.shape[0] - 1
    ranks = rng.permute(seed, torch.arange(min(groups, available), device=device), available)
    if groups > available:
        extra = torch.arange(groups - available, device=device)
        ranks = torch.cat([ranks, rng.below(rng.random64(seed, rng.EXTRA_GROUPS, extra), available)])
    stamps = _header(tables)[1]

    slots, drawn = [], []
    used: dict[int, set[int]] = {}
    seen: dict[int, int] = {}
    flags = schemas.FEW_GROUPS if groups > available else 0
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
            score = torch.where(valid, _sortable(reward), _INT64_MIN)
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


# --- registration ---------------------------------------------------------------------------------------------------


def _reporting(name: str, twin):
    """On a GPU the twin answers rightly but slowly: say so once instead of letting it pass for the kernel."""

    @functools.wraps(twin)
    def call(*args):
        if any(isinstance(a, Tensor) and a.is_cuda for a in args):
            warnings.warn(
                f"torchrb: {name} has no CUDA kernel here and runs in plain torch, waiting for the device. "
                "Reinstall torchrb where nvcc is present (TORCHRB_CUDA=1) to get it.",
                RuntimeWarning,
                stacklevel=2,
            )
        return twin(*args)

    return call


def _register() -> None:
    for name in schemas.op_names():
        twin = globals().get(name) or getattr(reference_returns, name)
        schemas.library.impl(name, _reporting(name, twin), "CompositeExplicitAutograd")


_register()
