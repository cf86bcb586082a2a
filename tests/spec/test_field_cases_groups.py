"""Field cases about what a group is and what a draw of groups costs (5 to 10), each with near relatives."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from tests.spec.builders import grouped_buffer
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    PromptGroupSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

NAN = math.nan
LAYOUTS = ("packed", "columns")


def drawn(rb: TensorDictReplayBuffer, num: int, key: str = "r") -> list:
    return rb.sample(num)[key].reshape(-1).tolist()


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


# --- 5: the same prompt in two rollout groups -----------------------------------------------------------------------


def _two_rollouts(group_key: str) -> ReplayBuffer:
    rb = ReplayBuffer(
        storage=LazyTensorStorage(4),
        sampler=PromptGroupSampler(samples_per_group=2, group_key=group_key, reward_key="r"),
    )
    for group, reward in ((7, 0.0), (8, 1.0), (7, 0.0), (8, 1.0)):
        rb.add(TensorDict({"query": "2 + 2 =", "group": torch.tensor(group), "r": torch.tensor(reward)}))
    return rb


def test_case_5_groups_by_id_keep_two_rollouts_of_one_prompt_apart():
    batch, info = _two_rollouts("group").sample(4, return_info=True)
    rewards = batch["r"].view(2, 2)
    assert (rewards - rewards.mean(1, keepdim=True) == 0).all()
    assert info["num_groups"] == 2 and batch["group"].view(2, 2).unique(dim=1).shape == (2, 1)


def test_case_5_groups_by_text_are_one_group():
    _, info = _two_rollouts("query").sample(2, return_info=True)
    assert info["num_groups"] == 1 and info["group_size"].tolist() == [4]


def test_case_5_the_documentation_says_which_is_better():
    assert "group id" in (PromptGroupSampler.__doc__ or "")


# --- 6: prompts that a harness made unique --------------------------------------------------------------------------


def _unique_prompts() -> TensorDictReplayBuffer:
    return grouped_buffer([f"p ws{i}" for i in range(6)], torch.arange(6.0), k=2)


def test_case_6_singletons_are_visible_in_stats_and_info():
    rb = _unique_prompts()
    assert (rb.stats()["num_groups"], rb.stats()["num_singleton_groups"]) == (6, 6)
    with pytest.warns(UserWarning, match="fewer than samples_per_group=2"):
        _, info = rb.sample(4, return_info=True)
    assert info["short_group"].tolist() == [True, True] and info["group_size"].tolist() == [1, 1]
    assert (info["num_groups"], info["num_singleton_groups"]) == (6, 6)


def test_case_6_the_warning_comes_once_the_info_each_time(recwarn):
    rb = _unique_prompts()
    told = [rb.sample(4, return_info=True)[1]["short_group"].all() for _ in range(3)]
    assert len(recwarn) == 1 and all(told)


def test_case_6_counts_follow_the_ring():
    rb = grouped_buffer(["a", "a", "b", "c"], torch.arange(4.0), capacity=4)
    assert (rb.stats()["num_groups"], rb.stats()["num_singleton_groups"]) == (3, 2)
    rb.extend(TensorDict({"g": ["b", "c"], "id": torch.arange(2), "r": torch.zeros(2)}, [2]))  # over both of "a"
    assert (rb.stats()["num_groups"], rb.stats()["num_singleton_groups"]) == (2, 0)
    rb.empty()
    assert (rb.stats()["num_groups"], rb.stats()["num_singleton_groups"]) == (0, 0)


# --- 7: every kind of key -------------------------------------------------------------------------------------------

KEYS = {
    "[N]": torch.tensor([3, 4, 3, 4]),
    "[N, 1]": torch.tensor([[3], [4], [3], [4]]),
    "[N, 2]": torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]]),
    "[N, 2, 2]": torch.tensor([[[0, 1], [1, 0]], [[1, 0], [0, 1]]] * 2),
    "bool": torch.tensor([True, False, True, False]),
    "bool [N, 2]": torch.tensor([[True, False], [False, True]] * 2),
    "int32": torch.tensor([-1, 1, -1, 1], dtype=torch.int32),
    "uint8": torch.tensor([255, 0, 255, 0], dtype=torch.uint8),
    "int64 far apart": torch.tensor([2**62, -(2**62)] * 2),
    "int64 that float64 cannot tell": torch.tensor([2**53, 2**53 + 1] * 2),
    "float32": torch.tensor([0.5, 0.25, 0.5, 0.25]),
    "float64 neighbours": torch.tensor([1.0, math.nextafter(1.0, 2.0)] * 2, dtype=torch.float64),
    "zeros of both signs are one": torch.tensor([0.0, 1.0, -0.0, 1.0]),
    "infinities": torch.tensor([math.inf, -math.inf] * 2),
    "None and text": [None, "None", None, "None"],
    "unicode": ["é", "e\u0301", "é", "e\u0301"],  # equal to the eye, different strings
    "empty and blank": ["", " ", "", " "],
    "null bytes": ["a\0", "a", "a\0", "a"],
    "int and text": [1, "1", 1, "1"],
}


@pytest.mark.parametrize("name", KEYS)
def test_case_7_keys_group_by_value(layout, name):
    rb = grouped_buffer(KEYS[name], torch.arange(4.0), storage=LazyTensorStorage(4, layout=layout))
    batch, info = rb.sample(4, return_info=True)
    assert info["num_groups"] == 2 and info["group_size"].tolist() == [2, 2]
    assert sorted(sorted(pair) for pair in batch["id"].view(2, 2).tolist()) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("key", [torch.tensor([0.0, NAN, 0.0]), torch.tensor([[0.0, 1.0], [NAN, 0.0], [0.0, 1.0]])])
def test_case_7_a_nan_key_is_an_error_of_sample_not_of_extend(layout, key):
    rb = grouped_buffer(key, torch.zeros(3), storage=LazyTensorStorage(3, layout=layout))
    for _ in range(2):
        with pytest.raises(ValueError, match="NaN"):
            rb.sample(2)
    rb.set_at_("g", key[:1], torch.tensor([1]))
    assert rb.sample(2, return_info=True)[1]["group_size"].tolist() == [3]


# --- 8: a group that the ring has half overwritten ------------------------------------------------------------------


def _half_overwritten() -> TensorDictReplayBuffer:
    rb = grouped_buffer(torch.tensor([0] * 4 + [1] * 4), torch.arange(8.0), k=4, capacity=8)
    rb.extend(TensorDict({"g": torch.tensor([2, 2]), "id": torch.tensor([8, 9]), "r": torch.zeros(2)}, [2]))
    return rb


def test_case_8_a_short_group_is_completed_by_repetition_and_said():
    rb = _half_overwritten()
    with pytest.warns(UserWarning, match="fewer than samples_per_group=4"):
        batch, info = rb.sample(12, return_info=True)
    ids = {g: batch["id"][batch["g"] == g].tolist() for g in (0, 1, 2)}
    assert sorted(ids[1]) == [4, 5, 6, 7]
    for g, left in ((0, [2, 3]), (2, [8, 9])):
        assert sorted(ids[g][:2]) == left, "distinct rows come first"
        assert set(ids[g][2:]) <= set(left)
    sizes = {int(g): int(size) for g, size in zip(batch["g"].view(3, 4)[:, 0], info["group_size"], strict=True)}
    assert sizes == {0: 2, 1: 4, 2: 2}
    assert info["short_group"].tolist() == [sizes[int(g)] < 4 for g in batch["g"].view(3, 4)[:, 0]]


def test_case_8_or_is_left_out_until_it_is_whole():
    rb = _half_overwritten()
    rb.set_sampler(PromptGroupSampler(samples_per_group=4, group_key="g", incomplete="skip"))
    for _ in range(5):
        assert sorted(rb.sample(4)["id"].tolist()) == [4, 5, 6, 7]
    rb.extend(TensorDict({"g": torch.tensor([2, 2]), "id": torch.tensor([10, 11]), "r": torch.zeros(2)}, [2]))
    assert sorted(rb.sample(8)["id"].tolist()) == [4, 5, 6, 7, 8, 9, 10, 11]


def test_case_8_repeats_are_spread_over_the_group():
    rb = grouped_buffer(torch.zeros(2).long(), k=62)
    with pytest.warns(UserWarning):
        counts = Counter(rb.sample(62)["id"][2:].tolist())
    assert min(counts[0], counts[1]) >= 10  # 60 fair draws; fewer than 10 of either happen once in 10**7


def test_case_8_missing_groups_are_repeated_with_unused_rows_first():
    rb = grouped_buffer(torch.zeros(6).long(), torch.arange(6.0), strategy="reward", k=2)
    with pytest.warns(UserWarning, match="fewer groups"):
        batch = rb.sample(6)
    assert batch["r"].tolist() == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def test_case_8_more_groups_than_stored_says_so_and_draws_each():
    sampler = PromptGroupSampler(num_groups=5, group_key="g")
    rb = ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler)
    rb.extend(TensorDict({"g": torch.tensor([0, 0, 1, 1, 2, 2])}, [6]))
    with pytest.warns(UserWarning, match="num_groups=5"):
        groups = rb.sample(10)["g"].view(5, 2)
    assert (groups[:, 0] == groups[:, 1]).all() and sorted(groups[:3, 0].tolist()) == [0, 1, 2]


# --- 9: ragged keys and rewards -------------------------------------------------------------------------------------

PROMPTS = [[5, 6], [5, 6, 7], [5, 6], [7, 5, 6], [5, 6, 7], [7, 5, 6]]
REWARDS = [[1.0], [0.0, 4.0], [3.0, 3.0, 3.0], [0.0], [1.0, 2.0], [5.0, 7.0]]


def _ragged(strategy: str, k: int) -> TensorDictReplayBuffer:
    rb = TensorDictReplayBuffer(
        storage=LazyStackStorage(8),
        sampler=PromptGroupSampler(samples_per_group=k, group_key="tokens", reward_key="r", strategy=strategy),
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )
    rows = [
        TensorDict({"tokens": torch.tensor(prompt), "r": torch.tensor(reward), "id": torch.tensor(i)})
        for i, (prompt, reward) in enumerate(zip(PROMPTS, REWARDS, strict=True))
    ]
    rb.extend(rows)
    return rb


@pytest.mark.parametrize("strategy", ["random", "recency", "reward", "variance"])
def test_case_9_token_lists_of_different_lengths_are_grouped_as_tuples(strategy):
    batch, info = _ragged(strategy, 2).sample(6, return_info=True)
    assert info["num_groups"] == 3
    assert sorted(sorted(ids) for ids in batch["id"].view(3, 2).tolist()) == [[0, 2], [1, 4], [3, 5]]


def test_case_9_ragged_rewards_count_as_the_mean_of_each_row():
    ids = _ragged("reward", 1).sample(3)["id"].tolist()
    assert sorted(ids) == [1, 2, 5]  # means: 1.0 and 3.0, 2.0 and 1.5, 0.0 and 6.0


def test_case_9_a_prefix_is_another_key():
    rb = _ragged("random", 2)
    rb.extend(
        lazy_stack(
            [TensorDict({"tokens": torch.tensor(t), "r": torch.zeros(1), "id": torch.tensor(9)}) for t in ([5], [])]
        )
    )
    assert rb.stats()["num_groups"] == 5 and rb.stats()["num_singleton_groups"] == 2


def test_case_9_token_lists_of_one_length_group_as_they_do_in_a_tensor_storage():
    rows = TensorDict({"g": torch.tensor([[1, 2], [2, 1], [1, 2]]), "r": torch.zeros(3), "id": torch.arange(3)}, [3])
    sizes = []
    for storage in (LazyStackStorage(3), LazyTensorStorage(3), TensorStorage(rows.clone())):
        rb = ReplayBuffer(storage=storage, sampler=PromptGroupSampler(num_groups=1, group_key="g"))
        rb.extend(rows)
        sizes.append((rb.stats()["num_groups"], rb.stats()["num_singleton_groups"]))
    assert sizes == [(2, 1)] * 3


# --- 10: what a draw costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["random", "reward"])
@pytest.mark.parametrize("text", [False, True])
def test_case_10_a_draw_after_a_write_looks_at_what_was_written_not_at_what_is_stored(strategy, text):
    """Counted, not timed: the index visits as many records for one write into 3000 as into 100."""
    visited = []
    for stored in (100, 3000):
        keys = torch.arange(stored) % 25
        rb = grouped_buffer(
            [str(key) for key in keys.tolist()] if text else keys, torch.rand(stored), strategy=strategy, capacity=4000
        )
        rb.sample(8)
        counts = []
        for _ in range(3):
            before = rb.sampler._index.rows_visited
            rb.extend(
                TensorDict(
                    {"g": ["3"] if text else torch.tensor([3]), "id": torch.tensor([0]), "r": torch.rand(1)}, [1]
                )
            )
            rb.sample(8)
            counts.append(rb.sampler._index.rows_visited - before)
        visited.append(counts)
    assert visited[0] == visited[1] and max(visited[0]) <= 2


def test_case_10_a_draw_without_a_write_looks_at_no_record():
    rb = grouped_buffer(torch.arange(500) % 9, torch.rand(500), strategy="reward")
    rb.sample(8)
    before = rb.sampler._index.rows_visited
    for _ in range(4):
        rb.sample(8)
    assert rb.sampler._index.rows_visited == before
