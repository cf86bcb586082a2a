"""Every leaf of a record has a place of its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import DTYPES, filled
from torchrb.ops.schemas import HEADER_BYTES
from torchrb.storages.records import LeafSpec, columns, packed

CPU = torch.device("cpu")
leaves_of_any_kind = st.lists(
    st.builds(
        lambda dtype, shape: LeafSpec(("leaf",), dtype, torch.Size(shape)),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 7), max_size=3),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=100)
@given(leaves_of_any_kind, st.integers(1, 3))
def test_packed_leaves_are_aligned_apart_and_inside_the_record(leaves, capacity):
    record = packed(leaves, capacity, CPU)
    (base,) = record.tables
    assert base.dtype == torch.uint8 and base.shape[0] == capacity and base.shape[1] % 16 == 0
    assert not base.any()
    taken = [range(HEADER_BYTES)]
    for i, leaf in enumerate(leaves):
        table, offset, nbytes = record.leaf(i)
        assert (table, nbytes) == (0, leaf.nbytes)
        assert offset % (16 if nbytes >= 64 else leaf.dtype.itemsize) == 0
        assert offset + nbytes <= base.shape[1]
        taken.append(range(offset, offset + nbytes))
    places = [byte for place in taken for byte in place]
    assert len(places) == len(set(places))


@settings(deadline=None, max_examples=50)
@given(leaves_of_any_kind)
def test_a_record_wastes_less_than_its_alignment(leaves):
    used = HEADER_BYTES + sum(leaf.nbytes for leaf in leaves)
    wide = sum(leaf.nbytes >= 64 for leaf in leaves)
    assert packed(leaves, 1, CPU).tables[0].shape[1] < used + 16 * (wide + 1) + 16


@settings(deadline=None, max_examples=50)
@given(leaves_of_any_kind.filter(len))
def test_columns_are_the_very_memory_that_is_given(leaves):
    tensors = [filled(range(4), leaf.dtype, leaf.shape) for leaf in leaves]
    record = columns(leaves, tensors)
    assert record.tables[0].shape == (4, HEADER_BYTES)
    for i, (leaf, tensor) in enumerate(zip(leaves, tensors, strict=True)):
        table, offset, nbytes = record.leaf(i)
        assert offset == 0 and nbytes == leaf.nbytes == record.tables[table].shape[1]
        assert not nbytes or record.tables[table].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("make", ["packed", "columns"])
def test_templates_tell_dtype_and_row_shape(make):
    leaves = [LeafSpec(("a",), dtype, torch.Size(shape)) for dtype in DTYPES for shape in ((), (2, 3), (0,))]
    tensors = [filled(range(2), leaf.dtype, leaf.shape) for leaf in leaves]
    record = packed(leaves, 2, CPU) if make == "packed" else columns(leaves, tensors)
    assert [(t.dtype, t.shape[1:]) for t in record.templates] == [(leaf.dtype, leaf.shape) for leaf in leaves]
    assert not any(len(t) for t in record.templates)


def test_a_part_of_the_layout_keeps_the_order_asked_for():
    leaves = [LeafSpec((name,), torch.int32, torch.Size((n,))) for n, name in enumerate("abc")]
    record = packed(leaves, 1, CPU)
    assert record.part([2, 0]) == record.leaf(2) + record.leaf(0)
    assert record.part([]) == []
