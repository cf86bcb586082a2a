"""A strategy's name, number and need of rewards are those of the op, and each does what its name says."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, PromptGroupSampler, ReplayBuffer
from torchrb.ops import schemas
from torchrb.selection.strategies import Strategy


def test_names_and_numbers_are_those_of_the_op():
    assert [strategy.name.lower() for strategy in sorted(Strategy)] == list(schemas.STRATEGIES)
    assert [int(Strategy.named(name)) for name in schemas.STRATEGIES] == list(range(len(schemas.STRATEGIES)))


@pytest.mark.parametrize("name", ["best", "Reward", "", "random ", None, 2])
def test_another_name_is_an_error_that_lists_them(name):
    with pytest.raises(ValueError, match="strategy must be one of .*'random', 'recency', 'reward', 'variance'"):
        Strategy.named(name)


def draw(strategy: str, rewards: list[float], k: int, **fields: torch.Tensor) -> list[float]:
    sampler = PromptGroupSampler(samples_per_group=k, group_key="g", reward_key="r", strategy=strategy)
    rb = ReplayBuffer(storage=LazyTensorStorage(len(rewards)), sampler=sampler, batch_size=k)
    rb.extend(TensorDict({"g": torch.zeros(len(rewards)), "r": torch.tensor(rewards)} | fields, [len(rewards)]))
    return rb.sample()["r"].tolist()


def test_each_chooses_what_its_name_says_in_its_order():
    rewards = [0.5, 3.0, -1.0, 2.0, 0.0]
    assert draw("reward", rewards, 3) == [3.0, 2.0, 0.5]
    assert draw("recency", rewards, 3) == [-1.0, 2.0, 0.0]
    assert draw("variance", rewards, 2) == [-1.0, 3.0]
    assert sorted(draw("random", rewards, 5)) == sorted(rewards)
    assert len(set(draw("random", rewards, 3))) == 3


@pytest.mark.parametrize("name", schemas.STRATEGIES)
def test_a_strategy_needs_a_reward_key_exactly_when_it_says_so(name):
    sampler = PromptGroupSampler(samples_per_group=1, group_key="g", reward_key="missing", strategy=name)
    rb = ReplayBuffer(storage=LazyTensorStorage(2), sampler=sampler, batch_size=1)
    rb.extend(TensorDict({"g": torch.zeros(2)}, [2]))
    if Strategy.named(name).needs_reward:
        with pytest.raises(KeyError, match="missing"):
            rb.sample()
    else:
        assert rb.sample().batch_size == (1,)
