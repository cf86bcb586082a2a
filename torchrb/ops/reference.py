"""The plain-torch twin of every op: what serves where no kernel was compiled, and what every kernel is tested against.

Written to be read beside ``schemas.py``, which holds the contracts; speed comes second here. This file has the ops that
move rows; ``reference_draws.py`` those that draw, ``reference_priorities.py`` those that keep priorities and draw by
them, ``reference_returns.py`` those that turn a group into gradients.
"""

from __future__ import annotations

import collections
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchrb.ops import schemas
from torchrb.ops.reference_draws import draw_permuted, draw_uniform, group_index_update_, sample_groups
from torchrb.ops.reference_priorities import draw_priorities, update_priorities_
from torchrb.ops.reference_returns import balanced_subset, group_advantage
from torchrb.ops.reference_tables import cells_of, counts_from, header_of, sortable, typed
from torchrb.ops.schemas import (
    CONTROL_CLEARS,
    CONTROL_CURSOR,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_STAMP,
    CONTROL_WRITES,
    SLOT_BUSY,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
)

_PATCH_MASK = (1 << STAMP_SHIFT) - 1

__all__ = [
    "append_rows_",
    "balanced_subset",
    "clear_rows_",
    "draw_permuted",
    "draw_priorities",
    "draw_uniform",
    "group_advantage",
    "group_index_update_",
    "read_rows",
    "sample_groups",
    "update_priorities_",
    "update_rows_if_",
    "write_rows_",
]


# --- rows -----------------------------------------------------------------------------------------------------------

# Writes that are prepared first and then all carried out: tensor, rows of it, new values.
_Writes = list[tuple[Tensor, tuple[Tensor], Tensor]]


def _commit(writes: _Writes) -> None:
    """Carry writes out in one call of C code: between two lines of Python a signal handler may raise, in here not, so a
    twin writes all or nothing as a kernel does.
    """
    targets, rows, values = zip(*writes, strict=True)
    collections.deque(map(Tensor.index_put_, targets, rows, values), maxlen=0)


def _as_bytes(values: Tensor) -> Tensor:
    """``[n, ...]`` to ``[n, bytes]``."""
    per_row = values.shape[1:].numel()
    if values.numel() == 0:
        return values.new_empty((values.shape[0], per_row * values.element_size()), dtype=torch.uint8)
    return values.detach().contiguous().view(values.shape[0], per_row).view(torch.uint8)


def _store(tables: list[Tensor], layout: list[int], slots: Tensor, values: list[Tensor], rows: Tensor) -> _Writes:
    """Copy ``values[leaf][rows]`` to ``slots[rows]``; these slots are distinct."""
    return [
        (cells_of(tables, layout, leaf), (slots[rows],), _as_bytes(value)[rows]) for leaf, value in enumerate(values)
    ]


def _note(journal: Tensor, counters: Tensor, slots: Tensor) -> _Writes:
    """Append slots to the journal; of more than fit, the last. Moves the position in ``counters``."""
    size = journal.shape[0]
    kept = slots[max(0, slots.shape[0] - size) :]
    first = counters[CONTROL_JOURNAL] + slots.shape[0] - kept.shape[0]
    counters[CONTROL_JOURNAL] += slots.shape[0]
    return [(journal, ((first + torch.arange(kept.shape[0], device=slots.device)) % size,), kept)]


def _publish(control: Tensor, counters: Tensor) -> _Writes:
    """Counters come last: what they count is written then."""
    return [(control, (torch.arange(control.shape[0], device=control.device),), counters)]


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


def _held(tables: list[Tensor], slots: Tensor, words_after: Tensor, writes: _Writes) -> _Writes:
    """Writes to rows that say that they are busy meanwhile, so that whoever is killed in between leaves a sign."""
    words, _ = header_of(tables)
    return [(words, (slots,), words_after | SLOT_BUSY), *writes, (words, (slots,), words_after)]


