"""Waiting for what a prefetching buffer does in its own thread, so that tests know what has been drawn ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torchrb import ReplayBuffer

PATIENCE = 60.0  # seconds until something that must happen is taken to be lost


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "this never happened"
        time.sleep(0.0005)


def drawn_ahead(rb: ReplayBuffer) -> int:
    """Wait until the buffer's thread has nothing left to do; returns how many batches are ready."""
    early = rb._early
    done = threading.Event()

    class Mark:
        """An order like the others, behind all of them."""

        def advance(self) -> None:
            done.set()

    if early._thread is None:
        return 0
    early._orders.put(Mark())
    assert done.wait(PATIENCE)
    return 0 if early._line is None else len(early._line.batches)


def threads() -> list[threading.Thread]:
    """Those that draw ahead."""
    return [thread for thread in threading.enumerate() if thread.name == "torchrb-prefetch"]
