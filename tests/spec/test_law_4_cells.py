"""Law 4 in several dimensions: whatever changes a cell, the next draw knows; and cells are drawn as single rows are."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.spec.test_law_2_cells import CELLS, PER_RECORD, SAMPLERS, SLOTS, STORAGES, buffer_of, records
from torchrb import LazyTensorStorage, PromptGroupSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_cells_are_drawn_as_rows_of_one_dimension_are(sampler):
    """The same seeds, the same history, told in records of cells and in single rows."""
    cells = buffer_of("packed", sampler)
    rows = TensorDictReplayBuffer(
        storage=LazyTensorStorage(SLOTS * PER_RECORD),
        sampler=SAMPLERS[sampler](),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=torch.Generator().manual_seed(0),
    )
    rows.writer.choose = None  # a ring over used rows too, as that of cells is
    written = 0
    for num in (3, 1, 4, 2):
        batch = records(range(written, written + num))
        written += num
        cells.extend(batch)
        rows.extend(batch.reshape(-1))
        a, b = cells.sample(4), rows.sample(4)
        slot, *inner = a["index"].unbind(-1)
        assert torch.equal((slot * CELLS[0] + inner[0]) * CELLS[1] + inner[1], b["index"])
        assert torch.equal(a["index_generation"], b["index_generation"])
        assert (a.exclude("index") == b.exclude("index")).all()
        assert len(cells) == len(rows)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_cell_is_drawn_once_where_draws_consume(sampler):
    rb, drawn = buffer_of("packed", sampler, consume_after_n_samples=1), set()
    for first in range(0, 8, 2):
        index = rb.extend(records([first, first + 1]))
        assert index[:: len(index) // 2, 0].tolist() == [first % SLOTS, (first + 1) % SLOTS]  # the ring goes on
        before = len(rb)
        batch = rb.sample(4)
        assert len(rb) == before - len(batch)
        handles = set(map(tuple, torch.cat([batch["index"], batch["index_generation"][:, None]], 1).tolist()))
        assert len(handles) == len(batch) and not handles & drawn
        drawn |= handles


WRITES = {
    "set_at_": lambda rb, at, value: rb.set_at_("g", value, at),
    "a patch": lambda rb, at, value: rb.update_if_present(
        index=at, generation=rb.writer.generations_of(at), patch={"g": value}
    ),
    "rb[...] =": lambda rb, at, value: rb.__setitem__(at, rb.storage[at].set("g", value)),
    "storage[...] =": lambda rb, at, value: rb.storage.__setitem__(at, rb.storage[at].set("g", value)),
    "update_": lambda rb, at, value: rb.update_(
        TensorDict({"g": rb.storage[:]["g"].index_put(at, value)}, rb.storage[:].batch_size)
    ),
}


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("kind", STORAGES)
def test_a_cell_that_changes_its_group_is_drawn_in_the_new_one(kind, way):
    rb = buffer_of(kind)
    rb.set_sampler(PromptGroupSampler(num_groups=1, group_key="g", strategy="recency"))
    batch = records(range(SLOTS))
    batch["g"].zero_()
    rb.extend(batch)
    rb.sample(4)
    at = (torch.tensor([1, 4, 4]), torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2]))
    WRITES[way](rb, at, torch.full((3,), 7))
    found = set()
    for _ in range(30):
        drawn, info = rb.sample(3, return_info=True)
        assert info["num_groups"] == 2 and drawn["g"].unique().numel() == 1
        if int(drawn["g"][0]) == 7:
            found |= set(map(tuple, drawn["index"].tolist()))
    assert found == set(map(tuple, torch.stack(at, -1).tolist()))
    rb.extend(records([50]))  # over slot 0; then over slot 1, which takes one of them away
    rb.extend(records([51]))
    assert int((rb.storage[:]["g"] == 7).sum()) == 2


@pytest.mark.parametrize("num", [1, 3, 7])
def test_writes_without_replacement_and_wrapping_leave_every_cell_drawn_once(num):
    rb = buffer_of("packed", "without replacement")
    for first in range(0, 21, num):
        rb.extend(records(range(first, first + num)))
    rb.set_sampler(SAMPLERS["without replacement"]())
    stored = len(rb)
    drawn = torch.cat([rb.sample(PER_RECORD)["index"] for _ in range(stored // PER_RECORD)])
    assert drawn.unique(dim=0).shape == (stored, 3)
