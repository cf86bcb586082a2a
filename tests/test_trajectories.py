"""Boundaries are those that a walk over the records in time order finds, however they came to be stored."""

from __future__ import annotations

import random

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyStackStorage, LazyTensorStorage, ListStorage, TensorDictReplayBuffer
from torchrb.generations import words_of
from torchrb.ops.schemas import SLOT_LIVE
from torchrb.trajectories import TrajectoryIndex, find_source, lengths_in

CAPACITY = 7
STORAGES = {
    "packed": lambda: LazyTensorStorage(CAPACITY),
    "columns": lambda: LazyTensorStorage(CAPACITY, layout="columns"),
    "stack": lambda: LazyStackStorage(CAPACITY),
    "list": lambda: ListStorage(CAPACITY),
    "unbounded": lambda: ListStorage(),
}
each_storage = pytest.mark.parametrize("kind", STORAGES)


def steps(ids, done=None, **fields):
    num = len(ids)
    flags = torch.zeros(num, dtype=torch.bool) if done is None else torch.tensor(done, dtype=torch.bool)
    return TensorDict(
        {"episode": torch.tensor(ids, dtype=torch.int64), "next": {"done": flags[:, None]}, **fields}, [num]
    )


def buffer(kind="packed"):
    return TensorDictReplayBuffer(storage=STORAGES[kind]())


def found(index):
    """The slots of each trajectory, by an index that was told nothing else."""
    if not len(index.storage):
        return []
    bounds = index.catch_up()
    return [
        bounds.rows_at(torch.arange(start, start + length)).tolist()
        for start, length in zip(bounds.starts.tolist(), bounds.lengths.tolist(), strict=True)
    ]


def slots_in_time(storage):
    num = len(storage)
    first = storage.cursor if num == storage.tables[0].shape[0] else 0
    return [(first + t) % num for t in range(num)]


def walked(rb, by):
    """The same, by a walk over all records."""
    runs = []
    if not len(rb):
        return runs
    records = rb[:]
    ids, done = records["episode"].tolist(), records["next", "done"].view(-1).tolist()
    slots = slots_in_time(rb.storage)
    for t, slot in enumerate(slots):
        before = slots[t - 1]
        fresh = t == 0 or (ids[slot] != ids[before] if by == "ids" else done[before])
        runs.append([slot]) if fresh else runs[-1].append(slot)
    return runs


@each_storage
@pytest.mark.parametrize("by", ["ids", "ends"])
@pytest.mark.parametrize("seed", range(3))
def test_an_index_in_use_is_what_a_walk_finds(kind, by, seed):
    rng, rb = random.Random(seed), buffer(kind)
    keys = {"traj_key": "episode"} if by == "ids" else {"end_keys": [("next", "done")]}
    index = TrajectoryIndex(rb.storage, **keys)
    key = "episode" if by == "ids" else ("next", "done")
    for _ in range(60):
        num = rng.randrange(1, 10)
        new = steps([rng.randrange(3) for _ in range(num)], [rng.random() < 0.3 for _ in range(num)])
        way = rng.randrange(7)
        if way < 3 or not len(rb):
            rb.extend(new)
        elif way == 3:
            rb[rng.randrange(len(rb))] = new[0]
        elif way == 4 and kind not in ("list", "unbounded"):
            rb.set_at_(key, new[:1][key], [rng.randrange(len(rb))])
        elif way == 5 and rng.random() < 0.2:
            rb.empty()
        elif way == 6:
            rb.add(new[0])
        if rng.random() < 0.7:
            assert found(index) == walked(rb, by)
            assert found(TrajectoryIndex(rb.storage, **keys)) == found(index)


