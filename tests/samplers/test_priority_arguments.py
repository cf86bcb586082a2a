"""What may be handed in as slots, priorities and settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torchrb import LazyTensorStorage
from torchrb.samplers.priority_arguments import REDUCTIONS, as_priorities, as_slots, checked_setting, reduced

STORAGE = LazyTensorStorage(8)


@pytest.mark.parametrize(
    "index",
    [[3, 1], torch.tensor([3, 1]), torch.tensor([[3], [1]], dtype=torch.int32), np.array([3, 1]),
     (torch.tensor([3, 1]),), torch.tensor([3, 0, 1])[::2]],
)  # fmt: skip
def test_slots_in_any_form(index):
    slots = as_slots(index, STORAGE, "call")
    assert slots.dtype == torch.int64 and slots.is_contiguous() and slots.tolist() == [3, 1]


def test_slots_that_fit_are_taken_as_they_are():
    slots = torch.tensor([3, 1])
    assert as_slots(slots, STORAGE, "call") is slots
    assert as_slots(5, STORAGE, "call").tolist() == [5] and as_slots([], STORAGE, "call").tolist() == []


@pytest.mark.parametrize("index", [torch.tensor([True]), slice(1), (1, 2), [0.5], torch.tensor([1j])])
def test_what_is_no_slot_is_a_type_error(index):
    with pytest.raises(TypeError, match="call: index must be"):
        as_slots(index, STORAGE, "call")


@pytest.mark.parametrize(
    "priority",
    [[1.0, 2.0], torch.tensor([[1.0], [2.0]]), torch.tensor([1, 2]), np.array([1.0, 2.0]),
     torch.tensor([1.0, 2.0], requires_grad=True)],
)  # fmt: skip
def test_priorities_in_any_form(priority):
    values = as_priorities(priority, torch.tensor([3, 1]), STORAGE)
    assert values.shape == (2,) and values.tolist() == [1.0, 2.0] and not values.requires_grad


def test_one_priority_is_everybodys_and_another_number_an_error():
    assert as_priorities(0.5, torch.arange(3), STORAGE).tolist() == [0.5] * 3
    with pytest.raises(ValueError, match="one number or one for each of 3 slots, got shape"):
        as_priorities([1.0, 2.0], torch.arange(3), STORAGE)
    with pytest.raises(TypeError, match="real numbers"):
        as_priorities(torch.tensor([True]), torch.arange(1), STORAGE)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_setting_is_a_finite_number_of_at_least_0(value):
    assert checked_setting("alpha", 0) == 0.0
    with pytest.raises(ValueError, match="alpha must be a finite number"):
        checked_setting("alpha", value)
    with pytest.raises(TypeError, match="alpha must be a number"):
        checked_setting("alpha", None)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_one_number_is_itself_none_is_an_error_and_nan_stays(reduction):
    assert reduced(torch.tensor([[3.0], [2.0]]), False, reduction, "call").tolist() == [3.0, 2.0]
    assert reduced(torch.tensor(3.0), True, reduction, "call").tolist() == [3.0]
    assert reduced(torch.empty(0, 4), False, reduction, "call").shape == (0,)
    assert reduced(torch.tensor([[math.nan, 1.0, 2.0]]), False, reduction, "call").isnan().all()
    with pytest.raises(ValueError, match="at least one number"):
        reduced(torch.empty(2, 0), False, reduction, "call")
