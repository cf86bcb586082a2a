"""Indices of several dimensions: as torch indexes a tensor of the same shape."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrb.storages.grid import is_everything, num_dims, resolve_each, settled_each

CPU = torch.device("cpu")


def rows_at(index: Any, shape: tuple[int, ...]) -> torch.Tensor:
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    parts = settled_each(index, len(shape), CPU, "read")
    where = resolve_each(parts, list(zip(shape, steps, strict=True)), CPU, "read")
    assert len(where.shape) == num_dims(parts)
    assert where.flat.dtype == torch.int64
    return where.flat.view(where.shape)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape and an index of it; tensors in it go together."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    common = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    parts: list[Any] = []
    dim = 0
    while dim < len(shape) and draw(st.integers(0, 5)):
        size = shape[dim]
        numbers = st.integers(-size, size - 1)
        kind = draw(st.sampled_from(["int", "slice", "list", "tensor", "mask", "range"]))
        if kind == "mask" and any(isinstance(part, torch.Tensor | list | range) for part in parts):
            kind = "slice"  # how many it chooses has to go with the tensors
        if kind == "int":
            parts.append(draw(numbers))
        elif kind == "slice":
            ends = st.none() | st.integers(-5, 5)
            parts.append(slice(draw(ends), draw(ends), draw(st.none() | st.integers(1, 3))))
        elif kind == "mask":
            wide = draw(st.integers(1, len(shape) - dim))
            flags = draw(st.lists(st.booleans(), min_size=math.prod(shape[dim : dim + wide]), max_size=None))
            covered = shape[dim : dim + wide]
            parts.append(torch.tensor(flags[: math.prod(covered)]).view(covered))
            return shape, tuple(parts)  # nothing else that would have to go with it
        elif kind == "range":
            parts.append(range(0, 1))
        else:
            chosen = draw(st.lists(numbers, min_size=math.prod(common), max_size=math.prod(common)))
            tensor = torch.tensor(chosen).view(common)
            parts.append(tensor if kind == "tensor" else tensor.tolist())
        dim += 1
    if dim < len(shape) and draw(st.booleans()):
        parts.append(Ellipsis)
    return shape, parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@given(indexed())
@settings(max_examples=300, deadline=None)
def test_an_index_names_what_torch_would_read(case):
    shape, index = case
    table = torch.arange(math.prod(shape)).view(shape)
    parts = index if isinstance(index, tuple) else (index,)
    plain = tuple(torch.tensor(part) if isinstance(part, list | range) else part for part in parts)
    assert torch.equal(rows_at(index, shape), table[plain])


@pytest.mark.parametrize(
    "index",
    [
        (0, slice(None), [0, 1]),
        ([0, 1], slice(None), [1, 0]),
        (slice(None), 0, [1]),
        (Ellipsis, 3),
        (1, Ellipsis, [3, 0]),
        (0, 1, 2, Ellipsis),
    ],
)
def test_where_the_common_dimensions_go(index):
    table = torch.arange(24).view(2, 3, 4)
    plain = tuple(torch.tensor(part) if isinstance(part, list) else part for part in index)
    assert torch.equal(rows_at(index, (2, 3, 4)), table[plain])


@pytest.mark.parametrize(
    ("index", "error", "told"),
    [
        ((0, 0, 0), IndexError, "too many dimensions"),
        ((Ellipsis, Ellipsis), IndexError, "one ellipsis"),
        ((0, 3), IndexError, "dimension 1"),
        ((-3, 0), IndexError, "dimension 0"),
        ((0, [0, 3]), IndexError, "dimension 1"),
        (([0, 1], [0, 1, 2]), IndexError, "must go together"),
        (torch.ones(2, 2, dtype=torch.bool), IndexError, r"shape \[2, 3\]"),
        ((0, torch.ones(2, dtype=torch.bool)), IndexError, "mask"),
        ((True, 0), TypeError, "masks"),
        ((None, 0), TypeError, "index"),
        (("a", 0), TypeError, "index"),
        (1.0, TypeError, "index"),
    ],
)
def test_what_is_no_index(index, error, told):
    with pytest.raises(error, match=told) as caught:
        rows_at(index, (2, 3))
    assert str(caught.value).startswith("read:")


def test_everything_is_a_slice_that_leaves_nothing_out():
    assert is_everything(slice(None), 3) and is_everything(slice(0, 5), 3)
    assert not is_everything(slice(1, None), 3) and not is_everything(slice(None, None, -1), 3)
    assert not is_everything(torch.arange(3), 3)
