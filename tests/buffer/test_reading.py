"""What goes in comes out, drawn and merged as it is asked for."""

from __future__ import annotations

import itertools
import warnings
from unittest import mock

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, RECORDS, STORAGES, TENSORDICTS, buffer, plain
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PromptGroupSampler,
    ReplayBuffer,
)

each_storage = pytest.mark.parametrize("kind", STORAGES)
each_layout = pytest.mark.parametrize("kind", LAYOUTS)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def xs(rb):
    return [int(rb[i]["x"]) for i in range(len(rb))]


# --- in and out


@pytest.mark.parametrize(
    ("kind", "record"),
    [(kind, record) for kind in STORAGES for record in RECORDS if kind != "stack" or record in TENSORDICTS],
)
def test_what_goes_in_comes_out(kind, record):
    rb, batch = buffer(kind, 8, tensordicts=False), RECORDS[record](range(3))
    if kind == "list" and record in ("pytree", "tuple"):  # here a batch is a list of its records
        batch = [torch.utils._pytree.tree_map(lambda leaf, i=i: leaf[i], batch) for i in range(3)]
    assert rb.extend(batch).tolist() == [0, 1, 2]
    single = RECORDS[record]([7])
    single = (
        single[0] if record in (*TENSORDICTS, "tensor") else torch.utils._pytree.tree_map(lambda leaf: leaf[0], single)
    )
    assert rb.add(single) == 3
    assert plain(rb[3]) == plain(single)
    merged = plain(rb[:].to_tensordict() if kind == "stack" else rb[:])
    expected = RECORDS[record]([0, 1, 2, 7])
    assert merged == plain(expected.to_tensordict() if kind == "stack" else expected)
    assert plain(rb.read_all_in_order(2)) == plain(rb[:2])


@each_storage
def test_returned_handles_name_the_very_rows(kind):
    rb = buffer(kind, 4)
    slots, generations = rb.extend(rows(*range(10)), return_generations=True)
    now = rb.writer.generations_of(slots)
    assert [int(n) for n in torch.nonzero(generations == now)] == [6, 7, 8, 9]
    assert [xs(rb)[slot] for slot in slots[6:].tolist()] == [6, 7, 8, 9]
    slots, generations = rb.extend([], return_generations=True)
    assert slots.tolist() == generations.tolist() == []


# --- sampling


def test_the_batch_size_is_said_in_either_place():
    rb = ReplayBuffer(batch_size=3)
    rb.extend(range(5))
    assert rb.batch_size == 3 and len(rb.sample()) == len(rb.next()) == 3 and len(rb.sample(7)) == 7
    assert [len(batch) for batch in itertools.islice(rb, 4)] == [3] * 4
    unknown = ReplayBuffer(storage=rb.storage)
    assert unknown.batch_size is None and len(unknown.sample(2)) == 2
    for call in (unknown.sample, unknown.next, lambda: next(iter(unknown))):
        with pytest.raises(RuntimeError, match="batch.size"):
            call()
    for wrong in (0, -1, 2.0, True):
        for call in (lambda wrong=wrong: ReplayBuffer(batch_size=wrong), lambda wrong=wrong: rb.sample(wrong)):
            with pytest.raises(ValueError, match="batch_size must be a positive int"):
                call()


@each_storage
def test_the_same_seed_and_history_draw_the_same(kind):
    drawn = []
    for _ in range(2):
        rb = buffer(kind, 8, batch_size=6)
        rb.extend(rows(*range(8)))
        first = rb.sample()["x"].tolist()
        rb.extend(rows(8, 9))
        drawn.append((first, rb.sample()["x"].tolist(), rb.sample()["x"].tolist()))
    assert drawn[0] == drawn[1] and drawn[0][1] != drawn[0][2]


@pytest.mark.parametrize("storage", [ListStorage(9), LazyTensorStorage(9)])
def test_what_was_read_is_merged_as_one_likes(storage):
    rb = ReplayBuffer(storage=storage, collate_fn=lambda data: ("mine", data), batch_size=2)
    rb.extend(torch.arange(3))
    assert rb.sample()[0] == rb[:][0] == rb[[0]][0] == next(rb.__iter__())[0] == "mine"
    assert rb.sample(return_info=True)[0][0] == "mine"
    rb.set_storage(ListStorage(4))
    rb.extend(["a", None])
    assert rb[:] == ["a", None] and rb[1] is None
    rb.set_storage(ListStorage(4), collate_fn=len)
    rb.extend([1, 2, 3])
    assert rb[:] == 3


def test_a_warning_comes_when_the_draw_is_done():
    sampler = PromptGroupSampler(num_groups=2, group_key="g")
    rb = ReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=4)
    rb.extend({"g": torch.tensor([7, 7, 7])})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with mock.patch("warnings.showwarning", lambda *told: rb.empty()):
            drawn = rb.sample()
    assert drawn["g"].tolist() == [7] * 4 and len(rb) == 0
