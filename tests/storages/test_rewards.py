"""A column of rewards is what the rows hold now, and catching up costs what was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import buffer
from torchrb import LazyStackStorage, PromptGroupSampler
from torchrb.storages.rewards import RewardColumn, reward_of

CAPACITY = 6


def row(reward) -> TensorDict:
    return TensorDict({"g": torch.tensor(0), "r": torch.as_tensor(reward)})


def column_of(storage) -> torch.Tensor:
    _, _, template = storage.reward_column("r")
    tables, leaf, _ = storage.reward_column("r")
    return tables[leaf[0]].view(template.dtype).view(-1)[: len(storage)]


rewards = st.one_of(
    st.integers(-9, 9), st.sampled_from([2**53 + 1, -(2**62) - 1]), st.sampled_from([0.5, -1.25, float("inf")])
)
writes = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(rewards, min_size=1, max_size=9)),
        st.tuples(st.just("set"), st.integers(0, CAPACITY - 1), rewards),
        st.tuples(st.just("clear")),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(writes)
def test_the_column_is_what_a_new_one_would_be(writes):
    storage, written = LazyStackStorage(CAPACITY), 0
    for what, *more in writes:
        if what == "append":
            storage.append([row(torch.tensor(reward, dtype=_dtype(reward))) for reward in more[0]])
            written += len(more[0])
        elif what == "set" and more[0] < len(storage):
            storage.set(more[0], row(torch.tensor(more[1], dtype=_dtype(more[1]))))
            written += 1
        elif what == "clear":
            written += len(storage)
            storage.clear()
        kept = [storage[i]["r"].item() for i in range(len(storage))]
        integral = all(isinstance(reward, int) for reward in kept)
        if not integral and any(isinstance(r, int) and int(float(r)) != r for r in kept):
            with pytest.raises(ValueError, match="one type"):
                column_of(storage)
            continue
        column = column_of(storage)
        assert column.tolist() == kept and (column.dtype == torch.int64) == integral
    if storage._rewards:
        (rewards,) = storage._rewards.values()
        assert rewards.rows_visited <= written


def _dtype(reward):
    return torch.int64 if isinstance(reward, int) else torch.float64


@pytest.mark.parametrize("kinds", ["integers", "floats", "mixed"])
def test_a_draw_costs_what_was_written(kinds):
    sampler = PromptGroupSampler(num_groups=1, group_key="g", reward_key="r", strategy="reward")
    rb = buffer(LazyStackStorage(2000), sampler=sampler)
    values = [float(i) if kinds == "floats" or (kinds == "mixed" and i % 3 == 0) else i for i in range(1500)]
    rb.extend([row(value) for value in values])
    rb.sample(1)
    (rewards,) = rb.storage._rewards.values()
    before, memory = rewards.rows_visited, [rewards._integers.data_ptr(), rewards._reals.data_ptr()]
    for step in range(10):
        rb.sample(1)
        assert rewards.rows_visited == before + step
        rb[step] = row(5000.5 + step if step % 2 and kinds != "integers" else 5000 + step)
        assert int(rb.sample(1)["r"]) == 5000 + step
    assert [rewards._integers.data_ptr(), rewards._reals.data_ptr()] == memory


def test_what_is_no_reward_is_told_at_every_draw_and_looked_at_once():
    storage = LazyStackStorage(CAPACITY)
    storage.append([row(1.0), row(torch.empty(0)), TensorDict({"g": torch.tensor(0)}), row(2.0)])
    for _ in range(3):
        with pytest.raises(TypeError, match="reward_key 'r' must be numeric"):
            storage.reward_column("r")
    storage.set(1, row(7.0))
    for _ in range(3):
        with pytest.raises(KeyError, match="no field 'r' is stored"):
            storage.reward_column("r")
    storage.set(2, row(8.0))
    assert column_of(storage).tolist() == [1.0, 7.0, 8.0, 2.0]
    (rewards,) = storage._rewards.values()
    assert rewards.rows_visited == 6


def test_what_is_cut_off_is_looked_at_again():
    storage = LazyStackStorage(CAPACITY)
    storage.append([row(1), row(2), row(3)])
    rewards, cut = RewardColumn("r"), [1]

    def value_at(slot):
        if slot in cut:
            raise KeyboardInterrupt
        return storage._items[slot]["r"]

    with pytest.raises(KeyboardInterrupt):
        rewards.catch_up(storage, value_at)
    cut.clear()
    assert rewards.catch_up(storage, value_at)[:3].tolist() == [1, 2, 3]


def test_growing_takes_everything_anew():
    storage = LazyStackStorage()
    storage.append([row(i) for i in range(10)])
    assert column_of(storage).tolist() == list(range(10))
    storage.append([row(i) for i in range(10, 1100)])
    assert column_of(storage).tolist() == list(range(1100))


@pytest.mark.parametrize(
    ("value", "reward"),
    [(torch.tensor(3), 3), (torch.tensor([1, 0, 1]), 2 / 3), (torch.tensor([[0.5]]), 0.5), (True, True), (2**63, None),
     (torch.empty(0), None), ("text", None), (torch.tensor([1j]), None), ([1.0], None)],
)  # fmt: skip
def test_a_reward_is_one_number(value, reward):
    assert reward_of(value) == reward
