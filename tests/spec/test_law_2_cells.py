"""Law 2 in several dimensions: a cell's index, its record's generation and its content belong together."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.spec.builders import group_sampler, numbered, numbers_of
from torchrb import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

SLOTS, CELLS = 5, (2, 3)
PER_RECORD = 6


def records(numbers):
    """``[n, *CELLS]``: cell ``i`` of record ``m`` tells ``m * PER_RECORD + i``."""
    numbers = torch.as_tensor(numbers)
    cells = (numbers[:, None] * PER_RECORD + torch.arange(PER_RECORD)).reshape(-1)
    return numbered(cells).exclude("text").view(len(numbers), *CELLS)


def _adopted():
    storage = TensorStorage(records([0] * SLOTS), ndim=3)
    storage.clear()
    return storage


STORAGES = {
    "packed": lambda: LazyTensorStorage(SLOTS * PER_RECORD, ndim=3),
    "columns": lambda: LazyTensorStorage(SLOTS * PER_RECORD, ndim=3, layout="columns"),
    "memmap": lambda: LazyMemmapStorage(SLOTS * PER_RECORD, ndim=3),
    "adopted": _adopted,
}
SAMPLERS = {
    "random": lambda: RandomSampler(),
    "without replacement": lambda: SamplerWithoutReplacement(drop_last=True),
    "groups": lambda: group_sampler("reward", num_groups=2),
}


def buffer_of(kind, sampler="random", **options):
    return TensorDictReplayBuffer(
        storage=STORAGES[kind](),
        sampler=SAMPLERS[sampler](),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=10,
        dim_extend=0,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def assert_together(index, generations, numbers):
    """Record ``m`` went into slot ``m % SLOTS`` as its write ``m // SLOTS``, and no other way."""
    slot, *inner = index.unbind(-1)
    record, cell = numbers // PER_RECORD, numbers % PER_RECORD
    assert torch.equal(slot, record % SLOTS)
    assert torch.equal(inner[0] * CELLS[1] + inner[1], cell)
    assert torch.equal(generations, record // SLOTS)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", STORAGES)
def test_draws_of_cells_tell_where_they_are(kind, sampler):
    rb = buffer_of(kind, sampler)
    written = 0
    for num in (1, 3, 4, 2, 5):
        index, generations = rb.extend(records(range(written, written + num)), return_generations=True)
        assert_together(
            index, generations - 2 * (kind == "adopted"), torch.arange(PER_RECORD * num) + PER_RECORD * written
        )
        written += num
        for _ in range(2):
            batch, info = rb.sample(4, return_info=True)
            numbers = torch.tensor(numbers_of(batch))
            assert_together(batch["index"], batch["index_generation"] - 2 * (kind == "adopted"), numbers)
            assert torch.equal(torch.stack(info["index"], -1), batch["index"])
            again = rb.storage[info["index"]]
            assert numbers_of(again) == numbers.tolist()
            assert torch.equal(rb.writer.generations_of(batch["index"]), batch["index_generation"])


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_cells_drawn_while_others_write_are_of_one_record(kind):
    rb = buffer_of(kind)
    rb.extend(records(range(SLOTS)))
    faults, done = [], threading.Event()

    def draw():
        generator = torch.Generator().manual_seed(1)
        try:
            while not done.is_set():
                batch = rb.sample(16)
                assert_together(batch["index"], batch["index_generation"], torch.tensor(numbers_of(batch)))
                whole = rb.storage[int(torch.randint(SLOTS, (), generator=generator))]
                numbers = torch.tensor(numbers_of(whole))
                assert (numbers // PER_RECORD).unique().numel() == 1
                assert (numbers % PER_RECORD).tolist() == list(range(PER_RECORD))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    for first in range(SLOTS, 60 * SLOTS, 3):
        rb.extend(records(range(first, first + 3)))
    done.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
