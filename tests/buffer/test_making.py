"""Parts from instances, from what makes them and from nothing; sizes that are none."""

from __future__ import annotations

import pytest
import torch

from torchrb import LazyTensorStorage, ListStorage, RandomSampler, RoundRobinWriter, SamplerWithoutReplacement
from torchrb.buffer.making import Given, checked_batch_size, checked_prefetch, default_collate


def test_what_is_not_given_is_made():
    parts = Given(None, None, None, None, None, False).made(RoundRobinWriter)
    assert type(parts["_storage"]) is ListStorage and type(parts["_sampler"]) is RandomSampler
    assert parts["_writer"].storage is parts["_storage"]
    assert parts["_read_from"] == (parts["_storage"], default_collate(parts["_storage"]))


def test_parts_are_wired_and_shared():
    storage, collate = LazyTensorStorage(4), list
    parts = Given(storage, SamplerWithoutReplacement, RoundRobinWriter, collate, 2, True).made(RoundRobinWriter)
    assert parts["_storage"] is storage and storage.shared and parts["_read_from"] == (storage, collate)
    assert parts["_consumption"].limit == 2


@pytest.mark.parametrize("part", ["storage", "sampler", "writer"])
def test_what_is_no_part_is_seen_before_anything_is_made(part):
    made = []
    given = Given(*(lambda: made.append(1) for _ in range(3)), None, None, False)._replace(**{part: 3})
    with pytest.raises(TypeError, match=f"{part} must be a {part.capitalize()} or make one, got int"):
        given.check()
    assert not made


def test_a_constructor_that_wants_arguments():
    with pytest.raises(TypeError, match="storage is called without arguments to make one.*Pass an instance"):
        Given(LazyTensorStorage, None, None, None, None, False).made(RoundRobinWriter)


def test_sizes():
    assert checked_batch_size(3, "sample") == 3
    assert [checked_prefetch(None, None, "x"), checked_prefetch(0, None, "x"), checked_prefetch(2, 1, "x")] == [0, 0, 2]
    for wrong in (0, 1.0, True, None):
        with pytest.raises(ValueError, match="sample: batch_size must be a positive int"):
            checked_batch_size(wrong, "sample")
    with pytest.raises(ValueError, match="x: prefetch=2 draws batches before they are asked for"):
        checked_prefetch(2, None, "x")


def test_lists_of_records_are_stacked_and_other_batches_left_alone():
    assert torch.equal(default_collate(ListStorage(3))([1, 2]), torch.tensor([1, 2]))
    assert default_collate(LazyTensorStorage(3))([1, 2]) == [1, 2]
