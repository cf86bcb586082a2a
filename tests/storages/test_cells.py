"""Storages of several dimensions: records are blocks of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torch.testing import assert_close

from torchrb import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

CELLS = {2: (3,), 3: (2, 3)}


class Model:
    """Records by slot in numpy: a plain ring of blocks, with a generation each."""

    def __init__(self, size: int, cells: tuple[int, ...]) -> None:
        self.capacity = -(-size // int(np.prod(cells)))
        self.rows = np.zeros((self.capacity, *cells), dtype=np.int64)
        self.generations = np.full(self.capacity, -1)
        self.live = np.zeros(self.capacity, dtype=bool)
        self.cursor = self.length = self.writes = 0

    def append(self, records: np.ndarray) -> tuple[list[int], list[int]]:
        slots, generations = [], []
        for record in records:
            self.rows[self.cursor] = record
            self.renew([self.cursor])
            slots.append(self.cursor)
            generations.append(int(self.generations[self.cursor]))
            self.cursor = (self.cursor + 1) % self.capacity
            self.length = min(self.length + 1, self.capacity)
            self.writes += 1
        return slots, generations

    def renew(self, slots: Any) -> None:
        for slot in slots:
            self.generations[slot] += 1
            self.live[slot] = True

    def clear(self) -> None:
        self.generations[self.live] += 1
        self.live[:] = False
        self.cursor = self.length = self.writes = 0


def made(ndim: int, size: int = 24, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(size, ndim=ndim, **options.pop("storage", {})),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=8,
        **options,
    )


def batch_of(values: np.ndarray, ndim: int) -> TensorDict:
    """Values in all forms that a field may have, each telling the same."""
    numbers = torch.from_numpy(values)
    return TensorDict(
        {"a": numbers, "nested": {"wide": numbers[..., None].expand(*numbers.shape, 5).to(torch.float32)}},
        batch_size=numbers.shape[:ndim],
    )


def assert_same(rb: TensorDictReplayBuffer, model: Model, ndim: int, dim: int) -> None:
    num = int(np.prod(CELLS[ndim]))
    assert len(rb) == model.length * num and rb.write_count == model.writes
    assert rb.storage.max_size == model.capacity * num
    slots = torch.arange(-1, model.capacity + 1)
    assert rb.writer.generations_of(slots).tolist() == [-1, *model.generations.tolist(), -1]
    stored = model.rows[: model.length]
    kept = rb.storage[:]
    assert kept.batch_size == stored.shape and kept["a"].tolist() == stored.tolist()
    assert (kept["nested", "wide"] == kept["a"][..., None]).all()
    shown = rb[:]
    assert torch.equal(shown["a"], kept["a"].transpose(0, dim))
    places = shown["index"]
    assert torch.equal(rb.storage[places.unbind(-1)]["a"], shown["a"])
    if not model.length:
        return
    batch, info = rb.sample(return_info=True)
    assert isinstance(info["index"], tuple) and len(info["index"]) == ndim
    assert torch.equal(torch.stack(info["index"], -1), batch["index"])
    where = tuple(part.numpy() for part in info["index"])
    assert batch["a"].tolist() == stored[where].tolist()
    assert batch["index_generation"].tolist() == model.generations[where[0]].tolist()
    assert torch.equal(rb.writer.generations_of(info["index"]), batch["index_generation"])
    assert torch.equal(rb.writer.generations_of(batch["index"]), batch["index_generation"])


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize(("ndim", "dim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_any_history_leaves_what_a_plain_ring_of_blocks_has(ndim, dim, layout):
    cells, draw = CELLS[ndim], np.random.default_rng(ndim * 10 + dim)
    rb = made(ndim, 5 * int(np.prod(cells)) - 1, dim_extend=dim, storage={"layout": layout})
    model = Model(5 * int(np.prod(cells)) - 1, cells)
    last = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))  # handles of records
    new = iter(range(1, 10**6))

    def fresh(*shape: int) -> np.ndarray:
        return np.array([next(new) for _ in range(int(np.prod(shape)))], dtype=np.int64).reshape(shape)

    for step in range(120):
        action = draw.integers(0, 9) if step else 0
        stored = model.length
        if action in (0, 1):
            records = fresh(int(draw.integers(1, 8)), *cells)
            index, generations = rb.extend(batch_of(np.swapaxes(records, 0, dim), ndim), return_generations=True)
            slots, expected = model.append(records)
            last = (np.array(slots), np.array(expected))
            blocks = index.view(len(records), *cells, ndim)
            assert (blocks[..., 0] == torch.tensor(slots).view(-1, *[1] * len(cells))).all()
            assert (generations.view(len(records), -1) == torch.tensor(expected)[:, None]).all()
            assert (
                index[:, 1:].view(len(records), *cells, -1)[0].tolist()
                == np.moveaxis(np.indices(cells), 0, -1).tolist()
            )
        elif action == 2:
            record = fresh(1, *cells)
            index = rb.add(batch_of(record[0], ndim - 1))
            assert index[:, 0].unique().tolist() == model.append(record)[0]
        elif action == 3 and stored:  # some cells, by their places
            where = tuple(draw.integers(0, size, 3) for size in (stored, *cells))
            values = fresh(3)
            rb.set_at_("a", torch.from_numpy(values), tuple(map(torch.from_numpy, where)))
            rb.set_at_(("nested", "wide"), torch.from_numpy(values)[:, None].expand(3, 5).float(), where)
            for place, value in zip(zip(*where, strict=True), values, strict=True):
                model.rows[place] = value
        elif action == 4 and stored:  # whole records: others than before
            slots = np.unique(draw.integers(0, stored, 2))
            records = fresh(len(slots), *cells)
            rb.writer.write_at(torch.from_numpy(slots), batch_of(records, ndim))
            model.rows[slots] = records
            model.renew(slots)
        elif action == 5 and stored:  # cells of the layout that the user sees: parts of records
            seen = np.swapaxes(model.rows[:stored], 0, dim)
            values = fresh(*seen[:1].shape)
            whole = dim != 0 and seen.shape[0] == 1
            rb[:1] = batch_of(values, ndim)
            seen[:1] = values
            if dim == 0 or whole:
                model.renew(range(1 if dim == 0 else stored))
        elif action == 6 and stored:
            values = fresh(stored, *cells)
            rb.update_(batch_of(values, ndim))
            model.rows[:stored] = values
        elif action == 7 and len(last[0]):
            values = fresh(len(last[0]), *cells)
            patch = batch_of(values, ndim)
            result = rb.update_if_present(
                index=torch.from_numpy(last[0]), generation=torch.from_numpy(last[1]), patch=patch
            )
            good = (model.generations[last[0]] == last[1]) & model.live[last[0]]
            assert (~result.stale).tolist() == good.tolist()
            for slot, ok, value in zip(last[0], good, values, strict=True):
                if ok:
                    model.rows[slot] = value
        elif action == 8 and draw.integers(0, 4) == 0:
            rb.empty()
            model.clear()
        assert_same(rb, model, ndim, dim)


def test_the_example_of_the_page():
    data = torch.arange(12.0).view(3, 4)
    by_add, by_extend = (ReplayBuffer(storage=LazyTensorStorage(10, ndim=2), dim_extend=1) for _ in range(2))
    added = [by_add.add(column) for column in data.unbind(1)]
    assert torch.equal(torch.cat(added), by_extend.extend(data))
    for rb in (by_add, by_extend):
        assert torch.equal(rb[:], data) and torch.equal(rb.storage[:], data.T)
        assert (len(rb), rb.write_count, rb.storage.max_size) == (12, 4, 12)
        assert rb.stats()["size"] == rb.stats()["capacity"] == 12


def test_a_patch_of_cells_leaves_their_neighbours_alone():
    rb = made(2)
    rb.extend(TensorDict({"a": torch.zeros(3, 4), "v": torch.full((3, 4), 5)}, [3, 4]))
    index = torch.tensor([[0, 0], [0, 1], [1, 2], [1, 2], [9, 0]])
    generation = torch.zeros(5, dtype=torch.int64)
    result = rb.update_if_present(
        index=index, generation=generation, patch={"a": torch.arange(1.0, 6)}, version_key="v",
        version=torch.tensor([4, 6, 7, 8, 9]),
    )  # fmt: skip
    assert result.updated.tolist() == [False, True, False, True, False]
    assert result.version_rejected.tolist() == [True, False, True, False, False]
    assert result.stale.tolist() == [False, False, False, False, True]
    expected = torch.zeros(4, 3)
    expected[0, 1], expected[1, 2] = 2, 4
    assert torch.equal(rb.storage[:]["a"], expected)
    assert rb.storage[:]["v"][1].tolist() == [5, 5, 8]
    as_tuple = rb.update_if_present(
        index=(torch.tensor([2]), torch.tensor([1])), generation=torch.tensor([0]), patch={"a": torch.tensor([7.0])}
    )
    assert as_tuple.updated_count == 1 and rb.storage[2, 1]["a"] == 7


def test_handles_of_what_is_not_there():
    rb = made(2)
    rb.extend(TensorDict({"a": torch.zeros(3, 4)}, [3, 4]))
    before, one = rb.storage[:].clone(), torch.ones(1)
    slots = torch.tensor([-1, 8, 2**62])
    result = rb.update_if_present(
        index=slots, generation=torch.zeros(3, dtype=torch.int64), patch={"a": one.expand(3, 3)}
    )
    assert result.stale.tolist() == [True] * 3
    for place in ([0, 3], [0, -1]):
        with pytest.raises(IndexError, match=r"outside of its record, which has cells \[3\]"):
            rb.update_if_present(index=torch.tensor([place]), generation=torch.zeros(1).long(), patch={"a": one})
    with pytest.raises(ValueError, match="same shape, where slots are meant"):
        rb.update_if_present(index=torch.zeros(1, 3).long(), generation=torch.zeros(1).long(), patch={"a": one})
    with pytest.raises(ValueError, match=r"needs values of shape \[1, 3, '...'\], got \[1\]"):
        rb.update_if_present(index=torch.tensor([0]), generation=torch.zeros(1).long(), patch={"a": one})
    assert (rb.storage[:] == before).all()


def test_a_version_belongs_to_a_cell():
    rb = made(2)
    rb.extend(TensorDict({"a": torch.zeros(3, 4), "v": torch.zeros(3, 4).long()}, [3, 4]))
    with pytest.raises(ValueError, match="holds a version for each cell"):
        rb.update_if_present(
            index=torch.tensor([0]), generation=torch.tensor([0]), patch={"a": torch.zeros(1, 3)}, version_key="v",
            version=1,
        )  # fmt: skip


def test_what_is_no_tensor_has_cells_too():
    rb = made(2)
    words = [["a", "b", None], ["d", "e", "f"]]
    rb.extend(TensorDict({"x": torch.zeros(2, 3), "words": NonTensorStack.from_list(words)}, [2, 3]))
    assert rb.storage[:]["words"] == [["a", "d"], ["b", "e"], [None, "f"]]
    assert [list(row) for row in rb[:]["words"]] == words
    rb.set_at_("words", ["X", "Y"], ([0, 1], [1, 0]))
    rb.set_at_("words", "Z", (2, 1))
    assert rb.storage[:]["words"] == [["a", "X"], ["Y", "e"], [None, "Z"]]
    rb.storage[0] = rb.storage[1]
    rb.storage[1, 1] = rb.storage[0, 0]
    assert rb.storage[:]["words"] == [["Y", "e"], ["Y", "Y"], [None, "Z"]]
    generation = rb.writer.generations_of(torch.tensor([2]))
    rb.update_if_present(index=torch.tensor([2]), generation=generation, patch={"words": [["p", "q"]]})
    assert rb.storage[2]["words"] == ["p", "q"]


@pytest.mark.parametrize("kind", ["tensor", "pytree"])
def test_pytrees_have_cells_too(kind):
    data = torch.arange(24).view(2, 3, 4)
    rb = ReplayBuffer(storage=LazyTensorStorage(24, ndim=2), batch_size=5)
    wrap = {"tensor": lambda x: x, "pytree": lambda x: {"a": x, "b": (x[..., 0].float(), [x])}}[kind]
    open_ = {"tensor": lambda x: x, "pytree": lambda x: x["a"]}[kind]
    rb.extend(wrap(data))
    assert torch.equal(open_(rb[:]), data) and torch.equal(open_(rb.storage[1]), data[:, 1])
    rb.extend([wrap(data[:, 0]), wrap(data[:, 1])])  # a list of records
    assert torch.equal(open_(rb[:]), torch.cat([data, data[:, :2]], 1))
    sample, info = rb.sample(return_info=True)
    assert torch.equal(open_(sample), open_(rb.storage[info["index"]]))


def test_a_storage_of_existing_tensors_adopts_them_in_whatever_shape():
    data = torch.arange(12).view(4, 3)
    rb = ReplayBuffer(storage=TensorStorage(data, ndim=2), dim_extend=1)
    assert (len(rb), rb.storage.max_size) == (12, 12)
    assert torch.equal(rb[:], data.T)
    rb.extend(torch.zeros(3, 1, dtype=torch.int64))
    assert data[0].tolist() == [0, 0, 0] and data[1].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (torch.zeros(5), r"dim_extend=1 .* got a batch of \[5\]"),
        (TensorDict({"a": torch.zeros(2, 3)}, [2]), r"got a batch of \[2\]"),
        (torch.zeros(0, 3), "must have cells"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(4, 3)}, r"the same in all fields.*'b'"),
        ([torch.zeros(()), torch.zeros(())], r"got \['n'\]"),
    ],
)
def test_a_first_batch_that_has_no_cells(data, told):
    rb = ReplayBuffer(storage=LazyTensorStorage(24, ndim=2))
    with pytest.raises(ValueError, match=told):
        rb.extend(data)
    assert len(rb) == 0 and rb.storage.structure is None and rb.storage.max_size == 24


def test_later_batches_have_the_cells_of_the_first():
    rb = made(2)
    rb.extend(TensorDict({"a": torch.zeros(3, 4)}, [3, 4]))
    before = rb.storage[:].clone()
    for wrong in (TensorDict({"a": torch.zeros(2, 4)}, [2, 4]), TensorDict({"a": torch.zeros(3, 4, 1)}, [3, 4])):
        with pytest.raises(ValueError, match="extend"):
            rb.extend(wrong)
    with pytest.raises(ValueError, match=r"add: a record has batch_size \[3\]"):
        rb.add(TensorDict({"a": torch.zeros(4)}, [4]))
    for index, wrong in ((0, before[:1]), ((0, 0), before[0]), (slice(0, 2), before[:1])):
        with pytest.raises(ValueError, match="batch"):
            rb.storage[index] = wrong
    with pytest.raises(ValueError, match="needs values of shape"):
        rb.set_("a", torch.zeros(3, 4))
    assert (rb.storage[:] == before).all() and rb.write_count == 4


def test_nothing_is_stored_yet():
    rb = made(2)
    for call in (lambda: rb[:], lambda: rb.storage[0], lambda: rb.__setitem__(0, TensorDict({}, [3]))):
        with pytest.raises(RuntimeError, match="nothing was stored yet"):
            call()
    assert rb.extend([]).shape == (0, 2) and len(rb) == 0
    assert rb.writer.generations_of(torch.tensor([0])).tolist() == [-1]


@pytest.mark.parametrize("ndim", [0, -1, 1.0, True, None])
def test_ndim_counts(ndim):
    with pytest.raises(ValueError, match=r"LazyTensorStorage: ndim must be an int from 1 on"):
        LazyTensorStorage(4, ndim=ndim)


def test_a_write_over_itself_makes_the_lost_cells_stale():
    rb = made(2, 6)
    index, generation = rb.extend(TensorDict({"a": torch.arange(9).view(3, 3)}, [3, 3]), return_generations=True)
    result = rb.update_if_present(index=index, generation=generation, patch={"a": torch.full((9,), -1)})
    assert result.stale.tolist() == [True] * 3 + [False] * 6
    assert_close(rb.storage[:]["a"], torch.full((2, 3), -1))
