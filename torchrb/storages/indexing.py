"""From whatever a user puts between brackets to slots."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Slots(NamedTuple):
    """Slots, int64 ``[n]``, and the shape they were asked in: ``()`` for a single record."""

    flat: Tensor
    shape: torch.Size


def settled(index: Any, device: torch.device, call: str) -> slice | Tensor:
    """An index as a slice of ints or a tensor of integers or bools. Whatever code of the user's own an index brings
    (``__len__``, ``__getitem__``, ``__index__``) runs here, so a caller asks for the length afterwards.
    """
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if index is Ellipsis:
        return slice(None)
    if isinstance(index, slice):
        try:
            return slice(*(x if x is None else operator.index(x) for x in (index.start, index.stop, index.step)))
        except TypeError as error:
            raise TypeError(f"{call}: a slice must be made of integers, got {index!r}.") from error
    if isinstance(index, range):
        index = torch.arange(index.start, index.stop, index.step) if len(index) else []
    if isinstance(index, tuple | str) or not isinstance(index, int | np.integer | np.ndarray | Tensor | Sequence):
        raise TypeError(f"{call}: expected an int, slice, range, list, array or tensor as index, got {index!r}.")
    try:
        slots = torch.as_tensor(index, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{call}: {index!r} is not an index ({error}).") from error
    if slots.numel() == 0 and slots.dtype != torch.bool:
        slots = slots.to(torch.int64)
    if slots.is_floating_point() or slots.is_complex():
        raise TypeError(f"{call}: expected integers as index, got {slots.dtype}.")
    return slots


def is_single(index: slice | Tensor) -> bool:
    """Whether a settled index names one record rather than a batch."""
    return isinstance(index, Tensor) and index.dim() == 0


def resolve(index: Any, length: int | Tensor, device: torch.device, call: str) -> Slots:
    """Turn an int, slice, range, list, array, tensor or boolean mask into slots below ``length``.

    Negative numbers count from the end. Errors: IndexError for a slot at or past ``length`` (nothing is stored there)
    and for a mask of another length; TypeError for anything that is not an index. On a GPU ``length`` is a tensor,
    read only for what cannot do without (slices, masks); a slot past it becomes -1, which names no record.
    """
    plain = settled(index, device, call)
    if isinstance(plain, slice):
        chosen = range(*plain.indices(int(length)))
        slots = torch.arange(chosen.start, chosen.stop if len(chosen) else chosen.start, chosen.step, device=device)
    else:
        slots = plain
    if slots.dtype == torch.bool:
        if slots.shape != (int(length),):
            raise IndexError(f"{call}: a mask must have shape [{length}], as many as are stored, got {[*slots.shape]}.")
        slots = torch.nonzero(slots).view(-1)
    shape, unsigned, slots = slots.shape, slots.dtype == torch.uint64, slots.to(torch.int64).reshape(-1)
    if unsigned:  # what would wrap round is past any length
        slots = torch.where(slots < 0, torch.iinfo(torch.int64).max, slots)
    if slots.device.type == "cpu" and slots.numel():
        low, high = slots.aminmax()
        if int(high) >= length or int(low) < -length:
            wrong = int(high) if int(high) >= length else int(low)
            raise IndexError(f"{call}: index {wrong} is out of range, {length} records are stored.")
        if int(low) >= 0:
            return Slots(slots, shape)
    slots = torch.where(slots < 0, slots + length, slots)
    return Slots(slots if isinstance(length, int) else torch.where(slots >= length, -1, slots), shape)
