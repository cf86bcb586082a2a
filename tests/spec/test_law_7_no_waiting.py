"""Law 7: nothing on a hot path waits for a GPU. Shown without one: see `pretended_gpu`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.spec.builders import STRATEGIES
from tests.spec.pretended_gpu import GPU, NoWaits, Pretence, Stream, Waited, pretended_gpu
from torchrb import (
    LazyTensorStorage,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

ROWS, GROUPS, PER_GROUP = 24, 3, 4
SAMPLERS = ("uniform", *STRATEGIES)


@pytest.fixture
def gpu():
    with pretended_gpu() as pretence:
        yield pretence


def records(num: int = ROWS, device: Any = GPU) -> TensorDict:
    return TensorDict(
        {
            "prompt": torch.arange(num, device=device) // PER_GROUP,
            "reward": torch.zeros(num, device=device),
            "version": torch.zeros(num, dtype=torch.int64, device=device),
            "loss": torch.zeros(num, dtype=torch.float16, device=device),
            "nested": {"tokens": torch.zeros(num, 40, dtype=torch.int32, device=device)},
        },
        [num],
    )


def sampler_of(strategy: str) -> Any:
    if strategy == "uniform":
        return RandomSampler()
    return PromptGroupSampler(num_groups=GROUPS, group_key="prompt", strategy=strategy, reward_key="reward")


def buffer_of(strategy: str, device: Any = GPU, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, device=device, **options),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=sampler_of(strategy),
        batch_size=GROUPS * PER_GROUP,
    )


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("strategy", SAMPLERS)
def test_writing_and_drawing_on_a_gpu_wait_for_nothing(gpu, strategy, layout):
    rb = buffer_of(strategy, layout=layout)
    with NoWaits():
        for _ in range(3):
            index, generation = rb.extend(records(), return_generations=True)
            batch, info = rb.sample(return_info=True)
    expected = {"prompt", "reward", "version", "loss", ("nested", "tokens"), "index", "index_generation"}
    assert set(batch.keys(True, True)) == expected
    assert {value.device for value in batch.values(True, True)} == {GPU} == {index.device, generation.device}
    assert batch["nested", "tokens"].shape == (GROUPS * PER_GROUP, 40)
    assert info["index"].device == GPU


@pytest.mark.parametrize("strategy", SAMPLERS)
def test_a_plain_buffer_waits_for_nothing_either(gpu, strategy):
    rb = ReplayBuffer(storage=LazyTensorStorage(100, device=GPU), sampler=sampler_of(strategy), batch_size=12)
    with NoWaits():
        rb.extend(records())
        batch = rb.sample()
    assert batch.device == GPU and batch.shape == (12,)


def versions(num: int) -> dict[str, dict[str, Any]]:
    return {
        "without": {},
        "an int": {"version_key": "version", "version": 3},
        "a tensor": {"version_key": "version", "version": torch.zeros(num, dtype=torch.int64, device=GPU)},
        "a narrower tensor": {"version_key": "version", "version": torch.zeros(num, dtype=torch.int8, device=GPU)},
        "a number on the device": {"version_key": "version", "version": torch.zeros((), dtype=torch.int64, device=GPU)},
        "of a float": {"version_key": "loss", "version": torch.zeros(num, dtype=torch.float16, device=GPU)},
    }


@pytest.mark.parametrize("case", range(6))
def test_a_conditional_update_on_a_gpu_waits_for_nothing(gpu, case):
    rb = buffer_of("reward")
    with NoWaits():
        index, generation = rb.extend(records(), return_generations=True)
        cases = versions(index.shape[0])
        options = list(cases.values())[case]
        patch = {"reward": torch.ones(ROWS, device=GPU), ("nested", "tokens"): records()["nested", "tokens"]}
        result = rb.update_if_present(index=index, generation=generation, patch=patch, **options)
        masks = [result.updated, result.stale, result.superseded, result.version_rejected]
        two = rb.update_if_present(index=index.view(6, 4), generation=generation.view(6, 4), patch=patch, **options)
    assert (masks[3] is None) == (not options)
    assert all(mask is None or (mask.device == GPU and mask.shape == (ROWS,)) for mask in masks)
    assert two.updated.shape == (6, 4)


def test_reading_and_writing_at_indices_on_a_gpu_waits_for_nothing(gpu):
    rb = buffer_of("uniform")
    with NoWaits():
        index = rb.extend(records())
        assert rb[index].shape == (ROWS,)
        rb.writer.write_at(index, records())
        rb[index] = records()
        rb.set_at_("reward", torch.ones(ROWS, device=GPU), index)
        assert rb.writer.generations_of(index).device == GPU
        rb.empty()
        rb.extend(records())
        rb.sample()


def test_cells_of_records_of_several_dimensions_are_drawn_and_patched_without_waiting(gpu):
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, device=GPU, ndim=2),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=8,
    )
    steps = records().view(4, 6)  # 4 environments, 6 steps
    with NoWaits():
        index, generation = rb.extend(steps, return_generations=True)
        rb.add(steps[:, 0])
        batch, info = rb.sample(return_info=True)
        patch = {"reward": torch.ones(ROWS, device=GPU)}
        rb.update_if_present(index=index, generation=generation, patch=patch, version_key="version", version=1)
        slots = index.view(6, 4, 2)[:, 0, 0]
        whole = rb.update_if_present(
            index=slots, generation=generation[::4], patch={"reward": patch["reward"].view(6, 4)}
        )
        rb.set_at_("reward", patch["reward"], index.unbind(-1))
        assert rb.storage[index.unbind(-1)].shape == (ROWS,) and rb.storage[slots].shape == (6, 4)
        assert rb.writer.generations_of(info["index"]).device == GPU
    assert (index.shape, batch["index"].shape, whole.updated.shape) == ((ROWS, 2), (8, 2), (6,))


def test_data_from_the_host_goes_through_pinned_memory(gpu):
    rb = buffer_of("reward")
    with NoWaits():
        index, generation = rb.extend(records(device="cpu"), return_generations=True)
        rb.sample()
        patch = {"reward": torch.ones(ROWS)}
        rb.update_if_present(index=index, generation=generation, patch=patch, version_key="version", version=1)
        # A number that needs no conversion: those that do are looked at, on the host, where they lie.
        given = {"version_key": "loss", "version": torch.ones(ROWS, dtype=torch.float16)}
        rb.update_if_present(index=index, generation=generation, patch=patch, **given)


def test_a_generator_on_the_host_gives_its_number_without_waiting(gpu):
    rb = ReplayBuffer(storage=LazyTensorStorage(10, device=GPU), batch_size=4, generator=torch.Generator())
    with NoWaits():
        rb.extend(records())
        rb.sample()


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_auto_is_the_device_of_the_first_batch(device):
    rb = buffer_of("recency", device="auto")
    with pretended_gpu() if device == GPU else nullcontext():
        check_auto(rb, device)


def check_auto(rb: ReplayBuffer, device: torch.device) -> None:
    with pytest.raises(ValueError, match="batch size"):
        rb.extend(TensorDict({"x": torch.zeros(3, device=device)}))
    assert rb.storage.device.type == "cpu" and not rb.storage.tables  # nothing is settled by what was refused
    rb.extend(records(device=device))
    storage = rb.storage
    assert {storage.device, storage.control.device, storage.journal.device, storage.tables[0].device} == {device}
    assert rb.extend(records(device="cpu")).device == device


def test_priorities_on_a_gpu_wait_for_nothing(gpu):
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, priority_key="reward", storage=LazyTensorStorage(100, device=GPU), batch_size=12,
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    with NoWaits():
        for _ in range(3):
            index = rb.extend(records())
            batch = rb.sample()
            batch["reward"] = torch.ones(12, 3, device=GPU)
            rb.update_tensordict_priority(batch)
            rb.update_priority(index, torch.ones(ROWS))
            rb.mark_update(index)
            rb[index] = records()
    assert batch["priority_weight"].device == GPU and batch["priority_weight"].shape == (12,)


def test_an_empty_storage_is_known_to_be_empty(gpu):
    """Without a look at the device: only after a clearing does the host have to ask."""
    rb = buffer_of("uniform")
    assert not rb.storage.known_nonempty
    rb.extend(records(0))
    assert not rb.storage.known_nonempty
    rb.extend(records(1))
    assert rb.storage.known_nonempty
    rb.empty()
    assert not rb.storage.known_nonempty


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_call_on_another_stream_waits_there_for_the_one_before(gpu):
    rb = buffer_of("reward")
    rb.extend(records())
    first, done = gpu.stream, rb.storage.lock._done
    recorded = done.recorded
    gpu.stream = second = Stream()
    with NoWaits():
        rb.sample()
        assert second.waited_for == [done] and done.recorded > recorded
        rb.sample()
        assert len(second.waited_for) == 1  # calls that stay on a stream are in order as it is
        gpu.stream = first
        rb.extend(records())
    assert first.waited_for == [done]


def test_a_capture_neither_waits_for_other_streams_nor_asks_for_flags(gpu):
    rb = buffer_of("reward")
    rb.extend(records())
    rb.sample()
    asked, recorded = len(rb.sampler._late._asked), rb.storage.lock._done.recorded
    gpu.stream, gpu.capturing = Stream(), True
    with NoWaits():
        rb.extend(records())
        rb.sample()
    assert gpu.stream.waited_for == [] and rb.storage.lock._done.recorded == recorded
    assert len(rb.sampler._late._asked) == asked
    with pytest.raises(RuntimeError, match="CUDA graph"):
        rb.extend(records(device="cpu"))
    rb.generator = torch.Generator()
    with pytest.raises(RuntimeError, match="CUDA graph"):
        rb.sample()


# --- the pretence itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.copy_(torch.zeros(4)),
        lambda x: torch.zeros(4).copy_(x),
        lambda x: torch.unique(x),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
    ],
)
def test_the_pretended_device_notices_a_wait(gpu: Pretence, wait: Any):
    x: Tensor = torch.zeros(4, device=GPU)
    with NoWaits(), pytest.raises((Waited, torch._subclasses.fake_tensor.DataDependentOutputException)):
        wait(x)
