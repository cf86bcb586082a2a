"""What users hand in as priorities, slots and settings, as ops take it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchrb.ops.schemas import ORDERED_DTYPES
from torchrb.storages.base import Storage
from torchrb.storages.transfer import moved

_COMPARED = ORDERED_DTYPES - {torch.uint16, torch.uint32}  # of these torch has neither an order nor a maximum
REDUCTIONS = ("max", "min", "median", "mean")


def checked_setting(name: str, value: float) -> float:
    """A finite number of at least 0 as a float, or ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"PrioritizedSampler: {name} must be a number, got {value!r}.") from error
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"PrioritizedSampler: {name} must be a finite number of at least 0, got {value!r}.")
    return number


def _fits(value: Any, dtypes: tuple[torch.dtype, ...], device: torch.device) -> bool:
    """Whether an op can take it as it is."""
    return (
        isinstance(value, Tensor)
        and value.dtype in dtypes
        and value.dim() == 1
        and value.device == device
        and value.is_contiguous()
        and not value.requires_grad
    )


def as_slots(index: Any, storage: Storage, call: str) -> Tensor:
    """Slots as int64 ``[n]`` on the storage's device."""
    if _fits(index, (torch.int64,), storage.device):
        return index
    if isinstance(index, tuple):
        if len(index) != 1:
            raise TypeError(f"{call}: index must be slots, got a tuple of {len(index)} indices.")
        index = index[0]
    if isinstance(index, slice):
        raise TypeError(f"{call}: index must be slots, got {index!r}. Use torch.arange.")
    slots = torch.as_tensor(index)
    if slots.dtype == torch.bool:
        raise TypeError(f"{call}: index must be slots, got a mask. Use mask.nonzero().view(-1).")
    if slots.is_floating_point() or slots.is_complex():
        if slots.numel():
            raise TypeError(f"{call}: index must be integers, got {slots.dtype}.")
    return moved(slots.detach().reshape(-1).to(torch.int64), storage.device).contiguous()


def _real(values: Tensor, call: str) -> Tensor:
    """Numbers in a type that torch compares and the ops take; TypeError for what are no real numbers."""
    if values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{call}: priorities must be real numbers, got {values.dtype}.")
    values = values.detach()
    return values if values.dtype in _COMPARED else values.to(torch.float64)


def as_priorities(priority: Any, slots: Tensor, storage: Storage) -> Tensor:
    """Priorities ``[n]`` on the storage's device; one number is everybody's."""
    if _fits(priority, (torch.float32, torch.float64), storage.device) and priority.shape == slots.shape:
        return priority
    values = _real(torch.as_tensor(priority), "update_priority")
    if values.numel() == 1 and slots.shape[0] != 1:
        values = values.reshape(1).expand(slots.shape)
    if values.numel() != slots.shape[0]:
        raise ValueError(
            f"update_priority: priority must be one number or one for each of {slots.shape[0]} slots, got shape "
            f"{[*values.shape]}."
        )
    return moved(values.reshape(-1), storage.device).contiguous()


def reduced(values: Tensor, one: bool, reduction: str, call: str) -> Tensor:
    """One number for each record of ``values`` ``[n, ...]``, or for the ``one`` record that all are of.

    ``reduction``: one of `REDUCTIONS`; of an even number the median is the lower of the two in the middle. ValueError
    when there are no numbers to make one of, TypeError for what are no real numbers.
    """
    values = _real(values, call)
    shape = (1, values.numel()) if one else (values.shape[0], values.shape[1:].numel())
    if not shape[0]:
        return values.reshape(0)
    values = values.reshape(shape)
    if not values.shape[1]:
        raise ValueError(f"{call}: a priority must be made of at least one number for each record, got none.")
    if values.shape[1] == 1:
        return values[:, 0]
    if reduction == "max":
        return values.amax(1)
    if reduction == "min":
        return values.amin(1)
    if reduction == "median":
        return values.median(1).values
    total = values[:, 0].to(torch.float64)
    for element in range(1, values.shape[1]):  # in order: a sum of torch's differs between processors
        total = total + values[:, element]
    return total / values.shape[1]