def _renew(
    tables: list[Tensor], counters: Tensor, slots: Tensor, rows: Tensor, stamps: Tensor
) -> tuple[Tensor, Tensor, Tensor, _Writes]:
    """Step the words of ``slots[rows]`` once for each such row. Returns each row's own generation, which rows' content
    stays (the last one for each slot), the words of these, and the writes of their stamps; a row outside ``rows`` gets
    -1 and does not stay.
    """
    words, all_stamps = header_of(tables)
    kept = slots[rows]
    earlier, last = _repeats(kept)
    counts = counts_from(words[kept], counters) + 1 + earlier
    counters[CONTROL_STAMP] += slots.shape[0]
    generations, stays = torch.full_like(slots, -1), torch.zeros_like(rows)
    generations[rows], stays[rows] = counts - 1, last
    words_after = (counts[last] << SLOT_COUNT_SHIFT) | SLOT_LIVE
    return generations, stays, words_after, [(all_stamps, (kept[last],), stamps[rows][last] << STAMP_SHIFT)]


def _patch(tables: list[Tensor], slots: Tensor) -> tuple[Tensor, _Writes]:
    """Step the patch counts in these slots' stamps; the slots are distinct. Returns their words, which stay, too."""
    words, stamps = header_of(tables)
    kept = stamps[slots]
    return words[slots], [(stamps, (slots,), (kept & ~_PATCH_MASK) | ((kept + 1) & _PATCH_MASK))]


def append_rows_(
    tables: list[Tensor], control: Tensor, journal: Tensor, layout: list[int], values: list[Tensor], num_rows: int
) -> tuple[Tensor, Tensor]:
    capacity = tables[0].shape[0]
    steps = torch.arange(num_rows, device=control.device)
    slots = (control[CONTROL_CURSOR] + steps) % capacity
    everywhere = torch.ones_like(slots, dtype=torch.bool)
    counters = control.clone()
    generations, stays, words, writes = _renew(tables, counters, slots, everywhere, control[CONTROL_STAMP] + steps)
    writes = _held(tables, slots[stays], words, writes + _store(tables, layout, slots, values, stays))
    writes += _note(journal, counters, slots)
    cursor = control[CONTROL_CURSOR] + num_rows
    counters[CONTROL_LENGTH] = torch.maximum(control[CONTROL_LENGTH], cursor.clamp(max=capacity))
    counters[CONTROL_CURSOR] = cursor % capacity
    counters[CONTROL_WRITES] += num_rows
    _commit(writes + _publish(control, counters))
    return slots, generations


def write_rows_(
    tables: list[Tensor],
    control: Tensor,
    journal: Tensor,
    layout: list[int],
    slots: Tensor,
    values: list[Tensor],
    renew: bool,
) -> Tensor:
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    counters = control.clone()
    if renew:
        stamps = control[CONTROL_STAMP] + torch.arange(slots.shape[0], device=slots.device)
        generations, stays, words_after, writes = _renew(tables, counters, slots, inside, stamps)
        reached = torch.cat([control[CONTROL_LENGTH : CONTROL_LENGTH + 1], slots[inside] + 1])
        counters[CONTROL_LENGTH] = reached.max()
    else:
        words, _ = header_of(tables)
        stays = inside & _repeats(slots)[1]
        generations = torch.where(inside, (words[slots.clamp(0, capacity - 1)] >> SLOT_COUNT_SHIFT) - 1, -1)
        words_after, writes = _patch(tables, slots[stays])
    writes = _held(tables, slots[stays], words_after, writes + _store(tables, layout, slots, values, stays))
    writes += _note(journal, counters, slots[inside])
    _commit(writes + _publish(control, counters))
    return generations


