"""Field cases about which rows of a group are drawn (1 to 4), each with near relatives."""

from __future__ import annotations

import math

import pytest
import torch

from tests.spec.builders import grouped_buffer
from torchrb import (
    LazyTensorStorage,
    TensorDictReplayBuffer,
)

NAN, INF = math.nan, math.inf
LAYOUTS = ("packed", "columns")


def drawn(rb: TensorDictReplayBuffer, num: int, key: str = "r") -> list:
    return rb.sample(num)[key].reshape(-1).tolist()


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


# --- 1: NaN rewards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "k", "expected"),
    [
        ([1.0, 2.0, NAN, 3.0], 2, [3.0, 2.0]),
        ([NAN, 1.0, 2.0, 3.0], 3, [3.0, 2.0, 1.0]),
        ([NAN, NAN, -5.0, NAN], 1, [-5.0]),
        ([NAN, -INF, NAN, 0.0], 2, [0.0, -INF]),
        ([INF, NAN, 7.0, -1.0], 2, [INF, 7.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_case_1_nan_never_beats_a_number(layout, rewards, k, expected, dtype):
    storage = LazyTensorStorage(4, layout=layout)
    rb = grouped_buffer(
        torch.zeros(4).long(), torch.tensor(rewards, dtype=dtype), strategy="reward", k=k, storage=storage
    )
    for _ in range(3):
        assert drawn(rb, k) == expected


def test_case_1_nan_is_drawn_last_and_said_when_finite_rows_run_out():
    rb = grouped_buffer(torch.zeros(4).long(), [1.0, 2.0, NAN, 3.0], strategy="reward", k=4)
    with pytest.warns(UserWarning, match="valid rewards"):
        rewards = drawn(rb, 4)
    assert rewards[:3] == [3.0, 2.0, 1.0] and math.isnan(rewards[3])


def test_case_1_repeats_are_finite_rows_only():
    rb = grouped_buffer(torch.zeros(3).long(), [NAN, 5.0, NAN], strategy="reward", k=6)
    with pytest.warns(UserWarning):
        rewards = drawn(rb, 6)
    assert rewards[0] == 5.0 and all(map(math.isnan, rewards[1:3])) and rewards[3:] == [5.0] * 3


def test_case_1_a_group_without_finite_rewards_is_drawn_whole():
    rb = grouped_buffer(torch.zeros(3).long(), [NAN] * 3, strategy="reward", k=3)
    with pytest.warns(UserWarning):
        assert sorted(rb.sample(3)["id"].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_case_1_variance_takes_no_row_that_is_not_finite(layout, bad):
    storage = LazyTensorStorage(4, layout=layout)
    rb = grouped_buffer(torch.zeros(4).long(), [1.0, bad, 2.0, 4.0], strategy="variance", k=2, storage=storage)
    assert drawn(rb, 2) == [1.0, 4.0]


# --- 2: rewards closer together than float32 can tell ---------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["variance", "reward"])
@pytest.mark.parametrize(("base", "dtype"), [(1e9, torch.float64), (2**53, torch.int64), (2**24, torch.int32)])
def test_case_2_rewards_are_ranked_in_their_own_type(layout, strategy, base, dtype):
    steps = torch.arange(4).to(dtype)
    rewards = torch.tensor(base).to(dtype) + steps
    expected = {"variance": [0, 3], "reward": [3, 2]}[strategy]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        storage = LazyTensorStorage(4, layout=layout)
        rb = grouped_buffer(torch.zeros(4).long(), rewards[order], strategy=strategy, k=2, storage=storage)
        assert (rb.sample(2)["r"] - rewards[0]).tolist() == expected


def test_case_2_neighbours_in_float64():
    rewards = torch.tensor([1.0, math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)], dtype=torch.float64)
    rb = grouped_buffer(torch.zeros(3).long(), rewards, strategy="reward", k=1)
    assert rb.sample(1)["id"].tolist() == [1]


# --- 3: ties in variance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "k", "expected"),
    [
        ([0, 0, 1, 1, 1], 3, [0, 1, 1]),
        ([1, 0, 1, 0, 1], 3, [0, 1, 1]),
        ([-1, 0, 1, 1], 2, [-1, 1]),
        ([0, 0, 0, 1], 3, [0, 0, 1]),
        ([0, 2, 2, 4, 4, 0], 3, [0, 4, 4]),
        ([3, 3, 3, 3], 2, [3, 3]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
def test_case_3_equal_variance_goes_to_the_higher_total(layout, rewards, k, expected, dtype):
    n = len(rewards)
    storage = LazyTensorStorage(n, layout=layout)
    rewards = torch.tensor(rewards, dtype=dtype)
    rb = grouped_buffer(torch.zeros(n).long(), rewards, strategy="variance", k=k, storage=storage)
    assert drawn(rb, k) == expected


# --- 4: a draw sees a patch -----------------------------------------------------------------------------------------


def _by_update_if_present(rb, row, reward):
    index = torch.tensor([row])
    result = rb.update_if_present(
        index=index, generation=rb.writer.generations_of(index), patch={"r": torch.tensor([reward])}
    )
    assert result.updated_count == 1


def _by_setitem(rb, row, reward):
    record = rb[row].exclude("index")
    record["r"] = torch.tensor(reward)
    rb[row] = record


def _by_set_at(rb, row, reward):
    rb.set_at_("r", torch.tensor([reward]), torch.tensor([row]))


def _by_set(rb, row, reward):
    rewards = rb[:]["r"]
    rewards[row] = reward
    rb.set_("r", rewards)


def _by_update(rb, row, reward):
    rewards = rb[:]["r"]
    rewards[row] = reward
    rb.update_({"r": rewards})


def _by_write_at(rb, row, reward):
    record = rb[row : row + 1]
    record["r"] = torch.tensor([reward])
    rb.writer.write_at(torch.tensor([row]), record)


def _by_write_all(rb, row, reward):
    records = rb.read_all_in_order().exclude("index")
    records["r"][row] = reward
    rb.write_all(records)


PATCHES = [_by_update_if_present, _by_setitem, _by_set_at, _by_set, _by_update, _by_write_at, _by_write_all]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda f: f.__name__[4:])
@pytest.mark.parametrize("row", [0, 2])
def test_case_4_a_draw_sees_a_reward_that_was_changed_in_place(layout, patch, row):
    storage = LazyTensorStorage(4, layout=layout)
    rb = grouped_buffer(torch.zeros(4).long(), [0.0, 1.0, 2.0, 3.0], strategy="reward", k=1, storage=storage)
    assert rb.sample(1)["id"].tolist() == [3]
    patch(rb, row, 99.0)
    assert rb.sample(1)["id"].tolist() == [row]
    patch(rb, row, -99.0)
    assert rb.sample(1)["id"].tolist() == [3]


def test_case_4_a_draw_sees_a_record_that_changed_its_group():
    rb = grouped_buffer(torch.tensor([0, 0, 1, 1]), [0.0, 1.0, 2.0, 3.0], strategy="reward", k=2)
    rb.sample(4)
    rb.set_at_("g", torch.tensor([1]), torch.tensor([0]))
    with pytest.warns(UserWarning, match="fewer than samples_per_group"):
        batch, info = rb.sample(4, return_info=True)
    assert sorted(info["group_size"].tolist()) == [1, 3]
    assert {g: sorted(batch["id"][batch["g"] == g].tolist()) for g in (0, 1)} == {0: [1, 1], 1: [2, 3]}
