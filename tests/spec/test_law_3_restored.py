"""Laws 3 and 5 across a load: a restored buffer goes on bit for bit, its handles are good again, and what it writes has
generations that nobody was ever given.
"""

from __future__ import annotations

import pytest
import torch

from tests.spec import processes, restored
from tests.spec.restored import STORAGES, begun, buffer, rows, told
from torchrb import LazyTensorStorage, ReplayBuffer, RoundRobinWriter

PLAIN = ("random", "passes", "priorities")  # samplers that ask for no field
ALL = [
    (storage, sampler) for storage in STORAGES for sampler in restored.SAMPLERS if sampler in PLAIN or storage != "list"
]


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
@pytest.mark.parametrize(("storage", "sampler"), ALL)
def test_a_buffer_that_loads_goes_on_as_the_one_that_was_saved(tmp_path, storage, sampler):
    rb = begun(storage, sampler)
    rb.dumps(tmp_path)
    state = rb.state_dict()
    did, written = told(rb)
    given = set(written)
    for way in range(3):
        new = buffer(storage, sampler) if way else rb
        if way == 1:
            new.load_state_dict(state)
        else:
            new.loads(tmp_path)
        again, generations = told(new)
        assert again == did
        assert not given & set(generations), "a generation was given out twice"
        given |= set(generations)


@pytest.mark.parametrize("sampler", ["random", "passes", "priorities"])
@pytest.mark.parametrize(("early", "later"), [(3, None), (None, 3), (2, 4)])
def test_at_any_depth_of_prefetching(tmp_path, sampler, early, later):
    rb = buffer("packed", sampler, prefetch=early)
    rb.generator.manual_seed(5)
    rb.extend(rows(0, 12))
    for _ in range(3):
        rb.sample()
    rb.dumps(tmp_path)
    expected = [rb.sample()["n"].tolist() for _ in range(6)]
    new = buffer("packed", sampler, prefetch=later)
    new.extend(rows(50, 12))
    new.sample()
    new.loads(tmp_path)
    assert [new.sample()["n"].tolist() for _ in range(6)] == expected
    rb.shutdown()
    new.shutdown()


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
@pytest.mark.parametrize(
    ("storage", "sampler", "limit"), [("packed", "passes", None), ("packed", "best", 3), ("memmap", "random", None)]
)
def test_and_so_does_one_in_a_new_process(tmp_path, storage, sampler, limit):
    rb = begun(storage, sampler, limit)
    rb.dumps(tmp_path)
    did, written = told(rb)
    again, generations = processes.call(restored.go_on, storage, sampler, limit, tmp_path)
    assert again == did and not set(written) & set(generations)


@pytest.mark.parametrize("storage", [name for name in STORAGES if name not in ("list", "stack")])
def test_handles_from_before_are_good_again_and_those_from_after_are_not(tmp_path, storage):
    rb = begun(storage, "random")
    before = rb[:]["index"], rb.writer.generations_of(rb[:]["index"])
    rb.dumps(tmp_path)
    after = rb.extend(rows(100, 5), return_generations=True)
    rb.loads(tmp_path)

    def patch(handles):
        index, generation = handles
        patch = {"reward": torch.full((len(index),), 70.0).double()}
        return rb.update_if_present(index=index, generation=generation, patch=patch)

    assert patch(after).stale_count == 5
    assert patch(before).updated_count == restored.CAPACITY and (rb[:]["reward"] == 70).all()
    again = rb.extend(rows(100, 5), return_generations=True)
    assert (again[0] == after[0]).all() and not (again[1] == after[1]).any()
    assert patch(after).stale_count == 5 and patch(again).stale_count == 0
    assert patch(before).stale_count == 5  # those that were overwritten


