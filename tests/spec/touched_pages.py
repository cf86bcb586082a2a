"""Which pages of memory a call touches, as the processor notes it: a count of rows touched that no kernel can forget.

Linux forgets on request which pages were used (``/proc/self/clear_refs``) and tells later which were used since
(``Referenced`` in ``/proc/self/smaps``). Pages are made small, so that one of them is few rows.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

_CLEAR, _MAPS = Path("/proc/self/clear_refs"), Path("/proc/self/smaps")
_PR_SET_THP_DISABLE = 41


def why_not() -> str | None:
    """Why this system does not tell, None where it does."""
    try:
        probe = torch.zeros(1 << 20)
        with small_pages():
            seen = [touched([probe], lambda: None), touched([probe], probe[:5000].sum)]
    except (OSError, AttributeError, StopIteration) as error:
        return f"this system does not tell which pages were touched ({error!r})"
    return None if seen[0] == 0 and 4 <= seen[1] <= 6 else f"this system miscounts touched pages: {seen}"


@contextmanager
def small_pages() -> Iterator[None]:
    """Memory first used in here lies in pages of the smallest size."""
    _system_call("prctl", _PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        _system_call("prctl", _PR_SET_THP_DISABLE, 0, 0, 0, 0)


def pages_of(tensor: Tensor) -> range:
    """Addresses of the pages that a tensor fills to both ends; its neighbours in memory use the others."""
    size = mmap.PAGESIZE
    return range(-(-tensor.data_ptr() // size) * size, (tensor.data_ptr() + tensor.nbytes) // size * size, size)


def touched(tensors: list[Tensor], call: Callable[[], object]) -> int:
    """How many pages of these tensors a call reads or writes."""
    regions = [pages_of(tensor) for tensor in tensors]
    _advise(regions, mmap.MADV_DONTDUMP)  # memory with advice of its own is listed apart from what lies around it
    try:
        _CLEAR.write_text("1")
        for pages in regions:  # the processor notes a page when it looks it up, so it must not have it at hand
            for access in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
                _system_call("mprotect", pages.start, pages.stop - pages.start, access)
        call()
        count = 0
        for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", _MAPS.read_text(), flags=re.M)[1:]:
            start, end = (int(place, 16) for place in entry.split(" ", 1)[0].split("-"))
            if any(start < pages.stop and end > pages.start for pages in regions):
                (kilobytes,) = re.findall(r"^Referenced: +(\d+) kB", entry, flags=re.M)
                count += int(kilobytes) * 1024 // mmap.PAGESIZE
        return count
    finally:
        _advise(regions, mmap.MADV_DODUMP)


def _advise(regions: list[range], advice: int) -> None:
    for pages in regions:
        _system_call("madvise", pages.start, pages.stop - pages.start, advice)


def _system_call(name: str, *args: int) -> None:
    """Call the C library's function of this name; OSError where it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*map(ctypes.c_ulong, args)) != 0:
        raise OSError(ctypes.get_errno(), f"{name}{args}")
