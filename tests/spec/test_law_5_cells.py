"""Law 5 in several dimensions: what is drawn early, restored or prioritized is what a plain buffer draws."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.spec.test_law_2_cells import CELLS, PER_RECORD, SAMPLERS, SLOTS, buffer_of, records
from torchrb import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
)


def flat_index(index):
    slot, *inner = index.unbind(-1) if isinstance(index, torch.Tensor) else index
    return (slot * CELLS[0] + inner[0]) * CELLS[1] + inner[1]


def prioritized(ndim, size=SLOTS * PER_RECORD, **options):
    return TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(size, ndim=ndim), batch_size=7, dim_extend=0,
        generator=torch.Generator().manual_seed(5), **options,
    )  # fmt: skip


def test_priorities_of_cells_are_those_of_rows():
    cells, rows = prioritized(3), prioritized(1)
    for first in range(0, 12, 3):
        batch = records(range(first, first + 3))
        batch["td_error"] = (batch["n"] % 5 + 1).float()[..., None].expand(*batch.shape, 2)
        cells.extend(batch)
        rows.extend(batch.reshape(-1))
        one = records([first])[0]
        one["td_error"] = torch.full((*CELLS, 2), 0.5)
        index = cells.add(one)
        rows.extend(one.reshape(-1))
        assert index.shape == (PER_RECORD, 3)
        for _ in range(2):
            (a, told), (b, expected) = cells.sample(return_info=True), rows.sample(return_info=True)
            assert torch.equal(flat_index(a["index"]), b["index"])
            assert torch.equal(a["priority_weight"], b["priority_weight"])
            assert torch.equal(flat_index(told["index"]), expected["index"])
            for batch in (a, b):
                batch["td_error"] = (batch["n"] % 3).float()
            cells.update_tensordict_priority(a)
            rows.update_tensordict_priority(b)
        at = tuple(part[:3] for part in told["index"])
        cells.update_priority(at, torch.tensor([9.0, 8.0, 7.0]))
        rows.update_priority(flat_index(at), torch.tensor([9.0, 8.0, 7.0]))
        cells.mark_update(torch.stack(told["index"], -1)[3:5])
        rows.mark_update(expected["index"][3:5])
        assert torch.equal(cells.sampler.priorities(cells.storage), rows.sampler.priorities(rows.storage))


def test_priorities_refuse_what_names_no_cell():
    rb = prioritized(3)
    rb.extend(records(range(3)))
    before = rb.sampler.priorities(rb.storage)
    with pytest.raises(ValueError, match="with ndim=3 an index names cells"):
        rb.update_priority(torch.tensor([0, 1]), 2.0)
    with pytest.raises(IndexError, match="outside of its record"):
        rb.update_priority(torch.tensor([[0, 0, 3]]), 2.0)
    with pytest.raises(IndexError):
        rb.update_priority(torch.tensor([[SLOTS, 0, 0]]), 2.0)
    assert torch.equal(rb.sampler.priorities(rb.storage), before)


def test_a_capacity_that_is_rounded_up_fits_its_sampler():
    rb = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=LazyTensorStorage(10, ndim=2), batch_size=4)
    rb.extend(torch.arange(12).view(3, 4))
    rb.sample()
    assert rb.storage.max_size == 12
    with pytest.raises(ValueError, match="max_capacity"):
        small = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2), sampler=PrioritizedSampler(9, 1.0, 1.0))
        small.extend(torch.zeros(3, 4))
        small.sample(2)


@pytest.mark.parametrize("sampler", [*SAMPLERS, "prioritized"])
def test_cells_drawn_early_are_those_drawn_late(sampler):
    answers = []
    for depth in (None, 2):
        if sampler == "prioritized":
            rb = prioritized(3, prefetch=depth)
        else:
            rb = buffer_of("packed", sampler, prefetch=depth)
        told = []
        for first in (0, 3, 6):
            rb.extend(records(range(first, first + 3)))
            for _ in range(4):
                batch, info = rb.sample(None if sampler == "prioritized" else 10 if sampler != "groups" else 4, True)
                told += [batch["n"].tolist(), batch["index"].tolist(), [part.tolist() for part in info["index"]]]
        answers.append(told)
        rb.shutdown()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("sampler", [*SAMPLERS, "prioritized"])
def test_a_buffer_of_cells_goes_on_where_it_was_saved(sampler, tmp_path):
    def made():
        return prioritized(3) if sampler == "prioritized" else buffer_of("packed", sampler)

    rb, size = made(), 4
    rb.extend(records(range(SLOTS + 1)))
    rb.sample(size)
    rb.dumps(tmp_path)
    expected = [rb.sample(size) for _ in range(3)]
    for other in (made(), made()):
        other.loads(tmp_path)
        for batch in expected:
            got = other.sample(size)
            assert torch.equal(got["index"], batch["index"]) and torch.equal(got["n"], batch["n"])


def test_hooks_see_records_as_the_storage_shows_them(tmp_path):
    shapes = []

    def note(data):
        shapes.append(tuple(data.shape))
        return TensorDict({key: value + 1 for key, value in data.items()}, data.batch_size)

    def made():
        rb = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2), sampler=SamplerWithoutReplacement())
        rb.register_save_hook(note)
        rb.register_load_hook(note)
        return rb

    rb = made()
    rb.extend(TensorDict({"x": torch.arange(9).view(3, 3)}, [3, 3]))
    rb.dumps(tmp_path)
    other = made()
    other.loads(tmp_path)
    assert shapes == [(3, 3), (3, 3)] and torch.equal(other[:]["x"], torch.arange(9).view(3, 3) + 2)
    assert (len(other), other.write_count, other.storage.max_size) == (9, 3, 12)
