"""Law 3: a handle names a record, not a slot. (index, generation) never becomes valid for another record."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.spec.builders import STORAGES, TENSOR_STORAGES, buffer_of, numbered, numbers_of
from tests.spec.histories import OTHER, PARTS, WHOLE, History
from torchrb import (
    LazyMemmapStorage,
    PromptGroupSampler,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def patched(rb: TensorDictReplayBuffer, index: torch.Tensor, generation: torch.Tensor) -> list[bool]:
    """Which handles a patch takes; it leaves the records as they were, so it can be asked again."""
    patch = {"flag": rb[:]["n"][index.clamp(0, len(rb) - 1)] % 2 == 1} if len(rb) else {"flag": index > 0}
    return rb.update_if_present(index=index, generation=generation, patch=patch).updated.tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", STORAGES)
def test_no_handle_is_given_out_twice_in_any_history(kind, seed):
    """`History` fails by itself where a handle comes to name another record, or a stale one is patched."""
    history = History(kind, capacity=(3, 5, 8)[seed % 3], seed=seed)
    for _ in range(60):
        history.step()
        history.check()
    assert len(history.handles) > 60


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_of_all_handles_ever_given_out_those_of_living_records_are_live(kind, seed):
    history = History(kind, capacity=5, seed=100 + seed).run(60)
    history.step("extend")
    handles = sorted(history.handles) + sorted(history.lost)
    index, generation = torch.tensor(handles).unbind(1)
    there = [handle in history.handles and history.slots[handle[0]] is history.handles[handle] for handle in handles]
    assert sum(there) == history.length and patched(history.rb, index, generation) == there
    history.check()


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_writing_a_whole_record_retires_the_handle_it_had(kind, way):
    history = History(kind, capacity=4, seed=1)
    history.step("extend")
    for _ in range(5):
        before = [(slot, record) for slot, record in enumerate(history.slots[: history.length])]
        handles = {h: r for h, r in history.handles.items()}
        history.step(way)
        replaced = [slot for slot, record in before if history.slots[slot] is not record]
        assert replaced or history.length > len(before)
        old = [handle for handle, record in handles.items() if handle[0] in replaced]
        if old:
            assert not any(patched(history.rb, *torch.tensor(old).unbind(1)))


@pytest.mark.parametrize("way", PARTS)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_writing_a_part_of_a_record_keeps_its_handle_stamp_and_count(kind, way):
    history = History(kind, capacity=4, seed=2)
    history.step("extend")
    index = torch.arange(history.length)
    generation = history.rb.writer.generations_of(index)
    order = recency_order(history.rb)
    count = history.rb.write_count
    for _ in range(5):
        history.step(way)
    assert all(patched(history.rb, index, generation))
    assert history.rb.writer.generations_of(index).tolist() == generation.tolist()
    assert recency_order(history.rb) == order and history.rb.write_count == count


def recency_order(rb: TensorDictReplayBuffer) -> list[int]:
    """The records, oldest first, as the strategy "recency" orders one group of all."""
    rb.set_("g", torch.zeros(len(rb)).long())
    previous = rb.set_sampler(PromptGroupSampler(num_groups=1, group_key="g", strategy="recency"))
    order = rb.sample(len(rb))["n"].tolist()
    rb.set_sampler(previous)
    rb.set_("g", rb[:]["n"] % 3)
    return order


@pytest.mark.parametrize("way", OTHER)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_what_was_emptied_or_written_back_is_not_the_old_record(kind, way):
    history = History(kind, capacity=4, seed=3)
    history.step("extend")
    index = torch.arange(history.length)
    generation = history.rb.writer.generations_of(index)
    history.step(way)
    assert not any(patched(history.rb, index, generation))
    for _ in range(3):  # not after any number of later turns either
        history.step("extend")
        assert not any(patched(history.rb, index, generation))


@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_emptying_again_and_again_never_comes_back_to_a_handle(kind):
    rb = buffer_of(kind, 2)
    seen: set[tuple[int, int]] = set()
    for turn in range(20):
        index, generation = rb.extend(numbered(range(turn % 4 + 1)), return_generations=True)
        handles = set(zip(index.tolist(), generation.tolist(), strict=True))
        assert len(handles) == len(index) and not handles & seen
        seen |= handles
        rb.empty()
        rb.empty()


@pytest.mark.parametrize("kind", STORAGES)
def test_generations_advance_whether_or_not_a_writer_tells_them(kind):
    tracking = buffer_of(kind, 4)
    silent = TensorDictReplayBuffer(storage=tracking.storage, writer=RoundRobinWriter())
    index = tracking.extend(numbered(range(4)))
    before = tracking.writer.generations_of(index)
    silent.extend(numbered(range(2)))
    assert (tracking.writer.generations_of(index) - before).tolist() == [1, 1, 0, 0]
    assert silent.writer.generations_of(index).tolist() == [-1] * 4 and not silent.writer.tracks_generations
    late = TensorDictReplayBuffer(storage=tracking.storage, writer=TensorDictRoundRobinWriter(track_generations=True))
    assert torch.equal(late.writer.generations_of(index), tracking.writer.generations_of(index))


@pytest.mark.parametrize("kind", STORAGES)
def test_a_sample_tells_the_generation_of_what_it_holds(kind):
    history = History(kind, capacity=5, seed=7).run(30)
    history.step("extend")
    batch, info = history.rb.sample(20, return_info=True)
    assert torch.equal(batch["index"], info["index"])
    assert torch.equal(batch["index_generation"], info["index_generation"])
    for slot, generation, number in zip(
        batch["index"].tolist(), batch["index_generation"].tolist(), batch["n"].tolist(), strict=True
    ):
        assert history.handles[slot, generation].number == number


@pytest.mark.parametrize(
    "transform",
    [lambda batch: batch.exclude("text") + 1, lambda batch: batch.select("n"), lambda batch: batch.clone().lock_()],
    ids=["arithmetic over all fields", "fields left out", "locked"],
)
@pytest.mark.parametrize("kind", STORAGES)
def test_no_transform_changes_what_a_handle_names(kind, transform):
    rb = buffer_of(kind, 5, numbers=range(7))  # two of them are gone
    live = rb.writer.generations_of(torch.arange(5))
    rb.append_transform(transform)
    batch, info = rb.sample(20, return_info=True)
    assert torch.equal(batch["index"], info["index"])
    assert torch.equal(batch["index_generation"], info["index_generation"])
    assert torch.equal(batch["index_generation"], live[batch["index"]])
    assert torch.equal(
        transform(torch.stack(rb.storage[:]) if kind == "list" else rb.storage[:])["n"][batch["index"]], batch["n"]
    )
    assert rb[torch.tensor([3, 1])]["index"].tolist() == [3, 1]


@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_a_sampled_batch_goes_back_without_its_handles(kind):
    rb = buffer_of(kind, 4, numbers=range(4))
    batch = rb.sample(3)
    assert {"index", "index_generation"} <= set(batch.keys())
    rb.extend(batch)
    assert numbers_of(rb[:3]) == batch["n"].tolist()


def test_files_that_are_gone_on_with_twice_give_no_handle_twice(tmp_path):
    """Two copies of one directory go on; as with a file that is older than what was counted last, neither knows what
    the other gives out.
    """
    storage = LazyMemmapStorage(3, scratch_dir=tmp_path / "0")
    index, generation = (part.tolist() for part in storage.append(torch.arange(4)))
    given = [(0, generation[3]), *zip(index[1:3], generation[1:3], strict=True)]
    del storage
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    for turn in range(4):
        storage = LazyMemmapStorage(3, scratch_dir=tmp_path / str(turn % 2), existsok=True)
        for _ in range(2):
            given += zip(*(part.tolist() for part in storage.append(torch.arange(2))), strict=True)
        storage.clear()
        del storage
    assert len(set(given)) == len(given)
