"""Storages over tensors that exist already."""

from __future__ import annotations

import pytest
import torch

from tests.cases import DTYPES, RECORDS, filled, plain
from torchrb import TensorStorage


@pytest.mark.parametrize("kind", RECORDS)
def test_existing_rows_are_records_from_the_start(kind):
    storage = TensorStorage(RECORDS[kind](range(4)))
    assert len(storage) == storage.max_size == 4
    assert storage.write_count == 0 and storage.cursor == 0
    assert plain(storage[:]) == plain(RECORDS[kind](range(4)))
    assert storage.generations(torch.arange(4)).tolist() == [0] * 4
    storage.append(RECORDS[kind]([9]))
    assert plain(storage[:]) == plain(RECORDS[kind]([9, 1, 2, 3]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_existing_tensors_are_adopted_and_show_writes(dtype):
    mine = {"x": filled(range(4), dtype, (2,)), "y": filled(range(4), dtype)}
    storage = TensorStorage(mine)
    storage.append({"x": filled([9], dtype, (2,)), "y": filled([9], dtype)})
    assert plain(mine["x"]) == plain(filled([9, 1, 2, 3], dtype, (2,)))
    mine["y"].copy_(filled(range(10, 14), dtype))
    assert plain(storage[:]["y"]) == plain(mine["y"])
    assert storage[:]["y"].data_ptr() != mine["y"].data_ptr()


def test_tensors_that_are_not_contiguous_are_copied_and_a_graph_is_not_kept():
    mine = torch.arange(8.0).view(2, 4).t()
    leaf = torch.arange(4.0, requires_grad=True)
    storage = TensorStorage({"x": mine, "y": leaf * 1})
    storage.append({"x": torch.zeros(1, 2), "y": torch.zeros(1)})
    assert mine[0].tolist() == [0.0, 4.0]
    assert not storage[:]["y"].requires_grad


@pytest.mark.parametrize("kwargs", [{"max_size": 3}, {"max_size": 5}])
def test_a_size_that_is_not_that_of_the_rows_is_an_error(kwargs):
    with pytest.raises(ValueError, match="max_size must be the 4 rows of the data"):
        TensorStorage({"x": torch.arange(4)}, **kwargs)
    assert len(TensorStorage({"x": torch.arange(4)}, max_size=4)) == 4
