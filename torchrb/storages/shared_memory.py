"""Memory that several processes map: an anonymous file that the system frees when the last of them is gone.

It is a ``memfd``, not a file in ``/dev/shm``: it counts as memory of the processes, is not limited by the size of that
mount (64 MB in many containers), and leaves nothing behind however a process ends.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

PAGE = 2 << 20  # a large page: tables start at multiples of it, so that the system can use them where it does


def rounded(nbytes: int) -> int:
    """``nbytes`` up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


class SharedMemory:
    """A file without a name. ``fd``: what another process needs to map it too."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def new(cls, nbytes: int) -> SharedMemory:
        """Zeroed memory. RuntimeError on a system that cannot make it."""
        if not hasattr(os, "memfd_create"):
            raise RuntimeError("share: memory shared between processes needs Linux (memfd_create).")
        memory = cls(os.memfd_create("torchrb", os.MFD_CLOEXEC))
        memory.resize(nbytes)
        return memory

    def resize(self, nbytes: int) -> None:
        """Cut off what lies beyond, or append zeros, which take no memory until they are written."""
        os.ftruncate(self.fd, nbytes)

    @property
    def nbytes(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def token(self) -> tuple[int, int]:
        """What tells it from other memory, in every process."""
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def tensor(self, offset: int, nbytes: int, large_pages: bool = True) -> Tensor:
        """Bytes from a multiple of `PAGE` on, uint8 ``[nbytes]``; in large pages where the system gives them."""
        with torch.inference_mode(False):
            if not nbytes:
                return torch.empty(0, dtype=torch.uint8)
            region = mmap.mmap(self.fd, nbytes, flags=mmap.MAP_SHARED, offset=offset)
            self._last = offset, region
            if nbytes >= PAGE and large_pages:
                self.ask_for_large_pages(offset, rounded(offset + nbytes))
            return torch.frombuffer(region, dtype=torch.uint8)

    def ask_for_large_pages(self, begin: int, end: int) -> None:
        """Where whole ones lie between two places in the tensor that was made last."""
        offset, region = self._last
        begin, end = rounded(begin), end // PAGE * PAGE
        if begin < end and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                region.madvise(mmap.MADV_HUGEPAGE, begin - offset, end - begin)
            except OSError:
                pass  # a kernel built without them

    def another_handle(self) -> int:
        """A descriptor with locks of its own (`os.dup` would share them)."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)
