"""What holds of every op, whatever it does: its tensors are on one device, or the call says that they are not."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.ops.cases import Index, Ranked, lay_out, op
from torchrb.ops import schemas


def calls() -> dict[str, tuple]:
    """Good arguments for each op."""
    records = lay_out([(torch.int64, ()), (torch.float32, ())], 4, "packed")
    values = records.batch(random.Random(0), 4)
    ledger = (records.tables, records.control, records.journal)
    slots = torch.arange(4)
    op("append_rows_")(*ledger, records.layout, values, 4)
    index = Index(records, 0)
    index.catch_up()
    return {
        "append_rows_": (*ledger, records.layout, values, 4),
        "write_rows_": (*ledger, records.layout, slots, values, True),
        "read_rows": (records.tables, records.layout, records.templates, slots),
        "update_rows_if_": (*ledger, records.part([1]), slots, slots, values[1:], records.part([0]), slots, True),
        "clear_rows_": (*ledger, True),
        "draw_uniform": (torch.tensor([3]), records.control, 4),
        "draw_permuted": (torch.tensor([3]), 5, 1, 3),
        "group_index_update_": index.update_args(0),
        "sample_groups": index.sample_args(1, 1, 2, "reward", 1),
        "update_priorities_": Ranked(records).update_args(slots, slots.double()),
        "draw_priorities": Ranked(records).draw_args(3, 4),
        "balanced_subset": (torch.rand(2, 4, dtype=torch.float64), 2, 0.2, 0.8, 100, 1e-9),
        "group_advantage": (torch.rand(2, 4), 0, 1e-8),
    }


def tensors_of(args: tuple) -> list[tuple[int, int]]:
    """The place of each tensor: of the argument, and within it."""
    lists = [list(arg) if isinstance(arg, list) else [arg] for arg in args]
    return [(i, j) for i, parts in enumerate(lists) for j, part in enumerate(parts) if isinstance(part, Tensor)]


def moved(args: tuple, places: list[tuple[int, int]]) -> tuple:
    """The arguments with some of their tensors on the meta device."""
    out = [list(arg) if isinstance(arg, list) else arg for arg in args]
    for i, j in places:
        if isinstance(out[i], list):
            out[i][j] = out[i][j].to("meta")
        else:
            out[i] = out[i].to("meta")
    return tuple(out)


def test_every_op_is_called():
    assert set(calls()) == set(schemas.op_names())


@pytest.mark.parametrize("name", schemas.op_names())
def test_one_tensor_without_data_among_others_is_an_error(name):
    args = calls()[name]
    places = tensors_of(args)
    for place in places if len(places) > 1 else []:
        with pytest.raises(RuntimeError, match=f"torchrb::{name}: .* one device, got cpu and meta"):
            op(name)(*moved(args, [place]))


@pytest.mark.parametrize("name", schemas.op_names())
def test_without_any_data_there_are_shapes(name):
    args = calls()[name]
    out = op(name)(*moved(args, tensors_of(args)))
    parts = out if isinstance(out, tuple) else () if out is None else (out,)
    for part in parts:
        assert all(tensor.is_meta for tensor in (part if isinstance(part, list) else [part]))
