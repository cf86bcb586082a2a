"""Laws 1 and 2 where transforms bring code of their own: it may raise, write to the buffer, or take its time.

A transform runs before a write begins and after a read is done, never in between and never while the buffer is locked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.spec.builders import STORAGES, buffer_of, numbered, numbers_of
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import TensorDictReplayBuffer


class Fails(Exception):
    pass


class OnTheWayIn:
    """Acts on what is written and on nothing else."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    def __call__(self, data: Any) -> Any:
        return data

    def inv(self, data: Any) -> Any:
        return self.act(data)


WRITES: dict[str, Callable[[TensorDictReplayBuffer], Any]] = {
    "add": lambda rb: rb.add(numbered([20])[0]),
    "extend": lambda rb: rb.extend(numbered([20, 21])),
    "set one": lambda rb: rb.__setitem__(1, numbered([20])[0]),
    "set items": lambda rb: rb.__setitem__(slice(0, 2), numbered([20, 21])),
    "write_all": lambda rb: rb.write_all(numbered([20, 21])),
}
READS: dict[str, Callable[[TensorDictReplayBuffer], Any]] = {
    "sample": lambda rb: rb.sample(3),
    "sample with info": lambda rb: rb.sample(3, return_info=True),
    "get one": lambda rb: rb[1],
    "get items": lambda rb: rb[:],
}
each_call = pytest.mark.parametrize("call", [*WRITES, *READS])
each_storage = pytest.mark.parametrize("kind", STORAGES)


def acting(kind: str, call: str, act: Callable[[Any], Any]) -> TensorDictReplayBuffer:
    """A buffer of four records, with a transform that acts in the direction of the call."""
    rb = buffer_of(kind, 6, numbers=range(4))
    return rb.append_transform(OnTheWayIn(act) if call in WRITES else act)


@each_call
@each_storage
def test_a_transform_that_raises_has_changed_nothing(kind, call):
    """But for the generator where a batch was drawn before: other threads may have drawn with it since."""

    def fail(data: Any) -> Any:
        raise Fails

    rb = buffer_of(kind, 6, numbers=range(4))
    rb.append_transform(OnTheWayIn(fail) if call in WRITES else fail)
    before = snapshot(rb)
    with pytest.raises(Fails):
        (WRITES | READS)[call](rb)
    if call.startswith("sample"):
        before["generator"] = rb.generator.get_state()
    assert_unchanged(before, rb)


@each_call
@each_storage
def test_no_write_waits_for_a_transform(kind, call):
    """While a transform runs, another thread writes and reads: the transform waits for it."""

    def let_others(data: Any) -> Any:
        if threading.current_thread() is not main:
            return data

        def others() -> None:
            rb.writer.extend(numbered([30]))
            rb.storage[0]
            done.set()

        other = threading.Thread(target=others, daemon=True)
        other.start()
        assert done.wait(10), "the storage was locked while a transform ran"
        other.join()
        return data

    main, done = threading.current_thread(), threading.Event()
    rb = acting(kind, call, let_others)
    (WRITES | READS)[call](rb)
    assert done.is_set() and rb.write_count >= 5


ACTS: dict[str, Callable[[TensorDictReplayBuffer], Any]] = {
    "empties": lambda rb: rb.empty(),
    "starts anew": lambda rb: (rb.empty(), rb.writer.extend(numbered([90, 91]))),
    "appends": lambda rb: rb.writer.extend(numbered([91, 92, 93])),
    "overwrites": lambda rb: rb.storage.__setitem__(slice(None), numbered(range(80, 80 + len(rb)))),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", WRITES)
@each_storage
def test_a_transform_that_writes_does_so_before_the_write_that_it_serves(kind, call, act):
    def once(data: Any) -> Any:
        ACTS[act](rb)
        return data

    rb, alone = acting(kind, call, once), buffer_of(kind, 6, numbers=range(4))
    ACTS[act](alone)
    outcomes = []
    for buffer in (rb, alone):
        try:
            WRITES[call](buffer)
        except (IndexError, ValueError):
            outcomes.append("no such records")
        else:
            outcomes.append("written")
    assert outcomes[0] == outcomes[1]
    assert rb.write_count == alone.write_count and len(rb) == len(alone)
    if len(rb):
        assert numbers_of(rb[:]) == numbers_of(alone[:])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", READS)
@each_storage
def test_what_was_read_stays_what_it_was_when_a_transform_writes(kind, call, act):
    def once(batch: Any) -> Any:
        ACTS[act](rb)
        return batch

    rb = acting(kind, call, once)
    handles = rb.writer.generations_of(torch.arange(4))
    batch = READS[call](rb)
    batch, info = batch if isinstance(batch, tuple) else (batch, {"index": batch["index"]})
    index = info["index"].reshape(-1)
    held = numbers_of(batch) if batch.batch_dims else [int(batch["n"])]
    assert held == index.tolist()  # slot i held the number i
    if call.startswith("sample"):
        assert torch.equal(batch["index_generation"], handles[index])
