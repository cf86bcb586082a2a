"""What a record is survives a way through JSON; a description that somebody else wrote can ask for nothing."""

from __future__ import annotations

import collections
import json
import sys

import pytest
import torch
from tensordict import TensorDict, tensorclass

from torchrb.storages.description import describe, structure_from
from torchrb.storages.records import STORABLE_DTYPES
from torchrb.storages.structure import structure_of

CPU = torch.device("cpu")
Pair = collections.namedtuple("Pair", "tokens score")


@tensorclass
class Rollout:
    tokens: torch.Tensor
    prompt: str


def there_and_back(batch):
    structure = structure_of(batch, CPU, "test")
    told = json.loads(json.dumps(describe(structure, "test")))
    return structure, structure_from(told, CPU, "test")


def _batches():
    x = torch.arange(6).view(3, 2)
    yield x
    yield (x, [x])
    yield [x, {"a": (x,)}]
    yield {"a": x, 30: {"c": (x, [x])}, (1, "b"): x, None: x, True: x, "é": x}
    yield collections.OrderedDict(b=x, a=x)
    yield Pair(x, {"z": Pair(x, x)})
    yield TensorDict(
        {"x": x, "text": ["a", "b", "c"], "deep": TensorDict({"y": x.half(), "none": [None] * 3}, [3])}, [3]
    )
    yield TensorDict({"x": x, "inner": TensorDict({"y": x}, [3, 2]), "empty": TensorDict({}, [3])}, [3])
    yield TensorDict({"x": x}, [3, 2])
    yield Rollout(tokens=x, prompt=["a", "b", "c"], batch_size=[3])
    yield TensorDict({"rollout": Rollout(tokens=x, prompt=["a", "b", "c"], batch_size=[3])}, [3])


@pytest.mark.parametrize("batch", list(_batches()), ids=lambda batch: type(batch).__name__)
def test_records_are_taken_apart_and_put_together_as_before(batch):
    before, after = there_and_back(batch)
    assert after.leaves == before.leaves and after.object_keys == before.object_keys
    rows = after.flatten(batch, CPU, "test")
    built = [structure.build(rows.values, rows.objects, torch.Size([3])) for structure in (before, after)]
    assert type(built[0]) is type(built[1]) is type(batch) and repr(built[0]) == repr(built[1])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(STORABLE_DTYPES, key=str), ids=str)
def test_every_dtype_that_is_stored_can_be_told(dtype):
    before, after = there_and_back({"x": torch.empty((2, 3), dtype=dtype)})
    assert after.leaves == before.leaves and after.leaves[0].dtype == dtype


def test_a_class_that_nobody_would_find_again_is_refused():
    Local = collections.namedtuple("Local", "x")
    with pytest.raises(TypeError, match="nobody would find that class again. Define it at the top of a module"):
        describe(structure_of(Local(torch.zeros(2)), CPU, "test"), "test")


def test_a_class_is_named_and_never_imported(tmp_path, monkeypatch):
    (tmp_path / "not_imported.py").write_text("raise AssertionError('code was run for a file')")
    monkeypatch.syspath_prepend(tmp_path)
    told = {"named": [], "class": ["not_imported", "Pair"]}
    with pytest.raises(TypeError, match="records are of Pair in the module not_imported.*Import that module first"):
        structure_from(told, CPU, "test")
    assert "not_imported" not in sys.modules


@pytest.mark.parametrize("name", [["os", "system"], ["os", "stat_result"], ["builtins", "type"]])
def test_only_classes_of_records_can_be_named(name):
    for kind in ({"tensordict": [], "tail": []}, {"named": [{"tensor": "int8", "shape": []}]}):
        with pytest.raises((TypeError, ValueError)):
            structure_from({**kind, "class": name}, CPU, "test")


@pytest.mark.parametrize(
    "told",
    [
        None, 3, [], {}, {"tensor": "object", "shape": []}, {"tensor": "float32"}, {"tensor": "int8", "shape": [-1]},
        {"tensor": "int8", "shape": ["a"]}, {"tensordict": [["x"]], "tail": []}, {"dict": [[1, 2]], "ordered": False},
        {"list": {"a": 1}}, {"tuple": 3}, {"named": [], "class": "os.system"}, {"object": True},
        {"dict": [], "ordered": 0}, {"tensordict": [["x", {"tensor": "int8", "shape": []}]], "tail": [2**50]},
    ],
)  # fmt: skip
def test_what_is_no_description_is_refused(told):
    with pytest.raises((TypeError, ValueError)):
        structure_from(told, CPU, "test")


def test_endless_nesting_is_refused():
    told = {"tensor": "int8", "shape": []}
    for _ in range(400):
        told = {"list": [told]}
    with pytest.raises(ValueError, match="cannot be read"):
        structure_from(told, CPU, "test")
