"""A conditional update that cannot be carried out says why and has changed nothing."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, buffer
from torchrb import LazyTensorStorage, ReplayBuffer

V = {"version_key": "v", "version": 1}
WRONG = {
    "unknown field": (KeyError, {"patch": {"y": torch.ones(2)}}, "no field 'y' is stored; stored are .*x"),
    "unknown version": (KeyError, {"version_key": "w", "version": 1}, "no field 'w'"),
    "dtype": (ValueError, {"patch": {"x": torch.ones(2)}}, "'x' is stored as torch.int64, got torch.float32"),
    "shape": (ValueError, {"patch": {"x": torch.ones(2, 1).long()}}, r"'x' must have shape \[2\], got \[2, 1\]"),
    "rows": (ValueError, {"patch": {"x": torch.ones(3).long()}}, r"'x' must have shape \[2\], got \[3\]"),
    "no key": (ValueError, {"version": 1}, "got version without version_key"),
    "no version": (ValueError, {"version_key": "v"}, "got version_key without version"),
    "version in patch": (ValueError, {"patch": {"v": torch.ones(2).long()}, **V}, "must not be in patch"),
    "dots": (ValueError, {"version_key": "next.v", "version": 1}, r"by a tuple: \('next', 'v'\)"),
    "version of many": (ValueError, {"version_key": "w3", "version": 1}, "one real number a record"),
    "version of text": (ValueError, {"version_key": "s", "version": 1}, "one real number a record"),
    "version of bools": (ValueError, {"version_key": "b", "version": 1}, "one real number a record"),
    "float for integer": (
        ValueError,
        {**V, "version": 1.5},
        "'v' is stored as torch.int64, got versions of torch.float32",
    ),
    "too large": (ValueError, {"version_key": "i8", "version": 300}, "version 300 does not fit field 'i8'"),
    "too many versions": (ValueError, {**V, "version": torch.ones(3).long()}, "one entry for each of 2 records"),
    "mask of versions": (ValueError, {**V, "version": torch.ones(2) > 0}, "must be a number"),
    "mask": (TypeError, {"index": torch.tensor([True, False])}, "index must hold integers, got a boolean mask"),
    "floats": (TypeError, {"generation": torch.ones(2)}, "generation must hold integers, got torch.float32"),
    "no index": (TypeError, {"index": None}, "index must hold integers, got None"),
    "texts": (TypeError, {"generation": "ab"}, "generation must hold integers, got 'ab'"),
    "ragged": (TypeError, {"index": [[0], [1, 2]]}, "index must hold integers, got "),
    "lengths": (ValueError, {"generation": torch.ones(3).long()}, r"same shape, got \[2\] and \[3\]"),
    "shapes": (ValueError, {"generation": torch.ones(2, 1).long()}, r"same shape, got \[2\] and \[2, 1\]"),
    "no patch": (TypeError, {"patch": [1, 2]}, "expected a mapping or a tensordict, got list"),
    "twice": (ValueError, {"patch": {"x": torch.ones(2).long(), ("x",): torch.ones(2).long()}}, "'x' is named twice"),
}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("case", WRONG)
def test_a_call_that_is_refused_has_changed_nothing(kind, case):
    error, change, message = WRONG[case]
    rb = buffer(kind, 4)
    rows = {"x": torch.arange(4), "v": torch.full((4,), 5), "w3": torch.zeros(4, 3), "s": ["a", "b", "c", "d"]}
    rb.extend(TensorDict({**rows, "b": torch.zeros(4) > 0, "i8": torch.zeros(4, dtype=torch.int8)}, [4]))
    call = {
        "index": torch.tensor([0, 1]),
        "generation": torch.tensor([0, 0]),
        "patch": {"x": torch.tensor([8, 9])},
        **change,
    }
    before, control = [table.clone() for table in rb.storage.tables], rb.storage.control.clone()
    with pytest.raises(error, match=f"update_if_present: .*{message}"):
        rb.update_if_present(**call)
    assert all(torch.equal(a, b) for a, b in zip(before, rb.storage.tables, strict=True))
    assert torch.equal(control, rb.storage.control)


@pytest.mark.parametrize("kind", ["list", "stack"])
def test_a_storage_or_writer_that_cannot_is_a_runtime_error(kind):
    call = {"index": torch.tensor([0]), "generation": torch.tensor([0]), "patch": {"x": torch.tensor([1])}}
    rb = buffer(kind)
    rb.extend(TensorDict({"x": torch.arange(3)}, [3]))
    with pytest.raises(RuntimeError, match="does not support conditional updates. Use LazyTensorStorage"):
        rb.update_if_present(**call)
    rb = ReplayBuffer(storage=LazyTensorStorage(3))
    rb.extend({"x": torch.arange(3)})
    with pytest.raises(RuntimeError, match="does not track generations. Construct it with track_generations=True"):
        rb.update_if_present(**call)
