"""A copy equals what it was made of and shares nothing with it."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from tensordict import TensorDict, is_tensor_collection

from tests.cases import DTYPES, RECORDS, filled, plain
from torchrb.storages.copies import own_copy

Pair = collections.namedtuple("Pair", "left right")


class Custom:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Custom) and self.value == other.value


VALUES = {
    "none": lambda: None,
    "text": lambda: "é\udc80",
    "bytes": lambda: b"\0",
    "numbers": lambda: [True, 1, 1.5, 2j, np.float32(3)],
    "array": lambda: np.arange(3),
    "list": lambda: [1, ["a", None, [torch.ones(2)]]],
    "tuple": lambda: (torch.ones(2), (), [()]),
    "set": lambda: {1, "a"},
    "dict": lambda: {"a": torch.ones(2), 30: {"b": [None]}},
    "named tuple": lambda: Pair(torch.ones(2), [1]),
    "ordered dict": lambda: collections.OrderedDict(b=torch.ones(1), a=1),
    "object": lambda: Custom([1, 2]),
    "scalar": lambda: torch.tensor(3),
    **{name: lambda make=make: make([1, 2]) for name, make in RECORDS.items()},
}


@pytest.mark.parametrize("name", VALUES)
def test_a_copy_equals_its_source(name):
    value = VALUES[name]()
    copied = own_copy(value)
    assert type(copied) is type(value)
    assert plain(copied) == plain(value)


def tensors_in(value):
    if is_tensor_collection(value):
        return [leaf for leaf in value.values(True, True) if isinstance(leaf, torch.Tensor)]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", VALUES)
def test_a_copy_shares_no_memory(name):
    value = VALUES[name]()
    ours = {t.untyped_storage().data_ptr() for t in tensors_in(own_copy(value)) if t.numel()}
    assert not ours & {t.untyped_storage().data_ptr() for t in tensors_in(value)}


WRAPS = {
    "bare": lambda x: x,
    "list": lambda x: [x],
    "nested": lambda x: {"a": (x,)},
    "named tuple": lambda x: Pair(x, 1),
    "ordered dict": lambda x: collections.OrderedDict(a=x),
    "tensordict": lambda x: TensorDict({"a": x}, []),
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("leaf", [True, False])
def test_a_copy_holds_no_graph(wrap, leaf):
    weight = torch.ones(2, requires_grad=True)
    (copied,) = tensors_in(own_copy(WRAPS[wrap](weight if leaf else weight * 2)))
    assert copied.grad_fn is None and not copied.requires_grad


@dataclasses.dataclass
class Holder:
    tensor: torch.Tensor
    again: torch.Tensor
    rows: TensorDict
    more: list


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: np.array([x, None], dtype=object)])
def test_tensors_inside_objects_are_detached_copies_too(wrap, leaf):
    weight = torch.ones(2, requires_grad=True)
    given = weight if leaf else weight * 2
    value = wrap(Holder(given, given, TensorDict({"a": given}, []), [(given,)]))
    copied = own_copy(value, torch.device("cpu"))
    held = copied if isinstance(copied, Holder) else copied[0]
    tensors = [held.tensor, held.again, held.rows["a"], held.more[0][0]]
    with torch.no_grad():
        given.zero_()
    for tensor in tensors:
        assert tensor.tolist() == ([1.0, 1.0] if leaf else [2.0, 2.0])
        assert tensor.grad_fn is None and not tensor.requires_grad and type(tensor) is torch.Tensor


def test_tensors_inside_objects_go_along_to_a_device():
    held = own_copy(Holder(torch.ones(1), torch.ones(1), TensorDict({}), [torch.ones(1)]), torch.device("meta"))
    assert held.tensor.is_meta and held.more[0].is_meta


class Text(str):
    """A string that carries something that can change."""


def test_a_text_with_attributes_is_an_object():
    text = Text("a")
    text.notes = [1]
    copied = own_copy(text)
    text.notes.append(2)
    assert copied == "a" and type(copied) is Text and copied.notes == [1]


def test_mutable_containers_and_objects_are_apart():
    source = [[1], {"a": [2]}, Custom([3]), np.zeros(1), collections.OrderedDict(a=[4])]
    copied = own_copy(source)
    source[0].append(0), source[1]["a"].append(0), source[2].value.append(0), source[4]["a"].append(0)
    source[3][0] = 9
    assert copied[:3] == [[1], {"a": [2]}, Custom([3])] and copied[3][0] == 0 and copied[4]["a"] == [4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_every_kind_keep_their_values(dtype):
    whole = filled(range(6), dtype, (4,))
    views = [whole.t(), whole[::2, 1:], whole[:1].expand(3, 4), whole[0, 0]]
    views += [whole.conj(), whole.conj().imag] if dtype.is_complex else []
    for view in views:
        assert plain(own_copy(view)) == plain(view)


def test_tensors_go_to_the_device_that_is_asked_for():
    value = own_copy([torch.ones(1), {"a": torch.ones(1)}], torch.device("meta"))
    assert value[0].is_meta and value[1]["a"].is_meta
    assert own_copy(TensorDict({"a": torch.ones(1)}, []), torch.device("meta"))["a"].is_meta