def test_a_look_costs_the_records_written_since():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(500))
    rb.extend(steps([i // 9 for i in range(700)]))
    index = TrajectoryIndex(rb.storage)
    bounds = index.catch_up()
    for num in (1, 5, 50):
        before = index.rows_visited
        assert index.catch_up() is bounds
        rb.extend(steps([9] * num))
        bounds = index.catch_up()
        assert 0 < index.rows_visited - before <= num + 1
    assert index.catch_up() is bounds


def test_a_trajectory_across_the_wrap_point_is_one():
    rb = buffer()
    rb.extend(steps([0, 0, 0, 0, 1, 1, 1]))
    rb.extend(steps([1, 1]))
    assert found(TrajectoryIndex(rb.storage)) == [[2, 3], [4, 5, 6, 0, 1]]


def test_the_newest_record_does_not_go_on_with_the_oldest():
    rb = buffer()
    rb.extend(steps([5] * CAPACITY))
    rb.extend(steps([5, 5]))
    assert found(TrajectoryIndex(rb.storage)) == [[2, 3, 4, 5, 6, 0, 1]]
    rb.extend(steps([5, 6, 6, 6, 5]))  # the ring is full from slot 0 to the last
    assert found(TrajectoryIndex(rb.storage)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_runs_of_one_id_that_are_not_neighbours_are_several():
    rb = buffer()
    rb.extend(steps([0, 0, 1, 0]))
    assert found(TrajectoryIndex(rb.storage)) == [[0, 1], [2], [3]]


def test_a_slot_without_a_record_is_in_no_trajectory():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(6))
    rb.extend(steps([0] * 6))
    words_of(rb.storage.tables)[2:4] &= ~SLOT_LIVE  # as a process leaves them that is killed while it writes
    index = TrajectoryIndex(rb.storage)
    assert found(index) == [[0, 1], [4, 5]]
    assert index.catch_up().owners_of(torch.arange(6)).tolist() == [0, 0, -1, -1, 1, 1]
    rb.writer.write_at(torch.tensor([2, 3]), steps([0, 0]))
    assert found(index) == [[0, 1, 2, 3, 4, 5]]


IDS = {
    "float": torch.tensor([0.0, -0.0, 1.5, 1.5, 2.0]),
    "bool": torch.tensor([False, False, True, True, False]),
    "int8": torch.tensor([0, 0, 1, 1, 2], dtype=torch.int8),
    "column": torch.tensor([[0], [0], [1], [1], [2]]),
    "two": torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1], [1, 1]]),
    "text": ["a", "a", "é", "é", "a"],
    "none": [None, None, "x", "x", None],
}


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("kind", ["packed", "stack"])
def test_ids_are_compared_by_value_whatever_they_are(kind, name):
    rb = buffer(kind)
    rb.extend(TensorDict({"id": IDS[name], "x": torch.arange(5)}, [5]))
    index = TrajectoryIndex(rb.storage, "id")
    assert found(index) == [[0, 1], [2, 3], [4]]
    rb.extend(TensorDict({"id": IDS[name][:1], "x": torch.arange(1)}, [1]))
    assert found(index)[-1] == ([4] if name not in ("bool", "text", "none") else [4, 5]) or found(index)[-1] == [5]


def test_ids_of_several_lengths():
    rb = TensorDictReplayBuffer(storage=LazyStackStorage(9))
    rb.extend([TensorDict({"id": torch.tensor(id_)}) for id_ in ([1], [1], [1, 2], [1, 2], [2, 2])])
    assert found(TrajectoryIndex(rb.storage, "id")) == [[0, 1], [2, 3], [4]]


def test_a_flag_of_several_elements_ends_by_any():
    rb = buffer()
    flags = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 0]])
    rb.extend(TensorDict({"done": flags, "x": torch.arange(4)}, [4]))
    assert found(TrajectoryIndex(rb.storage)) == [[0, 1], [2, 3]]


def flag(*at):
    return torch.tensor([slot in at for slot in range(4)])


TOLD_BY = [
    ({"done": flag(0)}, (("done",),)),
    ({"done": flag(0), "truncated": flag(2)}, (("done",), ("truncated",))),
    ({"terminated": flag(0), "next": {"truncated": flag(1)}}, (("next", "truncated"),)),
    ({"next": {"truncated": flag(1), "terminated": flag(2)}}, (("next", "terminated"), ("next", "truncated"))),
    ({"episode": flag(0), "next": {"done": flag(1)}}, "episode"),
    ({"episode": flag(0), "traj_ids": flag(1)}, "traj_ids"),
    ({"traj_ids": flag(0), "collector": {"traj_ids": flag(1)}}, ("collector", "traj_ids")),
]


@pytest.mark.parametrize(("fields", "told_by"), TOLD_BY)
def test_what_tells_trajectories_apart_when_nobody_says(fields, told_by):
    rb = buffer()
    rb.extend(TensorDict(fields, [4]))
    source = find_source(rb.storage, None, None, "here")
    if source.ids is None:
        assert source.ends == told_by
    else:
        assert source.ids == (told_by if isinstance(told_by, tuple) else (told_by,))


def test_keys_that_are_not_there_are_named():
    rb = buffer()
    rb.extend(TensorDict({"x": torch.arange(2), "y": {"z": torch.arange(2)}}, [2]))
    with pytest.raises(KeyError, match="here: no field tells trajectories apart.*episode.*'x'"):
        find_source(rb.storage, None, None, "here")
    with pytest.raises(KeyError, match="here: no field 'episod' is stored; stored are"):
        find_source(rb.storage, "episod", None, "here")
    with pytest.raises(KeyError, match="here: no field 'don' is stored"):
        find_source(rb.storage, None, ["x", "don"], "here")
    assert find_source(rb.storage, "episod", ["x"], "here").ends == (("x",),)  # both were given
    assert find_source(rb.storage, ("y", "z"), ["x"], "here").ids == ("y", "z")


def test_boundaries_that_the_caller_gives():
    rb = buffer()
    rb.extend(steps([0] * CAPACITY))
    rb.extend(steps([0, 0]))
    by_slot = [0, 0, 1, 1, 1, 0, 0]
    ids = TrajectoryIndex(rb.storage, trajectories=torch.tensor(by_slot))
    assert found(ids) == [[2, 3, 4], [5, 6, 0, 1]]
    ends = TrajectoryIndex(rb.storage, ends=torch.tensor([0, 0, 0, 1, 0, 1, 0]).bool())
    assert found(ends) == [[2, 3], [4, 5], [6, 0, 1]]
    with pytest.raises(ValueError, match=r"given for \[3\] records, and 7 are stored"):
        TrajectoryIndex(rb.storage, ends=torch.zeros(3)).catch_up()


