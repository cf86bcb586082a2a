import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyStackStorage, ListStorage


def test_records_that_are_loaded_are_the_storages_own(tmp_path):
    storage = ListStorage(5)
    storage.append([torch.zeros(3), {"a": [torch.zeros(2)]}, TensorDict({"x": torch.zeros(1)})])
    state = storage.state_dict()
    new = ListStorage(5)
    new.load_state_dict(state)
    state["rows"][0]["items"][0].fill_(1)
    storage._items[1]["a"][0].fill_(1)
    assert new[0].sum() == 0 and new[1]["a"][0].sum() == 0
    storage.dumps(tmp_path)
    new.loads(tmp_path)
    memory = {new._items[i].untyped_storage().nbytes() for i in (0,)}
    assert memory == {12}  # not a piece of the file's


@pytest.mark.parametrize("num", [1, 1023, 1024, 1025, 3000])
def test_an_unbounded_list_takes_as_much_as_it_is_given(num):
    storage, new = ListStorage(), ListStorage()
    storage.append(list(range(num)))
    new.load_state_dict(storage.state_dict())
    assert new[:] == list(range(num)) and new.cursor == num
    new.append(["more"] * 2000)
    assert new[num - 1 : num + 1] == [num - 1, "more"] and len(new) == num + 2000
    bounded = ListStorage(num)
    bounded.load_state_dict(storage.state_dict())
    assert len(bounded) == num and bounded.cursor == 0
    new.load_state_dict(bounded.state_dict())
    assert new[:] == list(range(num)) and new.cursor == num


def test_a_stack_takes_tensordicts_only():
    storage = ListStorage(5)
    storage.append([TensorDict({"x": torch.zeros(1)}), 3])
    state = storage.state_dict() | {"kind": "tensordicts"}
    new = LazyStackStorage(5)
    with pytest.raises(ValueError, match="must be tensordicts, got a int"):
        new.load_state_dict(state)
    assert len(new) == 0


def test_a_device_is_kept_to():
    storage, new = ListStorage(5), ListStorage(5, device="cpu")
    storage.append([torch.arange(3), TensorDict({"x": torch.zeros(1)})])
    new.load_state_dict(storage.state_dict())
    assert new[1].device == torch.device("cpu") and new[0].tolist() == [0, 1, 2]
