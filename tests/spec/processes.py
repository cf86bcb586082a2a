"""Other processes, and what they do to a buffer that they were handed.

They come from a fork server that has imported torch and done nothing with it: started in no time, and free of the
threads of this process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from tests.spec.builders import numbered, numbers_of
from torchrb import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)
from torchrb.generations import words_of
from torchrb.ops.schemas import CONTROL_LOCK, HEADER_BYTES, SLOT_BUSY

SERVER = mp.get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "tensordict"])
PATIENCE = 120  # seconds until a process that says nothing counts as hung
PATCHED = 2**18  # added to a record's number by who patches it
WHOLE = ("n", "wide", "flag", "byte", "half", "g", ("next", "reward"))


def records(numbers: Sequence[int] | Tensor) -> Any:
    """`numbered` records without strings, which stay in their process."""
    return numbered(numbers).exclude("text")


def _adopted(capacity: int) -> TensorStorage:
    storage = TensorStorage(records([0] * capacity))
    storage.clear()
    return storage


STORAGES: dict[str, Callable[[int], LazyTensorStorage]] = {
    "packed": lambda capacity: LazyTensorStorage(capacity),
    "columns": lambda capacity: LazyTensorStorage(capacity, layout="columns"),
    "adopted": _adopted,
    "memmap": lambda capacity: LazyMemmapStorage(capacity),
}


def shared_buffer(kind: str, capacity: int, numbers: Sequence[int] = (), sampler: Any = None) -> TensorDictReplayBuffer:
    """A buffer that several processes can use, holding `records`."""
    rb = TensorDictReplayBuffer(
        storage=STORAGES[kind](capacity),
        sampler=sampler or RandomSampler(),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=torch.Generator().manual_seed(0),
        shared=True,
    )
    if len(numbers):
        rb.extend(records(numbers))
    return rb


def start(function: Callable[..., Any], *args: Any, context: Any = SERVER) -> Any:
    """A running process; it ends with this one."""
    process = context.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def call(function: Callable[..., Any], *args: Any, context: Any = SERVER) -> Any:
    """What a function returns in a process of its own; fails with its traceback, or when it hangs."""
    here, there = context.Pipe(duplex=False)
    process = start(_report, there, function, args, context=context)
    there.close()
    assert here.poll(PATIENCE), f"{function.__name__} hangs"
    result, trouble = here.recv()
    process.join(PATIENCE)
    assert trouble is None, trouble
    return result


def _report(pipe: Any, function: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send((function(*args), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))


def kill_and_join(process: Any) -> None:
    process.kill()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL


# --- what other processes do ----------------------------------------------------------------------------------------


def extend(rb: TensorDictReplayBuffer, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    slots, generations = rb.extend(records(numbers), return_generations=True)
    return slots.tolist(), generations.tolist()


def contents(rb: TensorDictReplayBuffer) -> list[int]:
    return numbers_of(rb[:])


def draw(rb: TensorDictReplayBuffer, sampler: Any, num: int, seed: int) -> list[int]:
    """The slots that a sampler draws, given the seed."""
    with rb.storage.lock:
        return sampler.sample(rb.storage, num, torch.Generator().manual_seed(seed))[0].tolist()


def draw_own(rb: TensorDictReplayBuffer, num: int) -> list[int]:
    """The numbers that the buffer's own sampler and generator draw."""
    return numbers_of(rb.sample(num))


def patch(rb: TensorDictReplayBuffer, slots: list[int], generations: list[int], numbers: list[int]) -> tuple[int, int]:
    """Overwrite all fields of the records that handles name."""
    given = records(numbers)
    result = rb.update_if_present(
        index=torch.tensor(slots), generation=torch.tensor(generations), patch={key: given[key] for key in WHOLE}
    )
    return result.updated_count, result.stale_count


def empty(rb: TensorDictReplayBuffer) -> None:
    rb.empty()


def write_for_ever(rb: TensorDictReplayBuffer, started: Any, first: int, most: int) -> None:
    """Extend by 1 to ``most`` records at a time, numbered from ``first`` on, round and round."""
    number = 0
    while mp.parent_process().is_alive():
        size = number % most + 1
        rb.extend(records([(first + number + i) % PATCHED for i in range(size)]))
        number += size
        started.set()


def patch_for_ever(rb: TensorDictReplayBuffer, started: Any, seed: int) -> None:
    """Draw records and patch them, now and then before anybody else has a turn."""
    torch.manual_seed(seed)
    for turn in itertools.takewhile(lambda _: mp.parent_process().is_alive(), itertools.count()):
        with rb.storage.lock if turn % 3 == 0 else contextlib.nullcontext():
            some = rb.sample(4)
            numbers = [number % PATCHED + PATCHED for number in numbers_of(some)]
            patch(rb, some["index"].tolist(), some["index_generation"].tolist(), numbers)
            started.set()


def die_holding(rb: TensorDictReplayBuffer, slots: list[int]) -> None:
    """Be killed in the middle of writing records."""
    storage = rb.storage
    storage.lock.acquire()
    words_of(storage.tables)[slots] |= SLOT_BUSY
    for number, table in enumerate(storage.tables):
        table[slots, (HEADER_BYTES if number == 0 else 0) :] = 77
    storage.control[CONTROL_LOCK] = 1
    os.kill(os.getpid(), signal.SIGKILL)


def die_leaving_a_fork(rb: TensorDictReplayBuffer, pipe: Any) -> None:
    """Be killed while holding the lock, survived by a forked process."""
    rb.storage.lock.acquire()
    pid = os.fork()
    if pid == 0:
        time.sleep(10 * PATIENCE)
        os._exit(0)
    pipe.send(pid)
    os.kill(os.getpid(), signal.SIGKILL)
