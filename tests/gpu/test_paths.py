"""Buffers on a device: the same calls as on a CPU give the same, strings and data of the host included, and the three
paths wait for nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.gpu.on_device import without_waiting
from tests.spec.builders import STRATEGIES, numbered, numbers_of
from torchrb import (
    LazyTensorStorage,
    PrioritizedSampler,
    PromptGroupSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

CAPACITY, GROUPS, PER_GROUP = 40, 3, 4
SAMPLERS = ("uniform", *STRATEGIES)
CPU = torch.device("cpu")


def sampler_of(strategy: str, key: str = "g") -> Any:
    if strategy == "uniform":
        return RandomSampler()
    if strategy == "without replacement":
        return SamplerWithoutReplacement()
    return PromptGroupSampler(num_groups=GROUPS, group_key=key, strategy=strategy, reward_key=("next", "reward"))


def buffer_on(device: Any, strategy: str, layout: str = "packed", **options: Any) -> TensorDictReplayBuffer:
    options.setdefault("sampler", sampler_of(strategy))
    options.setdefault("storage", LazyTensorStorage(CAPACITY, device=device, layout=layout))
    writer = TensorDictRoundRobinWriter(track_generations=True)
    return TensorDictReplayBuffer(writer=writer, batch_size=GROUPS * PER_GROUP, **options)


def records(first: int, num: int, device: Any = "cpu", text: bool = False) -> TensorDict:
    """`numbered` records, all of whose fields tell one number."""
    made = numbered(range(first, first + num))
    return (made if text else made.exclude("text")).to(device)


def told(batch: TensorDict) -> Any:
    return numbers_of(batch.to("cpu")), batch["index"].tolist(), batch["index_generation"].tolist()


def history(device: Any, strategy: str, layout: str, text: bool, source: Any) -> list[Any]:
    """What a buffer on a device, fed from a source, answers to some calls."""
    rb = buffer_on(device, strategy, layout, generator=torch.Generator().manual_seed(3))
    answers: list[Any] = []
    for turn in range(6):
        index, generation = rb.extend(records(20 * turn, 20, source, text), return_generations=True)
        batch, info = rb.sample(return_info=True)
        answers += [index.tolist(), generation.tolist(), told(batch), told_of(info)]
        patch = {"n": batch["n"] + 1000, "wide": batch["wide"] + 1000}
        handles = {"index": batch["index"].to(source), "generation": batch["index_generation"].to(source)}
        for options in ({}, {"version_key": "byte", "version": turn}):
            result = rb.update_if_present(**handles, patch=patch, **options)
            counts = result.updated_count, result.stale_count, result.superseded_count, result.version_rejected_count
            answers += [result.updated.tolist(), counts]
        rb.set_at_("n", batch["n"], batch["index"])
        rb.set_at_("wide", batch["wide"], batch["index"])
        rb.set_at_("byte", batch["byte"], batch["index"])
        if turn == 3:
            rb.empty()
            with pytest.raises(RuntimeError, match="empty storage"):
                rb.sample()
        answers += [len(rb), rb.write_count]
    return [*answers, numbers_of(rb[:].to("cpu")), rb.stats()]


def told_of(info: dict[str, Any]) -> dict[str, Any]:
    return {key: torch.as_tensor(value).tolist() for key, value in info.items()}


@pytest.mark.parametrize("source", ["there", "host"])
@pytest.mark.parametrize("text", [False, True], ids=["tensors", "strings"])
@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("strategy", (*SAMPLERS, "without replacement"))
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_a_history_on_a_device_is_the_one_on_a_cpu(device, strategy, layout, text, source):
    got = history(device, strategy, layout, text, device if source == "there" else CPU)
    assert got == history(CPU, strategy, "packed", text, CPU)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_by_a_string_are_the_same_on_a_device(device, strategy):
    def drawn(where: Any) -> Any:
        rb = buffer_on(where, strategy, sampler=sampler_of(strategy, "key"), generator=torch.Generator().manual_seed(1))
        batch = TensorDict({**dict(records(0, 24).items()), "key": [f"prompt {n % 5}" for n in range(24)]}, [24])
        rb.extend(batch)
        first = told(rb.sample())
        rb.extend(batch[:7])
        return first, told(rb.sample()), rb.stats()

    assert drawn(device) == drawn(CPU)


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_the_three_paths_wait_for_nothing(device, strategy):
    rb = buffer_on(device, strategy)
    batches = [records(20 * turn, 20, device) for turn in range(4)]
    rb.extend(batches[0])
    rb.sample()
    results = []
    with without_waiting(device):
        for batch in batches[1:]:
            index, generation = rb.extend(batch, return_generations=True)
            drawn = rb.sample()
            patch = {"n": drawn["n"] + 1, "byte": drawn["byte"]}
            handles = {"index": drawn["index"], "generation": drawn["index_generation"]}
            results.append(rb.update_if_present(**handles, patch=patch))
            results.append(rb.update_if_present(index=index, generation=generation, patch={"byte": batch["byte"]}))
            results.append(
                rb.update_if_present(**handles, patch={"n": drawn["n"]}, version_key=("next", "reward"), version=1e9)
            )
    assert all(result.stale_count == 0 for result in results)


def test_priorities_on_a_device_are_those_on_a_cpu(device):
    """Draws, weights and priorities through writes, late updates and settings; nothing waits on the way."""

    def answers(where: Any) -> list[Any]:
        sampler, told_all = PrioritizedSampler(CAPACITY, 0.6, 0.4), []
        rb = buffer_on(where, "uniform", sampler=sampler, generator=torch.Generator().manual_seed(3))
        rb.priority_key = ("next", "reward")
        late = None
        for turn in range(6):
            batch = records(20 * turn, 20, where)
            with without_waiting(where if isinstance(where, torch.device) else CPU):
                rb.extend(batch, update_priority=turn % 2 == 0)
                drawn = rb.sample()
                late = drawn if late is None else late
                rb.update_tensordict_priority(late)
                rb.update_priority(drawn["index"], drawn["n"] % 7)
            if turn == 3:
                sampler.alpha = 1.1
                rb.empty()
            told_all += [told(drawn), drawn["priority_weight"].tolist(), sampler.priorities(rb.storage).tolist()]
            late = drawn
        return told_all

    assert answers(device) == answers(CPU)


def test_a_bad_priority_on_a_device_does_nothing_and_a_later_call_raises(device):
    rb = buffer_on(device, "uniform", sampler=PrioritizedSampler(CAPACITY, 1.0, 1.0, 0.0))
    index = rb.extend(records(0, 5, device))

    def update() -> None:
        rb.update_priority(index, torch.tensor([1.0, 2.0, float("nan"), 4.0, 5.0], device=device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            rb.sample()

    with pytest.raises(ValueError, match="place 2"):
        update()
    assert rb.sampler.priorities(rb.storage)[:5].tolist() == [1.0] * 5
    rb.update_priority(index, torch.arange(5.0, device=device))
    assert rb.sampler.priorities(rb.storage)[:5].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_auto_is_the_device_of_the_first_batch(device):
    rb = buffer_on("auto", "reward", storage=LazyTensorStorage(CAPACITY, device="auto"))
    rb.extend(records(0, 20, device))
    assert rb.storage.device == device == rb.sample()["n"].device
    rb.extend(records(20, 20))
    assert numbers_of(rb[:].to("cpu")) == [*range(40)]


@pytest.mark.parametrize("where", ["auto", "named"])
def test_existing_tensors_are_adopted_where_they_lie(device, where):
    mine = records(0, CAPACITY, device)
    storage = TensorStorage(mine, device="auto" if where == "auto" else device)
    rb = buffer_on(device, "uniform", storage=storage)
    assert len(rb) == CAPACITY
    rb.extend(records(100, 3, device))
    assert mine["n"][:4].tolist() == [100, 101, 102, 3]
    assert {*told(rb.sample())[0]} <= {100, 101, 102, *range(3, CAPACITY)}


def test_the_callers_memory_is_free_when_extend_returns(device):
    """Pinned memory above all, from which copies are still on their way."""
    rb = buffer_on(device, "uniform", storage=LazyTensorStorage(CAPACITY, device=device))
    host = records(0, CAPACITY)
    if device.type == "cuda":
        host = host.pin_memory()
    for turn in range(20):
        for key, value in records(100 * turn, CAPACITY).items(True, True):
            host[key].copy_(value)
        rb.extend(host)
        for value in host.values(True, True):
            value.zero_()
        assert numbers_of(rb[:].to("cpu")) == [*range(100 * turn, 100 * turn + CAPACITY)]


def test_data_of_a_device_goes_into_a_storage_on_the_host(device):
    rb = buffer_on("cpu", "reward")
    for turn in range(3):
        rb.extend(records(20 * turn, 20, device))
        rb.sample()
    assert sorted(numbers_of(rb[:])) == [*range(20, 60)]


def test_a_row_out_of_range_is_masked_or_refused(device):
    rb = buffer_on(device, "uniform")
    rb.extend(records(0, 5, device))
    index = torch.tensor([4, 7, -1], device=device)
    if device.type == "cpu":  # where the values can be looked at, they are
        with pytest.raises(IndexError):
            rb[index]
        with pytest.raises(IndexError):
            rb.writer.write_at(index, records(10, 3))
        return
    assert rb[index]["n"].tolist() == [4, 0, 4]
    rb.writer.write_at(torch.tensor([7], device=device), records(10, 1, device))
    assert len(rb) == 5 and rb[:]["n"].tolist() == [0, 1, 2, 3, 4]


def test_a_device_tells_late_of_what_it_alone_knows(device):
    """On a GPU a NaN key, met by a draw, is raised by a later one."""
    sampler = PromptGroupSampler(num_groups=1, group_key="key")
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(4, device=device), sampler=sampler, batch_size=1)
    key: Tensor = torch.tensor([1.0, float("nan")], device=device)
    rb.extend(TensorDict({"key": key}, [2]))
    with pytest.raises(ValueError, match="is NaN in the record at index 1"):
        for _ in range(100):
            rb.sample()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    rb[1] = TensorDict({"key": torch.tensor(2.0)})
    rb.sample()
