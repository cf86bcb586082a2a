"""Field cases about writing and handles (11 to 18), each with near relatives."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
from tensordict import TensorDict

from tests.spec.builders import TENSOR_STORAGES, buffer_of, numbered, numbers_of
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from torchrb.ops.schemas import CONTROL_WRITES

PLAIN_STORAGES = {
    "packed": lambda n: LazyTensorStorage(n),
    "columns": lambda n: LazyTensorStorage(n, layout="columns"),
    "list": lambda n: ListStorage(n),
}


@pytest.fixture(params=TENSOR_STORAGES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def patch_wide(rb: TensorDictReplayBuffer, index, generation, value: float, **kwargs):
    """Patch the wide field of some records with one value."""
    patch = {"wide": torch.full((len(index), 20), value)}
    return rb.update_if_present(index=index, generation=generation, patch=patch, **kwargs)


# --- 11: a batch longer than the ring -------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", PLAIN_STORAGES)
def test_case_11_a_batch_longer_than_the_ring_wraps(plain):
    rb = ReplayBuffer(storage=PLAIN_STORAGES[plain](4), writer=RoundRobinWriter(track_generations=True))
    index = rb.extend(torch.arange(10))
    assert index.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1] and index.dtype == torch.int64
    assert rb[:].tolist() == [8, 9, 6, 7]
    assert rb.storage.cursor == 2 and rb.write_count == 10 and len(rb) == 4
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize("plain", PLAIN_STORAGES)
@pytest.mark.parametrize("lengths", [[3, 3, 3], [4, 4], [1] * 9, [5, 1, 7], [0, 4, 0, 1], [100]])
def test_case_11_any_series_of_batches_is_the_series_of_its_rows(plain, lengths):
    capacity = 4
    rb = ReplayBuffer(storage=PLAIN_STORAGES[plain](capacity), writer=RoundRobinWriter(track_generations=True))
    content, writes, written = [-1] * capacity, [0] * capacity, 0
    for length in lengths:
        index = rb.extend(torch.arange(written, written + length))
        assert index.tolist() == [i % capacity for i in range(written, written + length)]
        for number in range(written, written + length):
            content[number % capacity] = number
            writes[number % capacity] += 1
        written += length
    size = min(written, capacity)
    assert len(rb) == size and rb[:].tolist() == content[:size]
    assert rb.write_count == written and rb.storage.cursor == written % capacity
    assert rb.writer.generations_of(torch.arange(capacity)).tolist() == [count - 1 for count in writes]


def test_case_11_every_field_of_a_wrapping_batch_is_of_the_last_row(kind):
    rb = buffer_of(kind, 4, numbers=range(10))
    assert numbers_of(rb[:]) == [8, 9, 6, 7]


# --- 12: handles of rows that their own batch overwrote -------------------------------------------------------------


def test_case_12_rows_lost_inside_one_batch_are_stale_from_the_start(kind):
    rb = buffer_of(kind, 4)
    index, generation = rb.extend(numbered(range(6)), return_generations=True)
    result = patch_wide(rb, index, generation, -1.0)
    assert result.updated.tolist() == [False, False, True, True, True, True]
    assert (result.updated_count, result.stale_count) == (4, 2)
    assert rb[:]["n"].tolist() == [4, 5, 2, 3] and (rb[:]["wide"] == -1).all()


def test_case_12_a_lost_row_patches_nothing_even_when_asked_alone(kind):
    rb = buffer_of(kind, 4)
    index, generation = rb.extend(numbered(range(11)), return_generations=True)
    for row in range(7):
        result = patch_wide(rb, index[row : row + 1], generation[row : row + 1], -1.0)
        assert result.updated_count == 0 and result.stale_count == 1
    assert numbers_of(rb[:]) == [8, 9, 10, 7]


def test_case_12_only_the_rows_that_stayed_have_their_slots_generation(kind):
    rb = buffer_of(kind, 4)
    index, generation = rb.extend(numbered(range(6)), return_generations=True)
    now = rb.writer.generations_of(index)
    assert (now - generation).tolist() == [1, 1, 0, 0, 0, 0]


# --- 13: handles that never were ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "generation"), [(6, -1), (6, 0), (-1, -1), (-1, 0), (8, -1), (8, 0), (2**40, 0), (-(2**40), -1), (0, -1)]
)
def test_case_13_no_handle_to_nothing_is_live(kind, index, generation):
    rb = buffer_of(kind, 8, numbers=range(4))
    result = patch_wide(rb, torch.tensor([index]), torch.tensor([generation]), -1.0)
    if kind == "adopted" and index == 6:  # adopted rows were records once, and emptied
        assert int(rb.writer.generations_of(6)) > 0
    assert (result.updated_count, result.stale_count) == (0, 1)
    assert numbers_of(rb[:]) == [0, 1, 2, 3]


def test_case_13_never_written_and_out_of_range_have_generation_minus_one():
    rb = buffer_of("packed", 8, numbers=range(4))
    assert rb.writer.generations_of(torch.tensor([0, 3, 4, 7, 8, -1, 2**40])).tolist() == [0, 0, -1, -1, -1, -1, -1]


def test_case_13_an_emptied_slot_is_not_live(kind):
    rb = buffer_of(kind, 4)
    index, generation = rb.extend(numbered(range(4)), return_generations=True)
    rb.empty()
    now = rb.writer.generations_of(index)
    assert patch_wide(rb, index, generation, -1.0).stale_count == 4
    assert patch_wide(rb, index, now, -1.0).stale_count == 4


# --- 14: a mask as an index -----------------------------------------------------------------------------------------


def test_case_14_a_mask_is_a_type_error_never_rows_0_and_1(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    mask = torch.tensor([False, True, False, False])
    with pytest.raises(TypeError, match="mask"):
        patch_wide(rb, mask, torch.zeros(4, dtype=torch.int64), -1.0)
    with pytest.raises(TypeError, match="mask"):
        patch_wide(rb, torch.arange(4), mask, -1.0)
    assert numbers_of(rb[:]) == [0, 1, 2, 3]


def test_case_14_floats_are_a_type_error(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    with pytest.raises(TypeError, match="float32"):
        patch_wide(rb, torch.tensor([0.0]), torch.tensor([0]), -1.0)
    with pytest.raises(TypeError, match=r"torch\.bool"):
        rb.writer.generations_of(torch.tensor([True, False]))
    assert numbers_of(rb[:]) == [0, 1, 2, 3]


def test_case_14_where_a_mask_is_accepted_it_is_a_mask(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    mask = torch.tensor([False, True, False, True])
    assert numbers_of(rb[mask]) == [1, 3]
    rb.set_at_("wide", torch.full((2, 20), -1.0), mask)
    assert (rb[:]["wide"][:, 0] == torch.tensor([0.0, -1.0, 2.0, -1.0])).all()
    rb[mask] = numbered([5, 7])
    assert numbers_of(rb[:]) == [0, 5, 2, 7]


# --- 15: one record addressed several times -------------------------------------------------------------------------


def test_case_15_the_last_of_equal_rows_wins(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    index, generation = torch.tensor([1, 1, 1]), torch.zeros(3, dtype=torch.int64)
    generation += rb.writer.generations_of(1)
    patch = {"wide": torch.tensor([7.0, 8.0, 9.0])[:, None].expand(3, 20)}
    result = rb.update_if_present(index=index, generation=generation, patch=patch)
    assert (rb[1]["wide"] == 9).all()
    assert result.updated.tolist() == [False, False, True] and result.stale.tolist() == [False] * 3
    assert (result.updated_count, result.stale_count, result.superseded_count) == (1, 0, 2)
    assert result.version_rejected is None


def test_case_15_many_rows_in_any_order(kind):
    rng = random.Random(0)
    for _ in range(20):
        rb = buffer_of(kind, 5, numbers=range(5))
        rows = [rng.randrange(5) for _ in range(12)]
        index = torch.tensor(rows)
        patch = {"wide": torch.arange(12.0)[:, None].expand(12, 20) + 100}
        result = rb.update_if_present(index=index, generation=rb.writer.generations_of(index), patch=patch)
        last = {row: i for i, row in enumerate(rows)}
        assert result.updated.tolist() == [last[row] == i for i, row in enumerate(rows)]
        expected = [100.0 + last[row] if row in last else float(row) for row in range(5)]
        assert rb[:]["wide"][:, 0].tolist() == expected


def test_case_15_a_stale_row_supersedes_nobody(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    live = int(rb.writer.generations_of(1))
    patch = {"wide": torch.tensor([7.0, 8.0])[:, None].expand(2, 20)}
    result = rb.update_if_present(index=torch.tensor([1, 1]), generation=torch.tensor([live, live + 1]), patch=patch)
    assert result.updated.tolist() == [True, False] and result.stale.tolist() == [False, True]
    assert (rb[1]["wide"] == 7).all()


@pytest.mark.parametrize(
    ("versions", "require_newer", "winner"),
    [
        ([3, 9, 5], False, 1),
        ([9, 9, 5], False, 1),
        ([2, 2, 2], True, None),
        ([2, 2, 2], False, 2),
        ([1, 0, 1], False, None),
    ],
)
def test_case_15_with_versions_the_highest_wins_and_the_others_are_rejected(kind, versions, require_newer, winner):
    rb = buffer_of(kind, 4, numbers=range(4))
    index = torch.tensor([2, 2, 2])  # whose version, "n", is 2
    patch = {"wide": torch.tensor([7.0, 8.0, 9.0])[:, None].expand(3, 20)}
    result = rb.update_if_present(
        index=index,
        generation=rb.writer.generations_of(index),
        patch=patch,
        version_key="n",
        version=torch.tensor(versions),
        require_newer=require_newer,
    )
    assert result.updated.tolist() == [i == winner for i in range(3)]
    assert result.version_rejected.tolist() == [i != winner for i in range(3)]
    assert float(rb[2]["wide"][0]) == (2.0 if winner is None else 7.0 + winner)
    assert int(rb[2]["n"]) == (2 if winner is None else versions[winner])


# --- 16: a batch that does not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_case_16_a_batch_of_another_shape_changes_nothing(layout):
    rb = ReplayBuffer(
        storage=LazyTensorStorage(8, layout=layout), writer=RoundRobinWriter(track_generations=True), batch_size=64
    )
    rb.extend({"a": torch.tensor([[2.0, 3.0]])})
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        rb.extend({"a": torch.full((1, 5), 5.0)})
    assert (len(rb), rb.storage.cursor, rb.write_count) == (1, 1, 1)
    assert rb.writer.generations_of(torch.arange(8)).tolist() == [0] + [-1] * 7
    assert (rb.sample()["a"] == torch.tensor([2.0, 3.0])).all()


@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_case_16_one_wrong_field_among_good_ones(layout):
    rb = ReplayBuffer(storage=LazyTensorStorage(8, layout=layout), batch_size=64)
    rb.extend(TensorDict({"a": torch.zeros(2, 3), "b": torch.zeros(2), "c": torch.zeros(2)}, [2]))
    for bad in (
        {"a": torch.ones(2, 3), "b": torch.ones(2, 1), "c": torch.ones(2)},
        {"a": torch.ones(2, 3), "b": torch.ones(2), "c": torch.ones(2).long()},
        {"a": torch.ones(2, 3), "b": torch.ones(2)},
        {"a": torch.ones(2, 3), "b": torch.ones(2), "c": torch.ones(2), "d": torch.ones(2)},
    ):
        with pytest.raises((ValueError, KeyError)):
            rb.extend(TensorDict(bad, [2]))
        assert len(rb) == 2 and rb.write_count == 2
        assert all((rb.sample()[key] == 0).all() for key in "abc")


def test_case_16_a_first_batch_that_fails_leaves_the_storage_open_for_any_other():
    rb = ReplayBuffer(storage=LazyTensorStorage(8))
    with pytest.raises(ValueError):
        rb.extend({"a": torch.zeros(2), "b": torch.zeros(3)})
    assert len(rb) == 0 and rb.write_count == 0
    rb.extend({"c": torch.arange(3)})
    assert rb[:]["c"].tolist() == [0, 1, 2]


# --- 17: counters past 32 bits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2**31 - 2, 2**32 - 3, 2**53 - 1])
def test_case_17_write_count_stays_exact(kind, start):
    rb = buffer_of(kind, 4, numbers=range(4))
    rb.storage.control[CONTROL_WRITES] = start
    rb.extend(numbered(range(5)))
    rb.add(numbered([5])[0])
    assert rb.write_count == start + 6 == rb.stats()["write_count"]


@pytest.mark.parametrize("generation", [2**31 - 1, 2**32 - 1, 2**40])
def test_case_17_generations_stay_exact(kind, generation):
    rb = buffer_of(kind, 4, numbers=range(4))
    words = rb.storage.tables[0][:, :8].view(torch.int64)
    words += (generation - int(rb.writer.generations_of(0))) << 2
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [generation] * 4
    index, given = rb.extend(numbered([9]), return_generations=True)
    assert given.tolist() == [generation + 1]
    assert patch_wide(rb, index, given, -1.0).updated_count == 1
    assert patch_wide(rb, index, given - 1, -1.0).stale_count == 1


# --- 18: gradients --------------------------------------------------------------------------------------------------


def _rows_with_grad(step: int) -> tuple[TensorDict, weakref.ref]:
    weight = torch.full((1,), float(step), requires_grad=True)
    value = (weight * 2).expand(2).clone()
    return TensorDict({"v": value, "nested": {"w": value.unsqueeze(-1) * 3}}, [2]), weakref.ref(weight)


@pytest.mark.parametrize("make", ["packed", "columns", "stack", "list", "adopted"])
def test_case_18_no_graph_is_kept(make):
    storage = {
        "packed": lambda: LazyTensorStorage(16),
        "columns": lambda: LazyTensorStorage(16, layout="columns"),
        "stack": lambda: LazyStackStorage(16),
        "list": lambda: ListStorage(16),
        "adopted": lambda: TensorStorage(_rows_with_grad(0)[0]),
    }[make]()
    rb = TensorDictReplayBuffer(storage=storage, writer=TensorDictRoundRobinWriter(track_generations=True))
    weights = []
    for step in range(200):
        rows, weight = _rows_with_grad(step)
        rb.extend(rows)
        weights.append(weight)
    del rows
    gc.collect()
    assert not any(weight() is not None for weight in weights)
    assert all(not leaf.requires_grad for leaf in rb[:].values(True, True) if isinstance(leaf, torch.Tensor))
    assert not any(table.requires_grad for table in rb.storage.tables)


@pytest.mark.parametrize("make", ["packed", "columns"])
def test_case_18_nor_by_any_other_way_of_writing(make):
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2, layout=make), writer=TensorDictRoundRobinWriter(track_generations=True)
    )
    rows, weight = _rows_with_grad(1)
    index, generation = rb.extend(rows, return_generations=True)
    rb[:] = rows
    rb[0] = rows[0]
    rb.writer.write_at(index, rows)
    rb.set_("v", rows["v"])
    rb.set_at_("v", rows["v"][:1], 1 + torch.zeros(1).long())
    rb.update_({"v": rows["v"]})
    rb.write_all(rows)
    generation = rb.writer.generations_of(index)
    assert rb.update_if_present(index=index, generation=generation, patch={"v": rows["v"]}).updated_count == 2
    del rows
    gc.collect()
    assert weight() is None and not rb[:]["v"].requires_grad
