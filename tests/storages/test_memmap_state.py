"""States go from files to memory and back: rows, generations and the strings beside them."""

from __future__ import annotations

import os

import pytest
import torch
from tensordict import TensorDict

from tests.spec.builders import buffer_of, numbered, numbers_of
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import LazyMemmapStorage, ReplayBuffer

KINDS = ("packed", "columns", "memmap")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("source", "target"), [("memmap", kind) for kind in KINDS] + [(kind, "memmap") for kind in KINDS]
)
def test_a_dump_of_one_is_loaded_by_the_other(tmp_path, source, target, first):
    ours, theirs = buffer_of(source, numbers=range(11)), buffer_of(target, numbers=() if first else [40])
    ours.storage.dumps(tmp_path / "x")
    theirs.storage.loads(tmp_path / "x")
    saved = ours.writer.generations_of(torch.arange(8))
    assert numbers_of(theirs[:]) == numbers_of(ours[:])
    assert torch.equal(theirs.writer.generations_of(torch.arange(8)), saved)
    theirs.extend(numbered([50, 51]))
    assert not set(theirs.writer.generations_of(torch.tensor([3, 4])).tolist()) & set(saved.tolist())
    ours.set_at_("text", ["record 60"], [1])
    ours.extend(numbered([60]))
    ours[1] = numbered([60])[0]
    ours.storage.dumps(tmp_path / "x")  # what was written since
    theirs.storage.loads(tmp_path / "x")
    assert numbers_of(theirs[:]) == numbers_of(ours[:]) and numbers_of(ours[:]).count(60) == 2


def test_a_snapshot_is_taken_up_again():
    rb = buffer_of("memmap", numbers=range(11))
    before, generations = numbers_of(rb[:]), rb.writer.generations_of(torch.arange(8))
    state = rb.storage.state_dict()
    for _ in range(2):
        rb.extend(numbered(range(20, 28)))
        rb.storage.load_state_dict(state)
        assert numbers_of(rb[:]) == before and torch.equal(rb.writer.generations_of(torch.arange(8)), generations)
    rb.storage.load_state_dict(buffer_of("memmap", numbers=[7]).storage.state_dict())
    assert numbers_of(rb[:]) == [7]
    rb.storage.load_state_dict(buffer_of("packed").storage.state_dict())
    assert len(rb) == 0
    rb.extend(numbered([3, 4]))
    assert numbers_of(rb[:]) == [3, 4]


def test_what_was_taken_up_is_there_another_day(tmp_path):
    state = buffer_of("packed", numbers=range(11)).storage.state_dict()
    storage = LazyMemmapStorage(8, scratch_dir=tmp_path)
    storage.load_state_dict(state)
    del storage
    storage = LazyMemmapStorage(8, scratch_dir=tmp_path, existsok=True)
    assert numbers_of(storage[:]) == [8, 9, 10, 3, 4, 5, 6, 7] and storage.cursor == 3


def test_a_state_takes_up_no_more_of_the_disk_than_its_rows(tmp_path):
    small = ReplayBuffer(storage=LazyMemmapStorage(100_000))
    small.extend(TensorDict({"x": torch.ones(10, 1000), "text": ["a"] * 10}, [10]))
    storage = LazyMemmapStorage(100_000, scratch_dir=tmp_path)
    storage.load_state_dict(small.storage.state_dict())
    assert os.stat(tmp_path / "torchrb.records").st_blocks * 512 < 200_000
    assert storage[:]["text"] == ["a"] * 10


@pytest.mark.parametrize("first", [True, False])
def test_a_state_that_does_not_fit_changes_nothing(first):
    rb = buffer_of("memmap", numbers=() if first else [1])
    before = snapshot(rb)
    state = buffer_of("memmap", 9, numbers=range(9)).storage.state_dict()
    with pytest.raises(ValueError, match="has 9 records, and there is room for 8"):
        rb.storage.load_state_dict(state)
    for spoil in (
        lambda s: s["rows"][0].update(objects=[]),
        lambda s: s.update(layout=[1]),
        lambda s: s.update(cursor=-1),
    ):
        state = buffer_of("memmap", numbers=range(3)).storage.state_dict()
        spoil(state)
        with pytest.raises((ValueError, KeyError)):
            rb.storage.load_state_dict(state)
        assert_unchanged(before, rb)
    rb.extend(numbered([2]))
    assert numbers_of(rb[:]) == ([2] if first else [1, 2])