def read_rows(
    tables: list[Tensor], layout: list[int], templates: list[Tensor], slots: Tensor
) -> tuple[list[Tensor], Tensor]:
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    safe = torch.where(inside, slots, 0)
    counts = header_of(tables)[0][safe] >> SLOT_COUNT_SHIFT
    written = inside & (counts > 0)
    leaves = []
    for leaf, template in enumerate(templates):
        cells = cells_of(tables, layout, leaf)[safe]
        cells[~written] = 0
        leaves.append(typed(cells, template))
    return leaves, torch.where(written, counts - 1, -1)


def _is_nan(x: Tensor) -> Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def update_rows_if_(
    tables: list[Tensor],
    control: Tensor,
    journal: Tensor,
    layout: list[int],
    slots: Tensor,
    generations: Tensor,
    values: list[Tensor],
    version_leaf: list[int],
    version: Tensor | None,
    require_newer: bool,
) -> Tensor:
    capacity = tables[0].shape[0]
    inside = (slots >= 0) & (slots < capacity)
    safe = torch.where(inside, slots, 0)
    words = header_of(tables)[0][safe]
    live = inside & ((words & SLOT_LIVE) != 0) & ((words >> SLOT_COUNT_SHIFT) - 1 == generations)
    status = torch.where(live, schemas.UPDATED, schemas.STALE).to(torch.uint8)

    if version is None:
        wins = torch.zeros_like(live)
        wins[live] = _repeats(slots[live])[1]
        status[live & ~wins] = schemas.SUPERSEDED
    else:
        stored = cells_of(tables, version_leaf, 0)[safe].view(version.dtype).view(-1)
        score, least = sortable(version), sortable(stored)  # torch does not compare every dtype
        newer = (score > least) if require_newer else (score >= least)
        accepted = live & ~_is_nan(version) & (newer | _is_nan(stored))
        # Sorting by version, then stably by slot, puts each record's winner last among its rows.
        candidates = torch.nonzero(accepted).view(-1)
        by_version = candidates[torch.argsort(score[candidates], stable=True)]
        wins = torch.zeros_like(live)
        wins[by_version] = _repeats(slots[by_version])[1]
        status[live & ~wins] = schemas.VERSION_REJECTED
        layout, values = version_leaf + layout, [version, *values]
    counters = control.clone()
    words_after, writes = _patch(tables, slots[wins])
    writes = _held(tables, slots[wins], words_after, writes + _store(tables, layout, slots, values, wins))
    writes += _note(journal, counters, slots[wins])
    _commit(writes + _publish(control, counters))
    return status


def clear_rows_(tables: list[Tensor], control: Tensor, journal: Tensor, reset_writes: bool) -> None:
    words, _ = header_of(tables)
    live = torch.nonzero((words & SLOT_LIVE) != 0).view(-1)
    counters = control.clone()
    writes: _Writes = [(words, (live,), ((words[live] >> SLOT_COUNT_SHIFT) + 1) << SLOT_COUNT_SHIFT)]
    writes += _note(journal, counters, live)
    counters[CONTROL_CURSOR] = 0
    counters[CONTROL_LENGTH] = 0
    counters[CONTROL_CLEARS] += 1
    if reset_writes:
        counters[CONTROL_WRITES] = 0
    _commit(writes + _publish(control, counters))


# --- registration ---------------------------------------------------------------------------------------------------

_reported = False


def _reporting(name: str, twin: Callable[..., Any]) -> Callable[..., Any]:
    """On a GPU the twin answers rightly but slowly: say so once instead of letting it pass for the kernel."""

    @functools.wraps(twin)
    def call(*args: Any) -> Any:
        global _reported
        if not _reported and any(isinstance(arg, Tensor) and arg.is_cuda for arg in args):
            _reported = True
            warnings.warn(
                f"torchrb: {name} has no CUDA kernel here and runs in plain torch, waiting for the device. "
                "Reinstall torchrb where nvcc is present (TORCHRB_CUDA=1) to get it.",
                RuntimeWarning,
                stacklevel=2,
            )
        return twin(*args)

    return call


for _name in schemas.op_names():
    schemas.library.impl(_name, _reporting(_name, globals()[_name]), "CompositeExplicitAutograd")
