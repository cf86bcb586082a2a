"""The lock: one holder among threads and processes, reentrant, free again whatever happens to its holder."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from tests.spec import processes
from torchrb.storages.process_lock import OWNER, ProcessLock
from torchrb.storages.shared_memory import SharedMemory, rounded


def lock_over(memory: SharedMemory, entered=lambda died: None) -> tuple[ProcessLock, memoryview]:
    words = memoryview(memory.tensor(0, rounded(64)).view(torch.int64).numpy())
    return ProcessLock(memory, words, threading.RLock(), entered), words


def test_two_holders_of_one_memory_exclude_each_other_and_one_may_enter_twice():
    memory = SharedMemory.new(rounded(64))
    (first, words), (second, _) = lock_over(memory), lock_over(memory)
    got = threading.Event()

    def take():
        with second:
            got.set()

    with first:
        with first:
            assert words[OWNER] == os.getpid()
        thread = threading.Thread(target=take)
        thread.start()
        assert not got.wait(0.1)
    assert got.wait(processes.PATIENCE)
    thread.join()
    assert words[OWNER] == 0


def test_the_lock_is_free_after_an_error_inside_and_on_the_way_in():
    seen = []

    def refuse(died):
        seen.append(died)
        if len(seen) == 2:
            raise ValueError("no entry")

    lock, words = lock_over(SharedMemory.new(rounded(64)), refuse)
    with pytest.raises(KeyError), lock:
        raise KeyError
    words[OWNER] = 4711  # as one that died leaves it
    with pytest.raises(ValueError, match="no entry"), lock:
        pass
    assert words[OWNER] == 4711, "what was not repaired is still to be repaired"
    with lock:
        assert words[OWNER] == os.getpid()
    assert seen == [0, 4711, 4711] and words[OWNER] == 0


def test_an_interrupt_while_waiting_leaves_the_lock_in_order():
    memory = SharedMemory.new(rounded(64))
    (held, _), (wanted, words) = lock_over(memory), lock_over(memory)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with held:
            held_by = words[OWNER]
            words[OWNER] = held_by + 1  # another process
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt), wanted:
                pass
            assert words[OWNER] == held_by + 1, "the mark of the holder was wiped"
            words[OWNER] = held_by
    finally:
        signal.signal(signal.SIGALRM, before)
    with wanted, wanted:
        assert words[OWNER] == os.getpid()
    with held:
        pass


def test_memory_goes_back_when_nobody_has_it():
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        rb = processes.shared_buffer("columns", 4, range(3))
        assert processes.contents(rb) == [0, 1, 2]
        del rb
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_thread_knows_whether_it_has_the_lock():
    lock, _ = lock_over(SharedMemory.new(rounded(64)))
    assert not lock._is_owned()
    with lock:
        told = []
        other = threading.Thread(target=lambda: told.append(lock._is_owned()))
        other.start()
        other.join()
        assert lock._is_owned() and told == [False]
    assert not lock._is_owned()
