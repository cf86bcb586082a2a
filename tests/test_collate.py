"""Records that stack become a batch; others stay the list they are."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tests.cases import DTYPES, RECORDS, TENSORDICTS, filled, plain
from torchrb.collate import stack_records

Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("kind", TENSORDICTS)
def test_tensordicts_stack(kind):
    batch = RECORDS[kind](range(3))
    assert plain(stack_records([batch[i] for i in range(3)])) == plain(batch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_stack(dtype):
    batch = filled(range(3), dtype, (2,))
    assert plain(stack_records(list(batch.unbind(0)))) == plain(batch)


@pytest.mark.parametrize("records", [[1, 2], [1.5, 2.5], [True, False], [1j, 2j], [np.float32(1), np.float32(2)]])
def test_numbers_of_one_type_become_a_tensor(records):
    assert stack_records(records).tolist() == records


def test_arrays_become_tensors():
    assert torch.equal(stack_records([np.arange(2), np.arange(2) + 1]), torch.tensor([[0, 1], [1, 2]]))


@pytest.mark.parametrize(
    "wrap", [lambda x, y: {"a": x, "b": [y]}, lambda x, y: (x, {"y": y}), Pair, lambda x, y: [x, (y,)]]
)
def test_pytrees_stack_leaf_by_leaf(wrap):
    x, y = filled(range(3), torch.int16, (2,)), [1, 2, 3]
    got = stack_records([wrap(x[i], y[i]) for i in range(3)])
    assert type(got) is type(wrap(0, 0)) and plain(got) == plain(wrap(x, torch.tensor(y)))


@pytest.mark.parametrize(
    "records",
    [
        ["a", "b"],
        [None, None],
        [1, "a"],
        [1, 2.0],
        [True, 1],
        [torch.ones(1), torch.ones(2)],
        [torch.ones(1), 1],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": "x"}],
        [(1, 2), (1,)],
        [{}, {}],
        [object(), object()],
        [{1}, {2}],
    ],
)
def test_what_does_not_stack_stays_a_list(records):
    assert stack_records(records) is records


@pytest.mark.parametrize("other", [[], torch.ones(2), {"a": 1}, "text", None, (1, 2)])
def test_what_is_no_list_of_records_is_left_alone(other):
    assert stack_records(other) is other
