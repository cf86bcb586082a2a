"""Law 3 in several dimensions: a handle names a record, whose cells come and go together."""

from __future__ import annotations

import pytest
import torch

from tests.spec.builders import numbers_of
from tests.spec.processes import call
from tests.spec.test_law_2_cells import CELLS, PER_RECORD, SLOTS, STORAGES, buffer_of, records


def patch(rb, index, generation):
    """Which handles of cells are good; their records are left as they are."""
    current = rb.storage[:]["flag"]
    cells = current[tuple(index.clamp(max=current.shape[0] - 1).unbind(-1))] if len(current) else index[:, 0] > 0
    return rb.update_if_present(index=index, generation=generation, patch={"flag": cells}).updated


@pytest.mark.parametrize("kind", STORAGES)
def test_handles_of_lost_records_stay_stale(kind):
    rb = buffer_of(kind)
    index, generation = rb.extend(records(range(2 * SLOTS + 1)), return_generations=True)
    lost = (SLOTS + 1) * PER_RECORD
    assert patch(rb, index, generation).tolist() == [False] * lost + [True] * (len(index) - lost)
    rb.empty()
    rb.extend(records(range(SLOTS)))
    assert not patch(rb, index, generation).any()


@pytest.mark.parametrize("kind", STORAGES)
def test_a_write_to_some_cells_leaves_the_record_and_a_whole_one_does_not(kind):
    rb = buffer_of(kind)
    index, generation = rb.extend(records(range(SLOTS)), return_generations=True)
    other = records([40])[0]
    rb.storage[0, 1] = other[1]
    rb.storage[1, :, 0] = other[:, 0]
    rb.storage[(torch.tensor([2, 3]), torch.tensor([0, 1]), torch.tensor([1, 1]))] = other[0, :2]
    rb.set_at_(
        "n", torch.zeros(2, dtype=torch.int64), (torch.tensor([4, 4]), torch.tensor([0, 1]), torch.tensor([2, 2]))
    )
    assert patch(rb, index, generation).all()
    assert rb.storage[0, 1]["n"].tolist() == other[1]["n"].tolist()
    assert rb.storage[0, 0]["n"].tolist() == [0, 1, 2]
    rb.storage[1] = other
    rb.storage[[3]] = other[None]
    rb[4:5, :, :] = other[None]
    good = patch(rb, index, generation).view(SLOTS, PER_RECORD)
    assert good.all(1).tolist() == [True, False, True, False, False] and torch.equal(good.all(1), good.any(1))
    assert (
        rb.writer.generations_of(torch.arange(SLOTS)).tolist()
        == (generation.view(SLOTS, -1)[:, 0] + torch.tensor([0, 1, 0, 1, 1])).tolist()
    )


@pytest.mark.parametrize("ends", ["whole", "cells"])
@pytest.mark.parametrize("kind", ["packed", "columns", "memmap"])
def test_a_restored_record_has_its_handles_again_and_no_other_ever(kind, ends, tmp_path):
    rb, other = buffer_of(kind), buffer_of(kind)
    index, generation = rb.extend(records(range(SLOTS + 2)), return_generations=True)
    if ends == "cells":
        other.extend(records([9]))
    rb.storage.dumps(tmp_path / "dump")
    other.storage.loads(tmp_path / "dump")
    snapshot = rb.storage.state_dict()
    for restored in (other, buffer_of("packed")):
        if restored is not other:
            restored.storage.load_state_dict(snapshot)
        assert numbers_of(restored.storage[:]) == numbers_of(rb.storage[:])
        assert restored.storage.cells == torch.Size(CELLS) and restored.write_count == SLOTS + 2
        assert torch.equal(patch(restored, index, generation), patch(rb, index, generation))
        late, numbers = restored.extend(records([50, 51, 52]), return_generations=True)
        here, known = rb.extend(records([50, 51, 52]), return_generations=True)
        assert torch.equal(late, here) and not (numbers == known).any()
        assert (numbers.view(3, -1) == numbers.view(3, -1)[:, :1]).all()
        rb.storage.load_state_dict(snapshot)


def test_a_state_with_other_cells_is_refused():
    rb = buffer_of("packed")
    rb.extend(records(range(SLOTS)))
    state = rb.storage.state_dict()
    other = buffer_of("packed")
    other.extend(records([1]).view(1, 3, 2))
    before = other.storage[:]
    with pytest.raises(ValueError, match=r"cells \[2, 3\].*cells \[3, 2\]"):
        other.storage.load_state_dict(state)
    torn = rb.storage.state_dict()
    torn["rows"][0]["tables"][0].view(torch.int64)[PER_RECORD, 0] += 4
    with pytest.raises(ValueError, match="some cells are missing or others"):
        other2 = buffer_of("packed")
        other2.storage.load_state_dict(torn)
    assert (other.storage[:] == before).all() and len(other2) == 0


def extended(rb, numbers):
    index, generation = rb.extend(records(numbers), return_generations=True)
    return index.tolist(), generation.tolist(), rb.storage.max_size


def test_other_processes_have_the_same_cells_whoever_wrote_first():
    for kind in ("packed", "columns", "memmap"):
        rb = buffer_of(kind, shared=True)
        index, generation, size = call(extended, rb, [0, 1, 2])
        assert size == rb.storage.max_size == SLOTS * PER_RECORD and rb.storage.cells == torch.Size(CELLS)
        assert numbers_of(rb.storage[:]) == list(range(3 * PER_RECORD))
        assert patch(rb, torch.tensor(index), torch.tensor(generation)).all()
        rb.extend(records(range(3, 8)))
        assert patch(rb, torch.tensor(index), torch.tensor(generation)).sum() == 0


def test_a_file_of_cells_is_there_another_day(tmp_path):
    from torchrb import LazyMemmapStorage, ReplayBuffer

    first = ReplayBuffer(storage=LazyMemmapStorage(10, ndim=2, scratch_dir=tmp_path))
    first.extend(torch.arange(12).view(3, 4))
    del first
    with pytest.raises(ValueError, match="ndim=2, got ndim=1"):
        LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True)
    again = ReplayBuffer(storage=LazyMemmapStorage(10, ndim=2, scratch_dir=tmp_path, existsok=True))
    assert again[:].tolist() == torch.arange(12).view(3, 4).tolist() and again.storage.max_size == 12
