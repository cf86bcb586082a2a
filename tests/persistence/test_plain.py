import collections
import json
import math

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack, tensorclass

from torchrb.persistence import copied, plain, restored


@tensorclass
class Rollout:
    tokens: torch.Tensor
    text: str


def there_and_back(value):
    return restored(plain(value, "here"), "there")


def is_plain(tree):
    if isinstance(tree, dict):
        return all(type(key) is str and is_plain(item) for key, item in tree.items())
    if isinstance(tree, list):
        return all(map(is_plain, tree))
    return type(tree) in (str, int, float, bool, type(None), torch.Tensor)


VALUES = [
    None, True, 0, -(2**70), 1.5, math.inf, "", "é\ud800\0", 1 - 2j, [], (), {}, [1, [2, (3,)]],
    {"a": 1, 2: "b", (3, None): {"type": "dict"}, "$": {"$$": []}, None: (), 1.5: True},
    {"type": "tuple", "items": [1]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_come_back_in_type_and_value(value):
    tree = plain(value, "here")
    assert is_plain(tree)
    assert repr(there_and_back(value)) == repr(value)
    assert repr(restored(json.loads(json.dumps(tree)), "there")) == repr(value)
    assert math.isnan(there_and_back([math.nan])[0])


def test_tensors_are_their_own_without_a_graph():
    tensor = torch.arange(3.0, requires_grad=True)
    made = there_and_back({"a": [tensor * 1, torch.nn.Parameter(tensor.detach())]})["a"]
    assert made[0].tolist() == [0, 1, 2] and not made[0].requires_grad
    assert type(made[1]) is torch.Tensor and made[1].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize(
    "td",
    [
        TensorDict({}, [3]),
        TensorDict({"a": torch.zeros(2, 3), "b": {"c": torch.ones(2, 0), "d": TensorDict({}, [2, 4])}}, [2]),
        TensorDict({"a": torch.tensor(1)}, device="cpu"),
        TensorDict({"s": NonTensorStack("x", None), "t": NonTensorData([1, "y"], batch_size=[2])}, [2]),
        TensorDict({"s": NonTensorData({"k": (1,)})}),
        TensorDict({"s": NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))}, [2, 2]),
        lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)]),
        lazy_stack([TensorDict({"a": torch.full((3,), n)}, [3]) for n in (1, 2)], 1),
    ],
    ids=range(8),
)
def test_tensordicts_come_back(td):
    tree = plain(td, "here")
    assert is_plain(tree)
    made = restored(tree, "there")
    assert type(made) is type(td) and made.batch_size == td.batch_size and made.device == td.device
    rows = zip(made.unbind(0), td.unbind(0), strict=True) if td.batch_dims else [(made, td)]
    for one, other in rows:
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key, value in other.items(True, True):
            if isinstance(value, torch.Tensor):
                assert value.dtype == one[key].dtype and torch.equal(value, one[key])
            else:
                assert one[key] == other[key]


def test_tensorclasses_come_back_where_they_are_known():
    made = there_and_back([Rollout(tokens=torch.arange(2), text="x", batch_size=[])])[0]
    assert isinstance(made, Rollout) and made.tokens.tolist() == [0, 1] and made.text == "x"
    tree = plain(Rollout(tokens=torch.arange(2), text="x", batch_size=[]), "here")
    for name in ("nowhere:Rollout", f"{__name__}:Nothing", "json:JSONDecoder", "builtins:dict", "os"):
        with pytest.raises(ValueError, match="which this process does not know"):
            restored(tree | {"class": name}, "there")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "here is a builtins.object"),
        ([1, {"a": (2, {3})}], r"here\[1\]\['a'\]\[1\] is a builtins.set"),
        ({print: 1}, "here key <built-in function print> is a builtins.builtin"),
        (collections.OrderedDict(a=1), "is a collections.OrderedDict"),
        (collections.namedtuple("Pair", "a b")(1, 2), "Pair"),
        (b"bytes", "is a builtins.bytes"),
        (TensorDict({"a": {"b": NonTensorData(object())}}), r"here\['a'\]\['b'\] is a builtins.object"),
        (torch.zeros(2).to_sparse(), "here is a tensor that cannot be saved: torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "on meta"),
    ],
)
def test_what_has_no_plain_form_is_named_with_its_place(value, told):
    with pytest.raises(TypeError, match=told):
        plain(value, "here")


@pytest.mark.parametrize(
    "tree",
    [
        {}, {"type": "x"}, {"type": []}, {"type": "tuple"}, {"type": "tuple", "items": 3},
        {"type": "dict", "items": [1]},
        {"type": "dict", "items": [[[], 1]]}, {"type": "complex", "parts": [1]}, {"type": "values", "values": [1]},
        {"type": "values", "values": [1], "batch_size": [2]}, {"type": "stack", "dim": 0, "rows": [1]},
        {"type": "stack", "dim": 0, "rows": []},
        {"type": "tensordict", "class": None, "batch_size": [2], "device": None, "entries": [["a", torch.zeros(3)]]},
        {"type": "tensordict", "class": None, "batch_size": [2], "device": None, "entries": [["a", 3]]},
        {"type": "tensordict", "class": None, "batch_size": ["x"], "device": None, "entries": []},
        {"type": "tensordict", "class": 3, "batch_size": [], "device": None, "entries": []},
        [{"type": "tensordict"}], {"type": "tuple", "items": [set()]},
    ],
    ids=range(18),
)  # fmt: skip
def test_what_is_no_saved_value_is_refused(tree):
    with pytest.raises(ValueError, match="there"):
        restored(tree, "there")


def test_a_copy_shares_nothing():
    tree = {"a": [torch.zeros(2, 3).T, 1, "x", None]}
    made = copied(tree)
    made["a"][0].fill_(1)
    made["a"].append(2)
    assert tree["a"][0].sum() == 0 and len(tree["a"]) == 4 and made["a"][0].is_contiguous()
