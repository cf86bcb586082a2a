"""Indices of several dimensions, as users write them between brackets, to rows of cells.

As torch indexes a tensor, and at a cost that depends on what is asked for, not on what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchrb.storages.indexing import Slots, resolve, settled


def settled_each(index: Any, ndim: int, device: torch.device, call: str) -> list[slice | Tensor]:
    """An index as one settled part for each of ``ndim`` dimensions, or for several where a mask spans them. Whatever
    code of the user's own an index brings runs here. IndexError for an index of more dimensions.
    """
    given = index if isinstance(index, tuple) else (index,)
    if sum(part is Ellipsis for part in given) > 1:
        raise IndexError(f"{call}: an index may hold one ellipsis, got {index!r}.")
    parts: list[Any] = [part if part is Ellipsis else settled(part, device, call) for part in given]
    for part in parts:
        if _is_mask(part) and not part.dim():
            raise TypeError(f"{call}: expected integers, slices or masks as index, got {index!r}.")
    taken = sum(_width(part) for part in parts if part is not Ellipsis)
    if taken > ndim:
        raise IndexError(f"{call}: too many dimensions in index {index!r}, the storage has {ndim}.")
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    place = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return [*parts[:place], *[slice(None)] * (ndim - taken), *parts[place + 1 :]]


def num_dims(parts: Sequence[slice | Tensor]) -> int:
    """How many dimensions such an index gives."""
    tensors = [1 if _is_mask(part) else part.dim() for part in parts if isinstance(part, Tensor)]
    return sum(isinstance(part, slice) for part in parts) + max(tensors, default=0)


def is_everything(part: slice | Tensor, size: int) -> bool:
    """Whether a part of an index is a slice of all, in order."""
    return isinstance(part, slice) and part.indices(size) == (0, size, 1)


def resolve_each(
    parts: Sequence[slice | Tensor], dims: Sequence[tuple[Any, int]], device: torch.device, call: str
) -> Slots:
    """The rows that an index names, and the shape it gives. ``dims``: size and step in rows of each dimension; the size
    of one is a tensor on a GPU, where rows out of range become -1.

    Tensors and masks go together, as torch has it: one after another they give their common dimensions where the first
    of them stands, with a slice between them in front. IndexError for what is out of range, or does not go together.
    """
    slices: list[tuple[int, Tensor]] = []  # how many slices and tensors were before it, and its coordinates
    tensors: list[tuple[int, Tensor]] = []
    base: Any = 0
    place = dim = 0
    for part in parts:
        if _is_mask(part) and part.dim() > 1:  # type: ignore[union-attr]
            covered = dims[dim : dim + part.dim()]  # type: ignore[union-attr]
            sizes = [int(size) for size, _ in covered]
            if [*part.shape] != sizes:  # type: ignore[union-attr]
                raise IndexError(f"{call}: a mask over these dimensions must have shape {sizes}, got {[*part.shape]}.")  # type: ignore[union-attr]
            chosen = torch.nonzero(part).unbind(-1)  # type: ignore[arg-type]
            rows = sum(coordinate * step for coordinate, (_, step) in zip(chosen, covered, strict=True))
            tensors.append((place, rows))  # type: ignore[arg-type]
            place, dim = place + 1, dim + len(covered)
            continue
        size, step = dims[dim]
        found = _within(part, size, dim, device, call)
        rows = found.flat * step
        if device.type == "cuda":
            rows = torch.where((found.flat < 0) | (found.flat >= size), _NOWHERE, rows)
        dim += 1
        if isinstance(part, Tensor) and not part.dim():
            base = base + rows.view(())
            continue
        if isinstance(part, slice):
            slices.append((place, rows))
        else:
            tensors.append((place, rows.view(found.shape)))
        place += 1
    return _laid_out(base, slices, tensors, device, call)


_NOWHERE = -(2**40)  # a row so far below all that no sum brings it back


def _within(part: slice | Tensor, size: Any, dim: int, device: torch.device, call: str) -> Slots:
    try:
        return resolve(part, size, device, call)
    except IndexError as error:
        raise IndexError(f"{error} (In dimension {dim} of the index.)") from error


def _laid_out(
    base: Any, slices: list[tuple[int, Tensor]], tensors: list[tuple[int, Tensor]], device: torch.device, call: str
) -> Slots:
    """The sum of all parts, each along dimensions of its own; tensors along common ones."""
    block = None
    if tensors:
        try:
            block = sum(torch.broadcast_tensors(*(rows for _, rows in tensors)))
        except RuntimeError as error:
            shapes = [[*rows.shape] for _, rows in tensors]
            raise IndexError(f"{call}: tensors in an index must go together, got shapes {shapes}.") from error
        places = [place for place, _ in tensors]
        together = places[-1] - places[0] == len(places) - 1
        where = places[0] if together else -1
        slices = sorted([*slices, (where, block)], key=lambda entry: entry[0])  # type: ignore[list-item]
    total = sum(rows.dim() for _, rows in slices)
    rows, before = base if isinstance(base, Tensor) else torch.zeros((), dtype=torch.int64, device=device), 0
    for _, part in slices:
        after = total - before - part.dim()
        rows = rows + part.view(*[1] * before, *part.shape, *[1] * after)
        before += part.dim()
    if device.type == "cuda":
        rows = rows.clamp(min=-1)
    shape = rows.shape
    return Slots(rows.to(torch.int64).reshape(-1), shape)


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool


def _width(part: slice | Tensor) -> int:
    """How many dimensions a part of an index stands for."""
    return part.dim() if _is_mask(part) else 1  # type: ignore[union-attr]