def test_records_that_lie_anywhere_are_put_in_order_by_their_steps():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    rb.extend(steps([0, 1, 0, 1, 0, 1, 0, 1], step=torch.tensor([0, 4, 1, 3, 2, 5, 4, 7])))
    index = TrajectoryIndex(rb.storage, step_key="step")
    assert found(index) == [[0, 2, 4], [6], [3, 1, 5], [7]]
    rb.extend(steps([1, 0], step=torch.tensor([6, 3])))
    assert found(index) == [[0, 2, 4, 9, 6], [3, 1, 5, 8, 7]]
    bounds = index.catch_up()
    positions = torch.arange(10)
    assert torch.equal(bounds.positions_of(bounds.rows_at(positions)), positions)
    rb.extend(steps([1], step=torch.tensor([8])))  # over slot 0
    assert found(index) == [[2, 4, 9, 6], [3, 1, 5, 8, 7, 0]]
    with pytest.raises(KeyError, match="needs a field of trajectory ids and one of steps, 'count'"):
        TrajectoryIndex(rb.storage, step_key="count").catch_up()


@pytest.mark.parametrize("seed", range(5))
def test_places_and_owners_agree(seed):
    rng, rb = random.Random(seed), buffer()
    rb.extend(steps([rng.randrange(2) for _ in range(rng.randrange(1, 12))]))
    bounds = TrajectoryIndex(rb.storage).catch_up()
    positions = torch.arange(bounds.num)
    assert (
        torch.equal(bounds.positions_of(bounds.rows_at(positions)), positions)
        and int(bounds.lengths.sum()) == bounds.num
    )
    owners = bounds.owners_of(positions)
    for number, (start, length) in enumerate(zip(bounds.starts.tolist(), bounds.lengths.tolist(), strict=True)):
        assert (owners[start : start + length] == number).all()
    for length in range(1, CAPACITY + 1):
        assert bounds.at_least(length).tolist() == [
            number for number, has in enumerate(bounds.lengths.tolist()) if has >= length
        ]


def test_the_trajectories_in_a_tensordict():
    data = steps([0, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0], text=["a", "b", "b", "b", "c", "c"])
    assert lengths_in(data, None, None, "here") == [2, 3, 1]
    assert lengths_in(data, None, [("next", "done")], "here") == [2, 4]
    assert lengths_in(data, "text", None, "here") == [1, 3, 2]
    assert lengths_in(data[:1], None, None, "here") == [1]


# --- storages of several dimensions


def walk_cells(rb, by):
    """The (slot, cell) pairs of each trajectory, cell after cell."""
    data, storage = rb.storage[:], rb.storage
    num, cells = data.shape[0], data.shape[1]
    first = storage.cursor // cells if len(storage) == storage.max_size else 0
    runs = []
    for cell in range(cells):
        for t in range(num):
            slot, before = (first + t) % num, (first + t - 1) % num
            ids, done = data["episode"][:, cell], data["next", "done"][:, cell, 0]
            fresh = t == 0 or bool(ids[slot] != ids[before] if by == "ids" else done[before])
            runs.append([(slot, cell)]) if fresh else runs[-1].append((slot, cell))
    return runs


@pytest.mark.parametrize("by", ["ids", "ends"])
@pytest.mark.parametrize("seed", range(3))
def test_each_cell_has_trajectories_of_its_own(by, seed):
    rng, num_cells = random.Random(seed), 3
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(7 * num_cells, ndim=2), dim_extend=1)
    index = TrajectoryIndex(
        rb.storage, **({"traj_key": "episode"} if by == "ids" else {"end_keys": [("next", "done")]})
    )
    for _ in range(25):
        num = rng.randrange(1, 9)
        ids = [[rng.randrange(2) for _ in range(num)] for _ in range(num_cells)]
        done = torch.tensor([[[rng.random() < 0.3] for _ in range(num)] for _ in range(num_cells)])
        rb.extend(TensorDict({"episode": torch.tensor(ids), "next": {"done": done}}, [num_cells, num]))
        if rng.random() < 0.3:
            slots = torch.tensor([rng.randrange(len(rb) // num_cells)])
            rb.set_at_("episode", torch.tensor([[rng.randrange(2) for _ in range(num_cells)]]), slots)
        with rb.storage.lock:
            rows = [list(zip(*(part.tolist() for part in rb.storage.coordinates(torch.tensor(run))), strict=True))
                    for run in found(index)]  # fmt: skip
        assert rows == walk_cells(rb, by)
    positions = torch.arange(len(rb))
    bounds = index.catch_up()
    assert torch.equal(bounds.positions_of(bounds.rows_at(positions)), positions)
