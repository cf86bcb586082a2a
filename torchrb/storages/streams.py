"""The lock of a storage on a GPU: calls from several streams take effect in the order in which they were made.

A call only enqueues work, so a lock among threads says nothing about when the device does it. This one makes the stream
of each call wait for the kernels of the previous call on the storage, on whichever stream they are, and for nothing
else that was put on that stream. The host never waits, and calls that stay on one stream are not held up at all.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor


class DeviceLock:
    """A reentrant lock, which also orders what is enqueued while it is held.

    While a stream is captured into a graph no order is made: a graph replays where, and after whatever, its user puts
    it. (The slot words keep each row whole even then.) Without a device it is a lock among threads and nothing more.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._lock, self._depth = threading.RLock(), 0
        self._device: torch.device | None = None
        self._stream: Any = None
        self._done: Any = None
        self._owned: list[weakref.ref[Tensor]] = []
        if device is not None:
            self.settle(device)

    def settle(self, device: torch.device) -> None:
        """From now on, order what is enqueued on this device."""
        if device.type == "cuda":
            self._device, self._done = device, torch.cuda.Event()

    def owns(self, *tensors: Tensor) -> None:
        """Memory that every call may use, on whatever stream: it is not given to others before all these are done."""
        self._owned = [ref for ref in self._owned if ref() is not None]
        if self._device is not None:
            self._owned += [weakref.ref(tensor) for tensor in tensors]

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            try:
                self._order()
            except BaseException:  # an interrupt may come at any point of this
                self.release()
                raise
        return True

    def _order(self) -> None:
        """Have the current stream wait for the call before, if that was on another."""
        if self._device is None or torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream(self._device)
        if stream == self._stream:
            return
        if self._stream is not None:
            stream.wait_event(self._done)
        for ref in self._owned:
            tensor = ref()
            if tensor is not None:
                tensor.record_stream(stream)
        self._stream = stream

    def release(self) -> None:
        """Give the lock back."""
        try:
            if self._depth == 1 and self._device is not None and not torch.cuda.is_current_stream_capturing():
                self._stream = torch.cuda.current_stream(self._device)
                self._done.record(self._stream)
        finally:
            self._depth -= 1
            self._lock.release()

    def _is_owned(self) -> bool:
        """Whether this thread has it, as the locks of `threading` tell."""
        return self._lock._is_owned()  # type: ignore[attr-defined]

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()
