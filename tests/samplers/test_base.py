"""What a sampler takes from a generator, and what a sampler of one's own needs."""

from __future__ import annotations

import pytest
import torch

from tests.cases import STORAGES, buffer
from torchrb import (
    LazyTensorStorage,
    PrioritizedSampler,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
)
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


# --- draws ahead


def grouped():
    storage = LazyTensorStorage(9)
    storage.append({"g": torch.arange(9) % 3})
    return storage


SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "in order": lambda: SamplerWithoutReplacement(shuffle=False),
    "groups": lambda: PromptGroupSampler(num_groups=2, group_key="g"),
    "priorities": lambda: PrioritizedSampler(9, 0.7, 0.5),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_fork_draws_what_the_sampler_would_and_is_taken_over(name):
    storage, sampler, alone = grouped(), SAMPLERS[name](), SAMPLERS[name]()
    numbers, generator = (torch.Generator().manual_seed(1) for _ in range(2))
    expected = [alone.sample(storage, 4, numbers)[0].tolist() for _ in range(7)]
    fork, told, moments = sampler, [], [sampler.moment(storage)]
    for _ in range(7):
        fork = fork.fork(storage)
        told.append(fork.sample(storage, 4, generator)[0].tolist())
        moments.append(fork.moment(storage))
    assert told == expected and sampler.moment(storage) == moments[0]
    sampler.take_over(fork, storage)
    assert sampler.moment(storage) == moments[-1]
    assert sampler.sample(storage, 4, generator)[0].tolist() == alone.sample(storage, 4, numbers)[0].tolist()
    if isinstance(sampler, SamplerWithoutReplacement):
        assert len(set(moments)) == len(moments) and sampler.ran_out == alone.ran_out


OTHER = {float: 0.25, tuple: "reward"}


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_the_user_sets_shows_in_the_moment(name):
    storage, sampler = grouped(), SAMPLERS[name]()
    before = sampler.moment(storage)
    assert before == sampler.moment(storage)
    for attribute in ("num_groups", "reward_key", "drop_last", "shuffle", "alpha", "beta", "eps"):
        if hasattr(sampler, attribute):
            value = getattr(sampler, attribute)
            setattr(sampler, attribute, not value if isinstance(value, bool) else OTHER.get(type(value), 3))
            assert sampler.moment(storage) != before
            setattr(sampler, attribute, value)
            assert sampler.moment(storage) == before


@pytest.mark.parametrize(
    "kind", [RandomSampler, SamplerWithoutReplacement, PromptGroupSampler, PrioritizedSampler, Newest]
)
def test_a_sampler_of_ones_own_is_not_asked_ahead_unless_it_says_how(kind):
    class Mine(kind):
        def sample(self, storage, batch_size, generator=None):
            return super().sample(storage, batch_size, generator)

    given = {PromptGroupSampler: {"num_groups": 1}, PrioritizedSampler: {"max_capacity": 9, "alpha": 1.0, "beta": 1.0}}
    sampler = Mine(**given.get(kind, {}))
    assert sampler.fork(grouped()) is None
    assert PromptGroupSampler(num_groups=1, cache_groups=False).fork(grouped()) is None


def test_the_plain_attributes_of_a_sampler_are_its_moment():
    sampler = Newest()
    sampler.beta, sampler.keys, sampler.weights = 0.5, ("a", ("b", None)), torch.zeros(3)
    before = sampler.moment(grouped())
    assert before == (("beta", 0.5), ("keys", ("a", ("b", None))))
    sampler.beta = 0.6
    assert sampler.moment(grouped()) != before


def test_priorities_that_were_set_end_a_moment():
    storage, sampler = grouped(), PrioritizedSampler(9, 0.7, 0.5)
    fork = sampler.fork(storage)
    fork.sample(storage, 3)
    assert fork._kept is sampler._kept and sampler._last is None
    sampler.take_over(fork, storage)
    before = sampler.moment(storage)
    assert before == fork.moment(storage)
    sampler.update_priority(3, 5.0)
    assert sampler.moment(storage) != before


@pytest.mark.parametrize("state", [torch.ones(2), [1], {"pass": 1}, None])
def test_a_state_where_there_is_none_to_keep_is_refused(state):
    storage = LazyTensorStorage(3)
    for part in (RandomSampler(), RoundRobinWriter()):
        part_of = (storage, state) if isinstance(part, RandomSampler) else (state,)
        if isinstance(part, RoundRobinWriter):
            part.register_storage(storage)
        with pytest.raises(ValueError, match=r"load: a R\w+ keeps no state, got"):
            part.load_state_dict(*part_of)
        part.load_state_dict(*part_of[:-1], {})
