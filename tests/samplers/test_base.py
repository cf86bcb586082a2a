"""What a sampler takes from a generator, and what a sampler of one's own needs."""

from __future__ import annotations

import pytest
import torch

from tests.cases import STORAGES, buffer
from torchrb import LazyTensorStorage, ReplayBuffer, Sampler
from torchrb.samplers.base import take_seed


class Newest(Sampler):
    """Always the record written last."""

    def sample(self, storage, batch_size, generator=None):
        return torch.full((batch_size,), (storage.cursor - 1) % storage.max_size), {"why": "it is new"}


def test_a_subclass_needs_only_sample():
    rb = ReplayBuffer(sampler=Newest, batch_size=2)
    rb.extend([1, 2, 3])
    data, info = rb.sample(return_info=True)
    assert data.tolist() == [3, 3] and info["why"] == "it is new" and info["index"].tolist() == [2, 2]


def test_a_seed_is_one_number_in_the_generator_s_order():
    generator = torch.Generator().manual_seed(3)
    storage = LazyTensorStorage(1)
    seed = take_seed(generator, storage)
    assert seed.shape == (1,) and seed.dtype == torch.int64
    drawn = [int(seed), *(int(take_seed(generator, storage)) for _ in range(2))]
    again = torch.Generator().manual_seed(3)
    assert drawn == [int(take_seed(again, LazyTensorStorage(2))) for _ in range(3)] and len(set(drawn)) == 3
    torch.manual_seed(3)
    assert int(take_seed(None, storage)) == drawn[0]


def test_a_generator_of_its_own_leaves_the_global_one_alone():
    rb = buffer(batch_size=3)
    rb.extend(torch.arange(5))
    state = torch.get_rng_state()
    rb.sample()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", STORAGES)
def test_an_empty_storage_cannot_be_sampled(kind):
    rb = buffer(kind, batch_size=2)
    with pytest.raises(RuntimeError, match="cannot sample from an empty storage. Write to the buffer first"):
        rb.sample()
