"""Whatever is between brackets means what it means on a tensor of as many rows, or is an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrb.storages.indexing import resolve

LENGTH = 7
CPU = torch.device("cpu")
ROWS = torch.arange(LENGTH)


def resolved(index, length=LENGTH):
    flat, shape = resolve(index, length, CPU, "call")
    assert flat.dtype == torch.int64 and flat.dim() == 1 and flat.is_contiguous()
    return flat.view(shape)


@settings(deadline=None, max_examples=60)
@given(st.slices(LENGTH))
def test_a_slice_of_any_step_takes_what_a_list_gives(index):
    assert resolved(index).tolist() == list(range(LENGTH))[index]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-LENGTH, LENGTH - 1)))
def test_lists_arrays_and_tensors_of_every_integer_dtype_count_alike(index):
    expected = ROWS[torch.tensor(index, dtype=torch.int64)]
    assert torch.equal(resolved(index), expected)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        assert torch.equal(resolved(torch.tensor(index, dtype=dtype)), expected)
        assert torch.equal(resolved(np.array(index, dtype=str(dtype).removeprefix("torch."))), expected)


@pytest.mark.parametrize("index", [0, -1, LENGTH - 1, -LENGTH, np.int32(3), torch.tensor(2), np.array(5)])
def test_a_single_number_is_one_record(index):
    assert resolved(index).shape == ()
    assert int(resolved(index)) == int(index) % LENGTH


@pytest.mark.parametrize(
    "index", [range(3), range(6, -1, -2), range(0), ..., (2,), (slice(1, 3),), np.array([], dtype=int)]
)
def test_other_ways_to_say_it(index):
    plain = index[0] if isinstance(index, tuple) else list(index) if isinstance(index, range) else index
    assert torch.equal(resolved(index), ROWS[plain] if not isinstance(plain, list) else torch.tensor(plain).long())


def test_an_index_of_several_dimensions_keeps_its_shape():
    index = torch.tensor([[0, -1], [2, 2], [-7, 6]])
    assert torch.equal(resolved(index), ROWS[index])
    assert resolved(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH))
def test_a_mask_takes_the_rows_it_marks(mask):
    expected = [i for i, marked in enumerate(mask) if marked]
    for index in (mask, np.array(mask), torch.tensor(mask)):
        assert resolved(index).tolist() == expected


@pytest.mark.parametrize("length", [0, 1, LENGTH])
@pytest.mark.parametrize("past", [0, 1, 2**40])
def test_a_slot_where_nothing_is_stored_is_an_error(length, past):
    for index in (length + past, -length - 1 - past, [length + past], torch.tensor([[-length - 1 - past]])):
        with pytest.raises(IndexError, match=rf"call: index -?\d+ is out of range, {length} records are stored"):
            resolve(index, length, CPU, "call")


@pytest.mark.parametrize("mask", [[True], torch.ones(LENGTH + 1, dtype=torch.bool), torch.ones(LENGTH, 1) > 0, True])
def test_a_mask_of_another_length_is_an_error(mask):
    with pytest.raises(IndexError, match=rf"mask must have shape \[{LENGTH}\]"):
        resolve(mask, LENGTH, CPU, "call")


@pytest.mark.parametrize(
    "index", [1.0, [0.5], torch.ones(2), torch.ones(1) * 1j, "ab", None, {1}, (1, 2), [[1], [2, 3]]]
)
def test_what_is_no_index_is_an_error(index):
    with pytest.raises(TypeError, match="call: "):
        resolve(index, LENGTH, CPU, "call")


def test_slots_and_negative_numbers_do_not_reach_the_caller_s_tensor():
    index = torch.tensor([-1, 0])
    assert resolved(index).tolist() == [LENGTH - 1, 0]
    assert index.tolist() == [-1, 0]


def test_an_unsigned_number_does_not_wrap_round_to_the_last_record():
    with pytest.raises(IndexError, match="out of range"):
        resolved(torch.tensor([2**64 - 1], dtype=torch.uint64))
    assert resolved(torch.tensor([2], dtype=torch.uint64)).tolist() == [2]
