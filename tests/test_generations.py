"""A pair (slot, generation) never names two records."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import STORAGES
from torchrb.generations import generations_at, new_headers, words_of
from torchrb.ops.schemas import HEADER_BYTES, SLOT_LIVE

CAPACITY = 5


def rows(numbers):
    return TensorDict({"n": torch.as_tensor(list(numbers), dtype=torch.int64)}, [len(numbers)])


steps = st.lists(
    st.tuples(st.sampled_from(["append", "append", "write", "clear", "fields"]), st.integers(1, 2 * CAPACITY + 1)),
    max_size=15,
)


@pytest.mark.parametrize("kind", STORAGES)
@settings(deadline=None, max_examples=15)
@given(steps)
def test_no_handle_is_given_out_twice(kind, steps):
    storage, given_out, next_number = STORAGES[kind](CAPACITY), {}, 0
    for what, num in steps:
        numbers = range(next_number, next_number + num)
        if what == "append":
            handles = zip(*(x.tolist() for x in storage.append(rows(numbers))), strict=True)
        elif what == "write" and len(storage):
            slots = torch.arange(num) % len(storage)
            handles = zip(slots.tolist(), storage.write(slots, rows(numbers)).tolist(), strict=True)
        elif what == "fields" and len(storage) and kind != "list":
            before = storage.generations(torch.arange(CAPACITY))
            storage.write_fields(torch.arange(len(storage)), {"n": torch.arange(len(storage))})
            assert torch.equal(storage.generations(torch.arange(CAPACITY)), before)
            continue
        else:
            if what == "clear":
                storage.clear()
            continue
        next_number += num
        for handle, number in zip(handles, numbers, strict=True):
            assert handle not in given_out, f"{handle} named record {given_out[handle]} and now names {number}"
            given_out[handle] = number


@pytest.mark.parametrize("kind", STORAGES)
def test_a_slot_is_live_from_its_write_to_its_clearing(kind):
    storage = STORAGES[kind](CAPACITY)

    def live():
        return torch.nonzero(words_of(storage.tables) & SLOT_LIVE).view(-1).tolist() if storage.tables else []

    assert live() == []
    storage.append(rows(range(3)))
    assert live() == [0, 1, 2]
    storage.append(rows(range(4)))
    assert live() == [0, 1, 2, 3, 4]
    storage.clear()
    assert live() == []
    storage.append(rows([0]))
    assert live() == [0]


def test_headers_start_unwritten():
    headers = [new_headers(3, torch.device("cpu"))]
    assert headers[0].shape == (3, HEADER_BYTES) and headers[0].dtype == torch.uint8
    assert generations_at(headers, torch.arange(3)).tolist() == [-1] * 3
    assert not (words_of(headers) & SLOT_LIVE).any()


@pytest.mark.parametrize("slots", [-1, 5, [[-9, 0], [4, 2**40]], torch.empty(0, 2)])
def test_any_shape_of_slots_in_range_or_not(slots):
    storage = STORAGES["packed"](CAPACITY)
    storage.append(rows(range(7)))
    asked = torch.as_tensor(slots).long()
    told = torch.tensor([1, 1, 0, 0, 0, -1])
    inside = (asked >= 0) & (asked < CAPACITY)
    assert torch.equal(storage.generations(asked), told[torch.where(inside, asked, CAPACITY)])
