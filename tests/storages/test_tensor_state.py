import collections

import pytest
import torch
from tensordict import TensorDict, is_tensorclass, tensorclass

from torchrb import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorStorage
from torchrb.storages.copies import own_copy
from torchrb.storages.tensor_state import Placed


@tensorclass
class Step:
    obs: torch.Tensor
    text: str


DATA = {
    "tensor": torch.arange(12).view(4, 3),
    "scalar": torch.arange(4.0),
    "empty rows": torch.zeros(4, 0, 3),
    "pytree": {"a": torch.arange(4), 3: (torch.zeros(4, 2), [torch.ones(4, dtype=torch.bool)])},
    "tensordict": TensorDict({"z": torch.arange(4), "a": {"b": torch.zeros(4, 100), "t": ["x", "é", None, ""]}}, [4]),
    "two dimensions": TensorDict({"a": torch.arange(8).view(4, 2)}, [4, 2]),
    "dtypes": TensorDict(
        {
            str(d): torch.ones(4, 3).to(d)
            for d in (torch.bfloat16, torch.uint64, torch.bool, torch.complex64, torch.int8)
        },
        [4],
    ),
    "tensorclass": Step(obs=torch.arange(4), text="t", batch_size=[4]),
}
MAKE = {
    "packed": lambda data, capacity: LazyTensorStorage(capacity),
    "columns": lambda data, capacity: LazyTensorStorage(capacity, layout="columns"),
    "memmap": lambda data, capacity: LazyMemmapStorage(capacity),
    "auto": lambda data, capacity: LazyTensorStorage(capacity, device="auto"),
    "adopted": lambda data, capacity: TensorStorage(own_copy(data)),
}  # fmt: skip


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if is_tensorclass(one) and type(one) is type(other):
        one, other = one.to_tensordict(), other.to_tensordict()
    if type(one) is not type(other) or one.batch_size != other.batch_size or one.keys() != other.keys():
        return False
    return all(one[key].tolist() == other[key].tolist() for key in one.keys(True, True))


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("source", MAKE)
@pytest.mark.parametrize("target", MAKE)
def test_any_storage_of_tensors_takes_up_the_state_of_any_other(tmp_path, data, source, target):
    storage, new = MAKE[source](data, 5), MAKE[target](data, 4)
    storage.clear()
    storage.append(data)
    if source == "adopted" or target == "adopted":
        storage.dumps(tmp_path)
        new.loads(tmp_path)
    else:
        new.load_state_dict(storage.state_dict())
    assert len(new) == 4 and same(new[:], storage[:])
    new.append(storage[:2])
    assert len(new) == 4 and same(new[:][:2] if not isinstance(data, dict) else new[:2], storage[:2])


def test_fields_in_another_order_are_the_same_fields(tmp_path):
    one, other = LazyTensorStorage(4), LazyTensorStorage(4)
    one.append(TensorDict({"a": torch.arange(3), "b": torch.ones(3, 2), "s": ["x"] * 3, "t": ["y"] * 3}, [3]))
    other.append(TensorDict({"t": ["0"] * 4, "b": torch.zeros(4, 2), "s": ["1"] * 4, "a": torch.zeros(4).long()}, [4]))
    for way in range(2):
        if way:
            one.dumps(tmp_path)
            other.loads(tmp_path)
        else:
            other.load_state_dict(one.state_dict())
        assert other[:]["a"].tolist() == [0, 1, 2] and other[1]["s"] == "x" and other[1]["t"] == "y"
    other.append(TensorDict({"t": ["z"], "b": torch.zeros(1, 2), "s": ["1"], "a": torch.zeros(1).long()}, [1]))
    other.dumps(tmp_path)  # in a layout of its own, so all of it
    one.loads(tmp_path)
    assert one[:]["a"].tolist() == [0, 1, 2, 0] and one[3]["t"] == "z"


def test_containers_that_cannot_be_saved_are_named():
    rb = ReplayBuffer(storage=LazyTensorStorage(4))
    rb.extend(collections.OrderedDict(a=torch.arange(3)))
    with pytest.raises(TypeError, match="OrderedDict"):
        rb.state_dict()


def test_rows_are_read_into_memory_that_becomes_the_table(tmp_path):
    storage = LazyTensorStorage(3000)
    storage.append(torch.randn(2500, 200))
    storage.dumps(tmp_path)
    new = LazyTensorStorage(4000)
    made = []
    placed = Placed(4000)
    new._placed = lambda: lambda dtype, shape: made.append(placed(dtype, shape)) or made[-1]
    new._placed = lambda: placed
    new.loads(tmp_path)
    assert (new[:] == storage[:]).all() and new.tables[0].shape == (4000, storage.tables[0].shape[1])
    assert placed.table_of(new.tables[0]) is None  # it was taken
    assert not new.tables[0][2500:].any()


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, [3, 4]), (torch.uint8, [3]), (torch.uint8, [9, 4])])
def test_memory_for_a_table_is_only_given_for_rows_that_fit(dtype, shape):
    assert Placed(8)(dtype, shape) is None
    rows = Placed(8)(torch.uint8, [3, 4])
    assert rows.shape == (3, 4)


def test_shorter_than_before_nothing_is_left_of_the_others():
    storage = TensorStorage(torch.arange(5))
    storage.clear()
    storage.append(torch.arange(2))
    state = storage.state_dict()
    storage.append(torch.arange(10, 13))
    storage.load_state_dict(state)
    assert storage[:].tolist() == [0, 1]
    assert storage.generations(torch.arange(5)).tolist()[2:] == [-1, -1, -1]