def test_no_handle_is_given_out_twice_by_processes_that_go_on_from_one_dump(tmp_path):
    """Each goes on from the same dump, writes in every way there is, and is lost."""
    given, rb = set(), ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True))
    rb.extend(torch.arange(4))
    rb.dumps(tmp_path)
    slots = torch.arange(4)
    for turn in range(12):
        rb = ReplayBuffer(storage=LazyTensorStorage(4 + turn % 3), writer=RoundRobinWriter(track_generations=True))
        rb.loads(tmp_path)
        for _ in range(1 + turn % 4):
            if turn % 2:
                rb.empty()
            index, generation = rb.extend(torch.arange(6), return_generations=True)
            new = set(zip(index.tolist(), generation.tolist(), strict=True))
            rb[1] = torch.tensor(3)
            rb.writer.write_at(torch.tensor([2, 2]), torch.zeros(2, dtype=torch.int64))
            new |= set(zip([1, 2], rb.writer.generations_of(slots)[1:3].tolist(), strict=True))
            assert not new & given
            given |= new
            if turn % 3 == 0:
                rb.load_state_dict(rb.state_dict())  # which begins another epoch


def test_slots_that_a_load_leaves_free_begin_anew(tmp_path):
    rb = ReplayBuffer(storage=LazyTensorStorage(6), writer=RoundRobinWriter(track_generations=True))
    rb.extend(torch.arange(2))
    state = rb.state_dict()
    _, given = rb.extend(torch.arange(9), return_generations=True)
    rb.load_state_dict(state)
    assert rb.writer.generations_of(torch.arange(6)).tolist() == [0, 0, -1, -1, -1, -1]
    _, again = rb.extend(torch.arange(9), return_generations=True)
    assert not set(given.tolist()) & set(again.tolist())
    assert rb[:].tolist() == [4, 5, 6, 7, 8, 3] and len(rb) == 6


@pytest.mark.parametrize("loaded", [5, 9])
def test_a_ring_that_has_turned_round_is_not_loaded_into_another_size(loaded):
    """Its oldest record is not in slot 0, and what comes next would follow another record: a trajectory that never was,
    and a record overwritten before older ones.
    """
    rb, new = (ReplayBuffer(storage=LazyTensorStorage(capacity)) for capacity in (4, loaded))
    rb.extend(torch.arange(6))
    with pytest.raises(ValueError, match="ring of 4 records has turned round.*max_size=4"):
        new.load_state_dict(rb.state_dict())
    assert len(new) == 0
    rb.extend(torch.arange(2))  # the oldest is in slot 0 again
    new.load_state_dict(rb.state_dict())
    assert new[:].tolist() == rb[:].tolist() and new.add(torch.tensor(7)) == 4


@pytest.mark.parametrize(("saved", "loaded"), [(4, 4), (9, 4), (9, 9), (9, 5)])
def test_records_keep_their_slots_in_a_storage_of_another_capacity(saved, loaded):
    rb = ReplayBuffer(storage=LazyTensorStorage(saved))
    rb.extend(torch.arange(6) if saved == 4 else torch.arange(4))
    new = ReplayBuffer(storage=LazyTensorStorage(loaded))
    new.load_state_dict(rb.state_dict())
    assert new[:].tolist() == rb[:].tolist()
    index = new.extend(torch.tensor([100, 101]))
    if loaded == saved:
        assert index.tolist() == rb.extend(torch.tensor([100, 101])).tolist()
    else:  # nothing is overwritten while there is room
        assert index.tolist() == [4 % loaded, 5 % loaded]


def test_an_emptied_buffer_is_saved_as_one(tmp_path):
    rb = begun("packed", "passes")
    index = rb[:]["index"]
    handles = index, rb.writer.generations_of(index)
    rb.empty()
    rb.dumps(tmp_path)
    new = begun("packed", "passes")
    new.loads(tmp_path)
    assert len(new) == 0 and new.write_count == 0
    with pytest.raises(RuntimeError, match="empty"):
        new.sample()
    patch = {"reward": torch.zeros(len(index)).double()}
    assert new.update_if_present(index=handles[0], generation=handles[1], patch=patch).updated_count == 0
    new.extend(rows(0, 4))
    assert sorted(new.sample()["n"].tolist()) == [0, 1, 2, 3]


def test_a_buffer_that_was_never_written_is_saved_as_one(tmp_path):
    rb = buffer("packed", "random")
    rb.dumps(tmp_path)
    for new in (buffer("packed", "random"), begun("packed", "random")):
        new.loads(tmp_path)
        assert len(new) == 0 and new.write_count == 0
        new.extend(rows(0, 4))
        assert new[:]["n"].tolist() == [0, 1, 2, 3]
