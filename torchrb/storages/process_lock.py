"""The lock of a storage that several processes use.

`fcntl.flock` on the storage's memory: the system releases it when its holder dies, whatever killed it, which a
semaphore or a spinning word in shared memory would not survive. It costs about a microsecond, and waiting processes
take turns. Threads of one process take turns before it, at an ordinary lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torchrb.storages.shared_memory import SharedMemory

OWNER = 0  # the word that says which process holds the lock, 0 for none


class ProcessLock:
    """A reentrant lock between the threads and processes that share ``memory``.

    ``words``: the first words of that memory. ``threads``: the lock that the threads of this process use already.
    ``entered``: called whenever the lock was taken anew, with the process that died while it held the lock, or 0.
    """

    def __init__(self, memory: SharedMemory, words: memoryview, threads: Any, entered: Callable[[int], None]) -> None:
        self._memory, self._words, self._threads, self._entered = memory, words, threads, entered
        self._depth = 0
        self._fd, self._pid = memory.another_handle(), os.getpid()
        _LOCKS.add(self)

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        self._threads.acquire()
        self._depth += 1
        if self._depth == 1:
            died = 0
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                died, self._words[OWNER] = self._words[OWNER], self._pid
                self._entered(died)
            except BaseException:  # an interrupt may come at any point of this
                self._leave(died)
                raise
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._depth == 1:
            self._leave(0)
        else:
            self._depth -= 1
            self._threads.release()

    def _leave(self, died: int) -> None:
        if self._words[OWNER] == self._pid:
            self._words[OWNER] = died
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._depth -= 1
        self._threads.release()

    def _is_owned(self) -> bool:
        """Whether this thread has it, as the locks of `threading` tell."""
        return self._threads._is_owned()

    __enter__ = acquire

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _start_anew_in_child(self) -> None:
        """After a fork: the child's descriptor is the parent's, and would keep a lock that the parent dies with."""
        inherited = self._fd
        self._fd, self._pid = self._memory.another_handle(), os.getpid()
        self._threads, self._depth = threading.RLock(), 0
        os.close(inherited)

    def __del__(self) -> None:
        os.close(self._fd)


_LOCKS: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_LOCKS):
        lock._start_anew_in_child()


os.register_at_fork(after_in_child=_after_fork)
