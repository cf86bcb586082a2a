"""Cases 24 and 27 of the field, and their relatives: a queue of early batches outlives neither its records nor its
process.
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict

from tests.spec.early import drawn_ahead, threads, until
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)


def rows(*numbers: int) -> TensorDict:
    return TensorDict({"x": torch.tensor(numbers)}, [len(numbers)])


def prefetching(sampler: Any = RandomSampler, **kwargs: Any) -> TensorDictReplayBuffer:
    """A buffer with three early batches of old rows."""
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler(), batch_size=2, prefetch=3,
                                generator=torch.Generator().manual_seed(0), **kwargs)  # fmt: skip
    rb.extend(rows(*range(8)))
    for _ in range(2):
        rb.sample()
        drawn_ahead(rb)
    assert drawn_ahead(rb) == rb.stats()["prefetch_queue_size"] == 3
    return rb


# --- case 27: prefetch=3, then empty()

SAMPLERS = {"uniform": RandomSampler, "without replacement": SamplerWithoutReplacement}
EMPTIES: dict[str, Callable[[TensorDictReplayBuffer], Any]] = {
    "empty": lambda rb: rb.empty(),
    "empty, keeping the count": lambda rb: rb.empty(empty_write_count=False),
    "the storage is cleared": lambda rb: rb.storage.clear(),
    "another buffer empties": lambda rb: ReplayBuffer(storage=rb.storage).empty(),
    "an empty storage is put in": lambda rb: rb.set_storage(LazyTensorStorage(8)),
}


@pytest.mark.parametrize("empty", EMPTIES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_emptied_buffer_has_nothing_early_to_give(sampler, empty):
    rb = prefetching(SAMPLERS[sampler])
    EMPTIES[empty](rb)
    for call in (rb.sample, rb.next, lambda: next(iter(rb)), lambda: rb.sample(return_info=True), lambda: rb.sample(1)):
        with pytest.raises(RuntimeError, match="sample: cannot sample from an empty storage"):
            call()
    assert rb.stats()["prefetch_queue_size"] == 0
    rb.extend(rows(100, 101))
    drawn = [rb.sample()["x"].tolist() for _ in range(6) if drawn_ahead(rb) is not None]
    assert {number for batch in drawn for number in batch} == {100, 101}


def test_emptying_forgets_what_was_asked_for_at_once():
    rb = prefetching()
    rb.empty()
    assert rb.stats()["prefetch_queue_size"] == 0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_emptied_and_filled_again_it_gives_new_rows_only(sampler):
    rb = prefetching(SAMPLERS[sampler])
    rb.empty()
    rb.extend(rows(*range(100, 108)))  # in the same slots, as many as before
    assert all(number >= 100 for _ in range(6) for number in rb.sample()["x"].tolist())


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("way", ["loads", "load_state_dict", "the storage's load_state_dict"])
def test_what_was_loaded_is_what_is_drawn(sampler, way, tmp_path):
    """As many rows, in the same slots; and the draws go on as those of the buffer that was saved."""
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=SAMPLERS[sampler](), batch_size=2,
                                   generator=torch.Generator().manual_seed(7))  # fmt: skip
    saved.extend(rows(*range(100, 108)))
    saved.sample()
    rb = prefetching(SAMPLERS[sampler])
    if way == "loads":
        saved.dumps(tmp_path)
        rb.loads(tmp_path)
    elif way == "load_state_dict":
        rb.load_state_dict(saved.state_dict())
    else:
        rb.storage.load_state_dict(saved.storage.state_dict())
    if not way.startswith("the storage"):
        assert rb.stats()["prefetch_queue_size"] == 0
        drawn = [[each.sample()["x"].tolist() for _ in range(5) if drawn_ahead(rb) is not None] for each in (rb, saved)]
        assert drawn[0] == drawn[1]
    assert all(number >= 100 for _ in range(5) for number in rb.sample()["x"].tolist())


# --- case 24: pickling


class Arrived:
    """What a spawned process saw of a buffer."""

    def __init__(self, rb: ReplayBuffer) -> None:
        self.pending, self.threads = rb.stats()["prefetch_queue_size"], len(threads())
        self.drawn = []
        for _ in range(4):
            self.drawn.append(rb.sample()["x"].tolist())
            drawn_ahead(rb)
        self.early = rb._early.num_early


def visit(rb: ReplayBuffer, told: Any) -> None:
    arrived = Arrived(rb)
    rb.extend(rows(*range(100, 108)))
    told.put(arrived)


def test_a_shared_buffer_goes_to_a_spawned_process_without_its_queue():
    rb = prefetching(shared=True)
    alone = torch.Generator()
    alone.set_state(rb.generator.get_state())
    context = mp.get_context("spawn")
    told = context.Queue()
    process = context.Process(target=visit, args=(rb, told))
    process.start()
    arrived = told.get(timeout=120)
    process.join()
    assert (arrived.pending, arrived.threads, arrived.early) == (0, 0, 3)
    assert rb.stats()["prefetch_queue_size"] == 3
    # What the other process wrote makes what this one drew ahead a thing of the past.
    assert all(number >= 100 for number in rb.sample()["x"].tolist())
    here = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=2, generator=alone)
    here.extend(rows(*range(8)))
    assert arrived.drawn == [here.sample()["x"].tolist() for _ in range(4)]


def test_a_buffer_that_is_not_used_yet_is_pickled_as_what_makes_it():
    rb = TensorDictReplayBuffer(
        storage=functools.partial(LazyTensorStorage, 8), batch_size=2, prefetch=3, delayed_init=True,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(rb))
    for each in (rb, again):
        each.extend(rows(*range(8)))
    drawn = [[each.sample()["x"].tolist() for _ in range(4) if drawn_ahead(each) is not None] for each in (rb, again)]
    assert drawn[0] == drawn[1] and drawn_ahead(again) == 3


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, LazyStackStorage])
@pytest.mark.parametrize("copying", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_storage_that_stays_in_its_process_says_which_one_can_go(storage, copying):
    rb = TensorDictReplayBuffer(storage=storage(8), batch_size=2, prefetch=3, collate_fn=lambda records: records)
    rb.extend(rows(*range(8)))
    rb.sample()
    if copying is copy.copy:  # a second buffer on the storage, with a queue of its own
        again = copying(rb)
        assert again.storage is rb.storage and again._early is not rb._early and again._early.pending == 0
        return
    with pytest.raises(TypeError, match=r"neither copied nor pickled.*share it first.*LazyTensorStorage"):
        copying(rb)
    assert drawn_ahead(rb) == 1 and rb._early.pending == 3, "the attempt has changed nothing"


def test_a_copy_draws_with_threads_of_its_own():
    gc.collect()
    until(lambda: not threads())
    rb = prefetching()
    again = copy.copy(rb)
    again.generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        again.sample()
        drawn_ahead(again)
    assert drawn_ahead(rb) == 3 and len(threads()) == 2
    del again
    until(lambda: len(threads()) == 1)
