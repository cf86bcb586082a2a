"""Case 24: a buffer goes to a spawned worker, or says which storage can."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from tests.spec import processes
from torchrb import LazyStackStorage, LazyTensorStorage, ListStorage, ReplayBuffer, TensorStorage

SPAWN = mp.get_context("spawn")


def test_24_a_shared_buffer_goes_to_a_spawned_worker_and_through_a_queue_and_back():
    rb = processes.shared_buffer("packed", 8, [1, 2])
    queue, back = SPAWN.Queue(), SPAWN.Queue()
    worker = processes.start(_work, queue, back, context=SPAWN)
    queue.put(rb)
    slots, generations = back.get(timeout=processes.PATIENCE)
    assert processes.contents(rb) == [1, 2, 3, 4]
    assert processes.patch(rb, slots, generations, [5, 6]) == (2, 0)
    queue.put("done?")
    assert back.get(timeout=processes.PATIENCE) == [1, 2, 5, 6]
    worker.join(processes.PATIENCE)


def _work(queue, back):
    rb = queue.get()
    back.put(processes.extend(rb, [3, 4]))
    queue.get()
    back.put(processes.contents(rb))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LazyTensorStorage(4),
        lambda: TensorStorage(torch.arange(4)),
        lambda: ListStorage(4),
        lambda: LazyStackStorage(4),
    ],
)
def test_24_a_buffer_that_cannot_go_says_which_can(make):
    rb = ReplayBuffer(storage=make())
    with pytest.raises(TypeError, match="share it first.*LazyTensorStorage or TensorStorage of tensors on the CPU"):
        SPAWN.Process(target=rb.sample).start()
