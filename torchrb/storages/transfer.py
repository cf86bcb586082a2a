"""Between host and device without waiting: data on its way in, flags on their way out."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from tensordict import is_tensor_collection
from torch import Tensor

_MOST_STAGED = 64 << 20  # bytes; pinning more memory than this costs more than the wait it saves


def moved(value: Tensor, device: torch.device) -> Tensor:
    """``value`` on ``device``, from where it may be changed as soon as this returns.

    On its way from the host to a GPU it is copied into pinned memory of its own first, which torch keeps until the
    device has read it: nobody waits, and the caller's memory, pinned or not, is free at once. Large data is waited for.
    RuntimeError in a graph capture, which would replay the bytes of today for ever.
    """
    if value.device.type != "cpu" or device.type != "cuda":
        return value.to(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "torchrb: data on the CPU cannot become part of a CUDA graph. Copy it into a tensor on the device that "
            "stays in place, before each replay."
        )
    if value.nbytes > _MOST_STAGED:
        return value.to(device)
    staged = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return staged.copy_(value).to(device, non_blocking=True)


def pinned(data: Any) -> Any:
    """A batch whose tensors on the host lie in pinned memory, from where a GPU copies them without anybody waiting.
    Where torch finds no GPU there is nothing to pin for: the batch as it is.
    """
    if not _gpu_is_there():
        return data
    if is_tensor_collection(data):
        return data.apply(_pinned)
    return pytree.tree_map(lambda leaf: _pinned(leaf) if isinstance(leaf, Tensor) else leaf, data)


def _pinned(value: Tensor) -> Tensor:
    return value.pin_memory() if value.device.type == "cpu" and not value.is_pinned() else value


@functools.cache
def _gpu_is_there() -> bool:
    return torch.cuda.is_available()


class LateNumbers:
    """Numbers of a device that the host is told some time after it asked, in order."""

    def __init__(self) -> None:
        self._asked: deque[tuple[Any, Tensor, Any]] = deque()

    def ask(self, number: Tensor, about: Any) -> None:
        """Ask for a tensor of one integer; ``about`` comes back with it. In a graph capture nothing is asked."""
        if torch.cuda.is_current_stream_capturing():
            return
        copy = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
        copy.copy_(number, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(number.device))
        self._asked.append((done, copy, about))

    def told(self) -> Iterator[tuple[int, Any]]:
        """The numbers that have arrived, each once. In a graph capture, which forbids the question, none."""
        while self._asked and not torch.cuda.is_current_stream_capturing():
            try:
                first = self._asked.popleft()
            except IndexError:
                return  # another thread has it
            done, copy, about = first
            if not done.query():
                self._asked.appendleft(first)
                return
            yield int(copy), about
