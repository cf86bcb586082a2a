"""Where tables get their memory: zeroed, and in large pages where the system gives them.

Rows are drawn from all over a table, so with pages of 4 KiB nearly every row costs a walk through the page table on top
of its cache miss. Linux gives pages of 2 MiB to memory that asks for them.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

_PAGE = 2 << 20
_WORTH_IT = 4 * _PAGE


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, like `torch.zeros`; on a CPU a large tensor lies in large pages, untouched until it is written."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type != "cpu" or nbytes < _WORTH_IT or not hasattr(mmap, "MADV_HUGEPAGE"):
        with torch.inference_mode(False):  # what a first batch makes must be writable after its inference mode
            return torch.zeros(shape, dtype=dtype, device=device)
    region = mmap.mmap(-1, nbytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel built without them; the memory is good all the same
    with torch.inference_mode(False):
        whole = torch.frombuffer(region, dtype=torch.uint8)
        start = -whole.data_ptr() % _PAGE
        return whole[start : start + nbytes].view(dtype).view(shape)


def writable(tensor: Tensor) -> Tensor:
    """A tensor on the same memory that can be written outside the inference mode it was made in."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        bare = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return bare.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
