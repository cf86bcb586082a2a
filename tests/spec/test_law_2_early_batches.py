"""Laws 2 and 4 for batches that are drawn ahead while somebody writes: their rows are whole, their handles are theirs,
and none is of a record that was gone when the call was made.
"""

from __future__ import annotations

import threading

import pytest
import torch

from tests.spec.builders import STORAGES, numbered, numbers_of
from torchrb import RandomSampler, SamplerWithoutReplacement, TensorDictReplayBuffer, TensorDictRoundRobinWriter

CAPACITY, WRITTEN = 16, 600


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
def test_early_batches_are_whole_and_of_their_call(kind, sampler):
    rb = TensorDictReplayBuffer(
        storage=STORAGES[kind](CAPACITY), sampler=sampler(), batch_size=6, prefetch=3,
        writer=TensorDictRoundRobinWriter(track_generations=True), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rb.extend(numbered(range(CAPACITY)))
    written, pause = CAPACITY, threading.Event()

    def write() -> None:
        nonlocal written
        while written < WRITTEN:
            num = 1 + written % 7
            rb.extend(numbered(range(written, written + num)))
            written += num
            if written % 3 == 0:
                pause.wait(0.002)  # so that some batches are of use

    writing = threading.Thread(target=write)
    writing.start()
    calls = 0
    while writing.is_alive() or calls < 50:
        before = written
        batch = rb.sample()
        numbers = numbers_of(batch)
        named = batch["index_generation"] * CAPACITY + batch["index"]  # the ring writes one record after the other
        assert named.tolist() == numbers
        assert min(numbers) >= before - CAPACITY, "a record that was overwritten before the call"
        calls += 1
    writing.join()
    assert rb._early.num_early, "no batch came early"
