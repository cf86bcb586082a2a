"""Law 9: copies in, copies out. What the caller hands in is detached and copied, what the caller gets is its own.

Whatever was handed in is overwritten afterwards, and so is whatever was returned; the stored records must not notice.
The one exception, a `TensorStorage` over existing tensors, is tested as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from tensordict import NonTensorData, TensorDict, is_tensor_collection, tensorclass

from tests.spec.builders import STORAGES, STRATEGIES, TENSOR_STORAGES, buffer_of, group_sampler, numbered, numbers_of
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """All tensors in whatever a call took or returned."""
    if is_tensor_collection(value):
        yield from (leaf for leaf in value.values(True, True) if isinstance(leaf, torch.Tensor))
    else:
        yield from (
            leaf for leaf in pytree.tree_leaves(value, is_leaf=is_tensor_collection) if isinstance(leaf, torch.Tensor)
        )


def scribble(value: Any) -> None:
    """Overwrite every tensor in place; one that cannot be overwritten does not belong to the caller."""
    for leaf in tensors_in(value):
        leaf.fill_(113) if leaf.dtype != torch.bool else leaf.logical_not_()


# --- in -------------------------------------------------------------------------------------------------------------

Write = Callable[[TensorDictReplayBuffer, TensorDict], Any]


def _add(rb, rows):
    for row in rows.unbind(0):
        rb.add(row)


def _extend(rb, rows):
    rb.extend(rows)


def _extend_list(rb, rows):
    rb.extend(list(rows.unbind(0)))


def _set_item(rb, rows):
    rb[torch.arange(4)] = rows


def _set_one(rb, rows):
    for i in range(4):
        rb[i] = rows[i]


def _write_at(rb, rows):
    rb.writer.write_at(torch.arange(4), rows)


def _write_all(rb, rows):
    rb.write_all(rows)


def _storage_set(rb, rows):
    rb.storage[:] = rows


def _fields(rows):
    return {key: rows[key] for key in ("n", "wide", "flag", "byte", "half", "g", ("next", "reward"))}


def _set_(rb, rows):
    for key, value in _fields(rows).items():
        rb.set_(key, value)


def _set_at_(rb, rows):
    for key, value in _fields(rows).items():
        rb.set_at_(key, value, torch.arange(4))


def _update_(rb, rows):
    rb.update_(rows.exclude("text"))


def _update_if_present(rb, rows):
    index = torch.arange(4)
    rb.update_if_present(index=index, generation=rb.writer.generations_of(index), patch=rows.exclude("text"))


WHOLE = [_add, _extend, _extend_list, _set_item, _set_one, _write_at, _write_all, _storage_set]
PARTS = [_set_, _set_at_, _update_, _update_if_present]
# A list has no fields to set, and conditional updates are of tensor storages.
WAYS = {kind: WHOLE + PARTS for kind in TENSOR_STORAGES} | {"stack": WHOLE + PARTS[:3], "list": WHOLE}
WAYS_IN = [pytest.param(kind, write, id=f"{kind}-{write.__name__[1:]}") for kind in WAYS for write in WAYS[kind]]


@pytest.mark.parametrize(("kind", "write"), WAYS_IN)
def test_what_was_handed_in_is_copied(kind, write):
    rb = buffer_of(kind, 4, numbers=range(4))
    rows = numbered(range(20, 24))
    write(rb, rows)
    if write in PARTS:
        rb.storage.write_fields(torch.arange(4), {"text": [f"record {n}" for n in range(20, 24)]})
    scribble(rows)
    assert numbers_of(rb[:]) == [20, 21, 22, 23]
    assert numbers_of(rb.sample(8))


@pytest.mark.parametrize(("kind", "write"), WAYS_IN)
def test_what_was_handed_in_is_detached(kind, write):
    rb = buffer_of(kind, 4, numbers=range(4))
    rows = numbered(range(20, 24))
    weight = torch.ones((), requires_grad=True)
    rows["wide"] = rows["wide"] * weight
    rows["next", "reward"] = rows["next", "reward"] * weight
    write(rb, rows)
    for value in (rb[:], rb.sample(3), rb[0], rb.storage[:]):
        assert not any(leaf.requires_grad for leaf in tensors_in(value))
    assert rb[:]["n"].tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_values_of_any_memory_layout_are_stored_as_values(kind):
    rb = buffer_of(kind, 6)
    wide = torch.arange(24.0).view(4, 6)
    rows = TensorDict(
        {
            "transposed": wide.t(),  # [6, 4]
            "expanded": torch.tensor(3).expand(6),
            "strided": torch.arange(12)[::2],
            "flipped_view": torch.arange(48.0).view(6, 2, 4).transpose(1, 2),
            "conjugate": torch.complex(torch.arange(6.0), torch.ones(6)).conj(),
        },
        [6],
    )
    expected = rows.clone()
    rb.extend(rows)
    scribble(wide)
    for key in expected.keys():
        assert torch.equal(rb[:][key], expected[key])
    scribble(rb[:])


@pytest.mark.parametrize(
    "record",
    [np.arange(3.0), [1, [2, 3]], {"a": [1, 2]}, (torch.zeros(2), {"b": [torch.ones(1)]}), {1, 2}, bytearray(b"ab")],
    ids=lambda r: type(r).__name__,
)
def test_a_list_storage_copies_objects_with_all_they_hold(record):
    def change(value: Any) -> None:
        if isinstance(value, torch.Tensor | np.ndarray):
            value[...] = 9
        elif isinstance(value, dict):
            for item in value.values():
                change(item)
            value["new"] = 9
        elif isinstance(value, set):
            value.add(9)
        elif isinstance(value, bytearray):
            value[:] = b"changed"
        elif isinstance(value, list | tuple):
            for item in value:
                change(item)
            if isinstance(value, list):
                value.append(9)

    rb = ReplayBuffer(storage=ListStorage(4), collate_fn=lambda records: records)
    rb.extend([record])
    rb.add(record)
    as_stored = repr(rb[0])
    change(record)
    assert repr(rb[0]) == repr(rb[1]) == as_stored != repr(record)
    change(rb[0])
    change(rb[:][1])
    change(rb.sample(2)[0])
    change(rb.storage[0])
    assert repr(rb[0]) == repr(rb[1]) == as_stored


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyStackStorage, ListStorage])
def test_non_tensor_fields_are_copied_too(storage):
    rb = TensorDictReplayBuffer(storage=storage(4))
    tools = [{"name": "calculator", "calls": [1]}, {"name": "search", "calls": []}]
    rows = TensorDict({"x": torch.arange(2), "tools": torch.stack([NonTensorData(tool) for tool in tools])}, [2])
    rb.extend(rows)
    tools[0]["calls"].append("changed outside")

    def stored() -> Any:
        return rb[0]["tools"]

    assert stored() == {"name": "calculator", "calls": [1]}
    stored()["calls"].append("changed in what was read")
    rb.sample(4)["tools"][0]["calls"].append("changed in a sample")
    assert stored() == {"name": "calculator", "calls": [1]} and rb[1]["tools"] == {"name": "search", "calls": []}


@tensorclass
class Rollout:
    tokens: torch.Tensor
    reward: torch.Tensor


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyStackStorage, ListStorage])
def test_tensorclasses_are_copied(storage):
    rb = ReplayBuffer(storage=storage(4))
    rollouts = Rollout(tokens=torch.arange(6).view(2, 3), reward=torch.ones(2), batch_size=[2])
    rb.extend(rollouts)
    scribble(rollouts)
    back = rb[:]
    assert isinstance(back, Rollout) or isinstance(rb[0], Rollout)
    assert back.tokens.tolist() == [[0, 1, 2], [3, 4, 5]]
    scribble(back.tokens)
    assert rb[:].tokens.tolist() == [[0, 1, 2], [3, 4, 5]]


# --- out ------------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[TensorDictReplayBuffer], Any]] = {
    "sample": lambda rb: rb.sample(4, return_info=True),
    "iteration": lambda rb: next(iter(rb)),
    "next": lambda rb: rb.next(),
    "an item": lambda rb: rb[2],
    "a slice": lambda rb: rb[1:3],
    "all": lambda rb: rb[:],
    "a tensor of slots": lambda rb: rb[torch.tensor([0, 3, 0])],
    "in order": lambda rb: rb.read_all_in_order(),
    "the first": lambda rb: rb.read_all_in_order(2),
    "the storage": lambda rb: rb.storage[:],
    "an item of the storage": lambda rb: rb.storage[1],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", STORAGES)
def test_what_is_returned_is_the_callers_own(kind, read):
    rb = buffer_of(kind, 4, numbers=range(4), batch_size=3)
    first = READS[read](rb)
    scribble(first)
    assert numbers_of(rb[:]) == [0, 1, 2, 3]
    assert not any(leaf.requires_grad for leaf in tensors_in(first))


@pytest.mark.parametrize("kind", STORAGES)
def test_two_reads_share_nothing(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    for read in (lambda: rb[:], lambda: rb.sample(4, return_info=True)):
        first, second = read(), read()
        before = [leaf.clone() for leaf in tensors_in(second)]
        scribble(first)
        assert all(torch.equal(a, b) for a, b in zip(before, tensors_in(second), strict=True))


@pytest.mark.parametrize("kind", STORAGES)
def test_the_entries_of_one_answer_share_nothing(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    batch, info = rb.sample(6, return_info=True)
    generations = info["index_generation"].tolist()
    scribble(batch)
    assert max(info["index"].tolist()) < 4 and info["index_generation"].tolist() == generations
    index, generation = rb.extend(numbered(range(4)), return_generations=True)
    scribble(index)
    assert torch.equal(generation, rb.writer.generations_of(torch.arange(4)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_group_draw_tells_is_the_callers_own(strategy):
    rb = buffer_of("packed", 12, numbers=range(12), sampler=group_sampler(strategy))
    expected = rb.sample(6)["n"].tolist()
    for _ in range(2):
        rb.generator.manual_seed(0)
        batch, info = rb.sample(6, return_info=True)
        assert batch["n"].tolist() == expected and info["num_groups"] == 3 and info["group_size"].tolist() == [4, 4, 4]
        scribble(batch)
        scribble(info)


@pytest.mark.parametrize("kind", STORAGES)
def test_indices_and_generations_told_are_the_callers_own(kind):
    rb = buffer_of(kind, 4, numbers=range(6))
    before = rb.writer.generations_of(torch.arange(4)).tolist()
    for told in (
        rb.extend(numbered(range(2))[:0]),
        rb.writer.generations_of(torch.arange(4)),
        rb.writer.generations_of(2),
    ):
        scribble(told)
    assert rb.writer.generations_of(torch.arange(4)).tolist() == before and rb.storage.cursor == 2
    assert rb.stats() is not rb.stats()


def test_the_results_of_an_update_are_the_callers_own():
    rb = buffer_of("packed", 4, numbers=range(4))
    index = torch.arange(4)
    result = rb.update_if_present(
        index=index, generation=rb.writer.generations_of(index), patch={"flag": torch.tensor([False, True] * 2)}
    )
    scribble(index)
    scribble(result.updated)
    assert result.updated.tolist() == [True] * 4 and result.updated_count == 4
    assert numbers_of(rb[:]) == [0, 1, 2, 3]


# --- the exception --------------------------------------------------------------------------------------------------


def test_a_tensor_storage_adopts_the_tensors_it_is_made_from():
    records = numbered(range(4))
    rb = TensorDictReplayBuffer(storage=TensorStorage(records))
    assert len(rb) == 4 and numbers_of(rb[:]) == [0, 1, 2, 3]
    rb.extend(numbered([9]))
    assert records["n"].tolist() == [9, 1, 2, 3] and numbers_of(rb[:]) == [9, 1, 2, 3]
    records["byte"].fill_(5)
    assert rb[:]["byte"].tolist() == [5] * 4
    assert "exception" in (TensorStorage.__doc__ or "") or "adopted" in (TensorStorage.__doc__ or "")


@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_only_what_it_is_made_from_is_adopted_not_what_is_written_later(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    rows = numbered(range(30, 34))
    rb.extend(rows)
    scribble(rows)
    batch = rb[:]
    scribble(batch)
    assert numbers_of(rb[:]) == [30, 31, 32, 33]


@pytest.mark.parametrize("view", [lambda x: x, lambda x: torch.from_numpy(x.numpy())])
@pytest.mark.parametrize(
    "write",
    [
        lambda rb, rows: rb.__setitem__(range(1, 5), {"x": rows}),
        lambda rb, rows: rb.set_at_("x", rows, range(1, 5)),
        lambda rb, rows: rb.extend({"x": rows}),
        lambda rb, rows: rb.update_if_present(
            index=torch.arange(1, 5), generation=rb.writer.generations_of(torch.arange(1, 5)), patch={"x": rows}
        ),
    ],
)
def test_rows_of_adopted_memory_are_read_before_they_are_written(write, view):
    x = torch.arange(8)
    rb = ReplayBuffer(storage=TensorStorage({"x": x}), writer=RoundRobinWriter(track_generations=True))
    rb.extend({"x": torch.tensor([0])})  # the next append starts at slot 1
    write(rb, view(x)[:4])
    assert x.tolist() == [0, 0, 1, 2, 3, 5, 6, 7]


def test_adopted_slots_do_not_change_under_a_write():
    slots = torch.tensor([1, 2, 0])
    rb = ReplayBuffer(storage=TensorStorage({"x": slots}))
    rb[slots] = {"x": torch.tensor([0, 0, 2])}
    assert slots.tolist() == [2, 0, 0]


@pytest.mark.parametrize("second", [slice(0, 4), slice(2, 6)])
def test_fields_that_share_memory_are_not_adopted(second):
    x = torch.arange(8)
    with pytest.raises(ValueError, match="'b' shares memory"):
        TensorStorage({"a": x[:4], "b": x[second]})
    assert len(TensorStorage({"a": x[:4], "b": x[4:]})) == 4


def test_an_array_of_objects_is_copied_with_all_it_holds():
    mine = [1]
    rb = ReplayBuffer(storage=ListStorage(2), collate_fn=lambda records: records)
    rb.add(np.array([mine, None], dtype=object))
    mine.append(2)
    assert rb[0][0] == [1]


def test_transforms_on_the_way_in_receive_the_very_object_and_what_they_return_is_copied():
    received, returned = [], []

    class Keeps:
        def __call__(self, data: Any) -> Any:
            return data

        def inv(self, data: Any) -> Any:
            received.append(data)
            returned.append(data.clone())
            return returned[-1]

    for kind in STORAGES:
        for write in (_extend, _set_item, _write_all):
            rb = buffer_of(kind, 4, numbers=range(4))
            rb.append_transform(Keeps())
            rows = numbered(range(20, 24))
            write(rb, rows)
            assert received[-1] is rows
            scribble(rows)
            scribble(returned[-1])
            assert numbers_of(rb[:]) == [20, 21, 22, 23]


@pytest.mark.parametrize("kind", STORAGES)
def test_transforms_on_the_way_out_work_on_the_callers_own_batch(kind):
    rb = buffer_of(kind, 4, numbers=range(20, 24))
    rb.append_transform(lambda batch: batch.apply(lambda leaf: leaf.fill_(113)))  # in place
    for read in (lambda: rb.sample(4), lambda: rb[:], lambda: rb[0], rb.read_all_in_order):
        assert bool((read()["n"] == 113).all())
        stored = rb.storage[:]
        assert numbers_of(torch.stack(stored) if kind == "list" else stored) == [20, 21, 22, 23]


def test_what_a_first_batch_makes_in_inference_mode_is_written_outside():
    for storage in (*STORAGES, "adopted"):
        with torch.inference_mode():
            rows = {"x": torch.arange(4)}
            rb = ReplayBuffer(storage=TensorStorage(rows)) if storage == "adopted" else buffer_of(storage, 4)
            rb.extend([rows["x"][:1]] if storage == "list" else rows if storage == "adopted" else numbered(range(4)))
        if storage == "adopted":
            rb[0] = {"x": torch.tensor(7)}
            assert rows["x"].tolist() == [7, 1, 2, 3]
        elif storage != "list":
            rb.extend(numbered([9]))
            assert numbers_of(rb[:]) == [9, 1, 2, 3]
        rb.empty()
        assert len(rb) == 0
