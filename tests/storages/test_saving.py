import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyStackStorage, LazyTensorStorage, ListStorage, ReplayBuffer, TensorStorage
from torchrb.ops.schemas import EPOCH_COUNTS
from torchrb.storages.saving import new_epoch

KINDS = {
    "packed": lambda: LazyTensorStorage(6),
    "columns": lambda: LazyTensorStorage(6, layout="columns"),
    "adopted": lambda: TensorStorage(rows(0, 6)),
    "stack": lambda: LazyStackStorage(6),
    "list": lambda: ListStorage(6),
    "unbounded": lambda: ListStorage(),
}


def rows(first, num):
    return TensorDict({"x": torch.arange(first, first + num), "y": torch.zeros(num, 300)}, [num])


def xs(storage):
    return [int(storage[i]["x"]) for i in range(len(storage))]


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def filled(make):
    storage = make()
    storage.clear()
    storage.append(rows(0, 8))
    return storage


def test_a_storage_alone_is_saved_and_loaded(tmp_path, make):
    storage, new = filled(make), make()
    storage.dumps(tmp_path)
    new.loads(tmp_path)
    assert xs(new) == xs(storage) and new.cursor == storage.cursor and new.write_count == storage.write_count
    slots = torch.arange(6)
    assert (new.generations(slots) == storage.generations(slots)).all()


def test_a_storage_takes_its_records_out_of_a_buffers_dump(tmp_path, make):
    storage, new = filled(make), make()
    ReplayBuffer(storage=storage).dumps(tmp_path)
    new.loads(tmp_path)
    assert xs(new) == xs(storage)


def test_a_load_counts_a_clearing_and_moves_the_journal_past_its_ring(make):
    storage = filled(make)
    state, clears, position = storage.state_dict(), storage.num_clears, storage.journal_position
    storage.load_state_dict(state)
    assert storage.num_clears == clears + 1
    assert storage.journal_position > position + storage.journal.shape[0]


def test_what_is_planned_is_not_done_yet(make):
    storage = filled(make)
    state = storage.state_dict()
    storage.append(rows(20, 3))
    before = xs(storage)
    with storage.lock:
        put = storage.plan_load(state)
        assert xs(storage) == before
        put()
    assert xs(storage) != before


def test_dumps_in_turn_to_several_places(tmp_path, make):
    storage = filled(make)
    for turn in range(12):
        storage.append(rows(100 * turn, 1 + turn % 3))
        storage.dumps(tmp_path / str(turn % 6))
        new = make()
        new.loads(tmp_path / str(turn % 6))
        assert xs(new) == xs(storage)


def test_a_load_is_gone_on_from(tmp_path, make):
    """After a load, a dump to the same place writes what was written since, and no more."""
    storage = filled(make)
    storage.dumps(tmp_path)
    new = make()
    new.loads(tmp_path)
    new.append(rows(50, 1))
    before = {path.name for path in tmp_path.iterdir()}
    new.dumps(tmp_path)
    after = [path for path in tmp_path.iterdir() if path.name not in before]
    if not isinstance(new, TensorStorage):
        assert sum(path.stat().st_size for path in after) < 2 * 1200 + 2500
    again = make()
    again.loads(tmp_path)
    assert xs(again) == xs(new)


def test_hooks_change_the_data_on_its_way(tmp_path):
    seen = []

    def first(data):
        seen.append(data["x"].tolist())
        return {"half": data["x"][::2], "note": ("é", None)}

    storage = LazyTensorStorage(6)
    storage.append(rows(0, 4))
    storage.register_save_hook(first)
    storage.register_save_hook(lambda data: data | {"more": [1]})
    storage.dumps(tmp_path)
    assert seen == [[0, 1, 2, 3]]
    new = LazyTensorStorage(6)
    new.register_load_hook(lambda data: seen.append(data) or data)
    new.register_load_hook(lambda data: TensorDict({"x": data["half"].repeat_interleave(2)}, [4]))
    new.loads(tmp_path)
    assert seen[1]["half"].tolist() == [0, 2] and seen[1]["note"] == ("é", None) and seen[1]["more"] == [1]
    assert xs(new) == [0, 0, 2, 2]
    slots = torch.arange(4)
    assert (new.generations(slots) == storage.generations(slots)).all() and new.cursor == 4


def test_a_load_hook_works_on_what_was_dumped_without_one(tmp_path, make):
    storage, new = filled(make), make()
    storage.dumps(tmp_path)
    if isinstance(storage, ListStorage):
        new.register_load_hook(lambda data: [TensorDict({"x": row["x"] + 10, "y": row["y"]}) for row in data])
    else:
        new.register_load_hook(lambda data: data.set("x", data["x"] + 10))
    new.loads(tmp_path)
    assert xs(new) == [x + 10 for x in xs(storage)]


def test_as_many_records_as_a_hook_returns_are_loaded_and_are_new_ones(tmp_path, make):
    storage, new = filled(make), make()
    num = len(storage)
    storage.dumps(tmp_path)
    new.register_load_hook(lambda data: data[1:])
    new.loads(tmp_path)
    assert xs(new) == xs(storage)[1:] and new.cursor == (num - 1) % new.max_size
    assert (new.generations(torch.arange(num - 1)) >= EPOCH_COUNTS).all()
    new.append(rows(70, 1))
    assert xs(new) == [*xs(storage)[1:], 70]


def test_a_hook_that_raises_or_returns_too_much_changes_nothing(tmp_path, make):
    storage, new = filled(make), filled(make)
    new.append(rows(30, 2))
    storage.dumps(tmp_path)
    before = xs(new)
    new.register_load_hook(lambda data: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        new.loads(tmp_path)
    new._load_hooks[:] = [lambda data: [*data, *data] if isinstance(data, list) else torch.cat([data, data])]
    if new.bounded:
        with pytest.raises(ValueError, match="there is room for 6"):
            new.loads(tmp_path)
        assert xs(new) == before
    files = {path.name for path in tmp_path.iterdir()}
    storage.register_save_hook(lambda data: object())
    with pytest.raises(TypeError, match="dumps: what the save hooks returned is a builtins.object"):
        storage.dumps(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == files


def test_hooks_have_no_part_in_snapshots(make):
    storage, new = filled(make), make()
    storage.register_save_hook(lambda data: 1 // 0)
    new.register_load_hook(lambda data: 1 // 0)
    new.load_state_dict(storage.state_dict())
    assert xs(new) == xs(storage)


def test_nothing_stored_through_hooks(tmp_path, make):
    storage, seen = make(), []
    if isinstance(storage, TensorStorage):
        storage.clear()
    storage.register_save_hook(lambda data: seen.append(data) or data)
    storage.dumps(tmp_path)
    new = filled(make)
    new.loads(tmp_path)
    assert len(new) == 0 and len(seen) == 1


def test_epochs_leave_room_for_the_counts_that_follow():
    for _ in range(1000):
        assert EPOCH_COUNTS <= new_epoch() < 2**61 - 2 * EPOCH_COUNTS
