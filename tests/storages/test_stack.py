"""Tensordicts whose rows have shapes of their own."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import RECORDS, TENSORDICTS, buffer, plain
from torchrb import (
    LazyStackStorage,
    PrioritizedSampler,
    PromptGroupSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrb.storages.keys import value_words
from torchrb.storages.rewards import reward_of


def ragged(*lengths, start=0):
    return [TensorDict({"tokens": torch.arange(start, start + n), "r": torch.full((n,), float(n))}) for n in lengths]


def slots(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def tokens(storage):
    return [row["tokens"].tolist() for row in storage[:].unbind(0)]


@pytest.mark.parametrize("kind", TENSORDICTS)
def test_batches_and_lists_are_their_rows(kind):
    batch = RECORDS[kind](range(3))
    one, other = LazyStackStorage(4), LazyStackStorage(4)
    one.append(batch)
    other.append([batch[i] for i in range(3)])
    assert (
        [plain(one[i]) for i in range(3)] == [plain(other[i]) for i in range(3)] == [plain(batch[i]) for i in range(3)]
    )
    assert one[:].batch_size == (3,)


def test_no_records_are_an_empty_batch():
    rb = buffer(LazyStackStorage(4))
    assert rb[:].batch_size == rb[[]].batch_size == (0,)
    rb.extend(ragged(1, 2))
    for index in ([], slice(0, 0), torch.zeros(2, dtype=torch.bool)):
        batch = rb[index]
        assert batch.batch_size == (0,) and batch["index"].tolist() == []


def test_every_row_keeps_its_shape():
    storage = LazyStackStorage(3)
    storage.append(ragged(1, 2, 3, 4))
    assert tokens(storage) == [[0, 1, 2, 3], [0, 1], [0, 1, 2]]
    storage.write(slots(1), ragged(0))
    assert tokens(storage)[1] == []


def test_fields_keep_dtype_and_shape_of_their_row():
    storage = LazyStackStorage(3)
    storage.append(ragged(1, 2))
    storage.write_fields(slots(1, 0), {"tokens": [torch.tensor([8, 9]), torch.tensor([7])]})
    assert tokens(storage) == [[7], [8, 9]]
    storage.write_fields(slots(0), {"tokens": [[5]]})
    assert tokens(storage) == [[5], [8, 9]]
    for wrong in (torch.ones(1, 2).long(), torch.ones(1, 1)):
        with pytest.raises(ValueError, match=r"field 'tokens' must be torch.int64 \[1\] in row 0"):
            storage.write_fields(
                slots(1, 0), {"tokens": [torch.tensor([1, 2]), wrong[0] if wrong.dim() > 1 else wrong]}
            )
    with pytest.raises(ValueError, match="needs 2 values, got 1"):
        storage.write_fields(slots(1, 0), {"tokens": [torch.tensor([1, 2])]})
    with pytest.raises(KeyError, match="no field 'other' is stored"):
        storage.write_fields(slots(1), {"tokens": [torch.tensor([1, 2])], "other": [1]})
    assert tokens(storage) == [[5], [8, 9]]


def test_a_written_field_is_a_copy():
    storage, value = LazyStackStorage(2), torch.tensor([[3.0]], requires_grad=True)
    storage.append([TensorDict({"x": torch.zeros(1), "s": "old"})])
    storage.write_fields(slots(0), {"x": value * 1, "s": [["a"]]})
    storage[0]["x"].zero_()
    assert storage[0]["x"].tolist() == [3.0] and not storage[0]["x"].requires_grad
    assert storage[0]["s"] == ["a"]


def test_a_group_key_is_the_tuple_of_its_values():
    storage = LazyStackStorage(8)
    storage.append(ragged(1, 2, 1, 3))
    words = storage.key_words("tokens", torch.arange(4))
    assert torch.equal(words[0], words[2])
    assert len({tuple(row) for row in words.tolist()}) == 3
    assert tuple(words[1].tolist()) == value_words([0, 1], "g")
    assert storage.key_words("tokens", slots()).shape[0] == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64])
def test_a_reward_is_the_row_s_own_value_or_its_mean(dtype):
    storage = LazyStackStorage(4)
    rewards = [torch.tensor(1), torch.tensor([1, 0, 1]), torch.tensor([[1, 1], [0, 0]])]
    storage.append([TensorDict({"r": reward.to(dtype)}) for reward in rewards])
    assert [reward_of(storage[i]["r"]) for i in range(3)] == [1, 2 / 3, 0.5]


def test_rewards_follow_every_write():
    rb = buffer(
        LazyStackStorage(4), sampler=PromptGroupSampler(num_groups=1, group_key="g", reward_key="r", strategy="reward")
    )
    rb.extend(TensorDict({"g": torch.zeros(3), "r": torch.arange(3)}, [3]))
    best = lambda: rb.sample(1)["r"].item()  # noqa: E731
    assert best() == 2
    rb.set_at_("r", torch.tensor(9), 0)
    assert best() == 9
    rb[1] = TensorDict({"g": torch.tensor(0.0), "r": torch.tensor(10)})
    assert best() == 10
    rb.extend(TensorDict({"g": torch.zeros(2), "r": torch.tensor([2**53 + 1, 2**53])}, [2]))
    assert best() == 2**53 + 1
    rb.empty()
    rb.add(TensorDict({"g": torch.tensor(0.0), "r": torch.tensor(-1)}))
    assert best() == -1


@pytest.mark.parametrize(
    "reward", [torch.empty(0), torch.ones(1) * 1j, "text", torch.tensor(2**63 + 1, dtype=torch.uint64)]
)
@pytest.mark.parametrize("drawn_before", [False, True])
def test_what_is_no_reward_is_an_error_at_every_draw_until_it_is_overwritten(reward, drawn_before):
    rb = buffer(
        LazyStackStorage(4), sampler=PromptGroupSampler(num_groups=1, group_key="g", reward_key="r", strategy="reward")
    )
    rb.extend(TensorDict({"g": torch.zeros(2), "r": torch.arange(2)}, [2]))
    if drawn_before:
        assert rb.sample(1)["r"].item() == 1
    good = TensorDict({"g": torch.tensor(0.0), "r": torch.tensor(7)})
    rb.extend([TensorDict({"g": torch.tensor(0.0), "r": reward}, []), good])
    for _ in range(3):
        with pytest.raises(TypeError, match="reward_key 'r' must be numeric"):
            rb.sample(1)
    rb[2] = good
    assert rb.sample(1)["r"].item() == 7


@pytest.mark.parametrize("data", [[1], torch.ones(2), [{"a": torch.ones(1)}]])
def test_other_records_are_refused(data):
    storage = LazyStackStorage(2)
    with pytest.raises(TypeError, match="a record must be a tensordict"):
        storage.append(data)
    with pytest.raises(ValueError, match="a batch needs a batch size"):
        storage.append(TensorDict({"a": torch.ones(1)}))
    assert len(storage) == 0


@pytest.mark.parametrize(
    ("stack_dim", "shape"), [(0, [4, 2, 3]), (1, [2, 4, 3]), (2, [2, 3, 4]), (-1, [2, 3, 4]), (-3, [4, 2, 3])]
)
def test_records_are_stacked_along_the_dimension_that_was_asked_for(stack_dim, shape):
    rb = ReplayBuffer(storage=LazyStackStorage(5, stack_dim=stack_dim))
    records = [TensorDict({"tokens": torch.full((2, 3, n), n)}, [2, 3]) for n in (1, 2, 3, 4)]
    rb.extend(records)
    dim = shape.index(4)
    for batch, numbers in ((rb[:], [1, 2, 3, 4]), (rb[[3, 0]], [4, 1]), (rb.storage[:], [1, 2, 3, 4])):
        assert batch.batch_size == (*shape[:dim], len(numbers), *shape[dim + 1 :]) and batch.stack_dim == dim
        assert [row["tokens"].shape for row in batch.unbind(dim)] == [(2, 3, n) for n in numbers]
    batch, info = rb.sample(7, return_info=True)
    assert [row["tokens"][0, 0, 0].item() - 1 for row in batch.unbind(dim)] == info["index"].tolist()
    assert rb[2].batch_size == (2, 3)
    rb[:2] = rb[2:].unbind(dim)
    assert [row["tokens"].shape[-1] for row in rb[:].unbind(dim)] == [3, 4, 3, 4]
    rb.extend(TensorDict({"tokens": torch.zeros(2, 2, 3, 5)}, [2, 2, 3]))  # two records
    assert [row["tokens"].shape[-1] for row in rb[:].unbind(dim)] == [5, 4, 3, 4, 5]


@pytest.mark.parametrize("stack_dim", [0, 1, 2, -1, -2, -3])
def test_handles_go_along_with_their_records(stack_dim):
    """Also where a record has as many rows of its own as there are records in the batch."""
    rb = TensorDictReplayBuffer(
        storage=LazyStackStorage(6, stack_dim=stack_dim),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=PrioritizedSampler(6, alpha=1.0, beta=1.0),
        batch_size=3,
    )
    rb.extend(
        [TensorDict({"n": torch.full((3, 3, 1), i), "tokens": torch.zeros(3, 3, i)}, [3, 3]) for i in range(1, 6)]
    )
    for batch in (rb.sample(), rb[[4, 0, 2]], rb[:]):
        rows = batch.unbind(stack_dim)
        assert batch["index"].shape == batch.batch_size and len(rows) in (3, 5)
        assert all(
            (row["index"] == row["n"][..., 0] - 1).all() and (row["tokens"].shape[-1] == row["n"]).all() for row in rows
        )
    batch = rb[[1, 3, 2]]
    batch["td_error"] = batch["n"][..., 0].double()
    rb.update_tensordict_priority(batch)
    assert rb.sampler.priorities(rb.storage)[[1, 3, 2]].tolist() == [2, 4, 3]
    assert (rb[2]["index"] == 2).all() and rb[2]["index"].shape == (3, 3)


@pytest.mark.parametrize(("stack_dim", "batch_size"), [(1, []), (-2, []), (3, [2, 3]), (-4, [2, 3])])
def test_a_record_without_the_dimensions_to_stack_along_is_refused(stack_dim, batch_size):
    storage = LazyStackStorage(2, stack_dim=stack_dim)
    with pytest.raises(ValueError, match=f"stack_dim={stack_dim} needs records with as many batch dim"):
        storage.append([TensorDict({}, batch_size)])
    assert len(storage) == 0


def test_integers_beside_floats_are_ranked_exactly_or_not_at_all():
    sampler = PromptGroupSampler(num_groups=1, group_key="g", strategy="reward", reward_key="r")
    rb = ReplayBuffer(storage=LazyStackStorage(8), sampler=sampler, batch_size=1)
    rewards = [torch.tensor(2**60), torch.tensor(2**60 + 1)]
    rb.extend([TensorDict({"g": torch.tensor(0), "r": reward}) for reward in rewards])
    assert int(rb.sample()["r"]) == 2**60 + 1
    rb.add(TensorDict({"g": torch.tensor(0), "r": torch.tensor(0.5)}))
    with pytest.raises(ValueError, match="one type"):
        rb.sample()
    rb[1] = TensorDict({"g": torch.tensor(0), "r": torch.tensor(7)})
    assert int(rb.sample()["r"]) == 2**60


def test_stats_say_nothing_of_groups_where_records_cannot_be_grouped():
    sampler = PromptGroupSampler(num_groups=1, group_key="typo")
    rb = ReplayBuffer(storage=LazyStackStorage(8), sampler=sampler)
    rb.add(TensorDict({"g": torch.tensor(0)}))
    assert "num_groups" not in rb.stats() and rb.stats()["size"] == 1
