"""Tables are zero, apart from each other, and as large as asked, whichever way their memory was got."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from torchrb.storages import memory
from torchrb.storages.memory import writable, zeros

CPU = torch.device("cpu")
LARGE = memory._WORTH_IT  # bytes from which on pages are asked for


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float64])
@pytest.mark.parametrize("nbytes", [0, 8, LARGE - 8, LARGE, LARGE + 8, 3 * LARGE + 64])
def test_zeros_are_zeros(nbytes, dtype):
    table = zeros(nbytes // 8, 8 // dtype.itemsize, dtype=dtype, device=CPU)
    assert table.shape == (nbytes // 8, 8 // dtype.itemsize) and table.dtype == dtype and table.is_contiguous()
    assert not table.any()
    table.fill_(1)
    assert bool((table == 1).all())


def test_large_tables_begin_on_a_page_and_small_ones_need_not():
    table = zeros(LARGE, dtype=torch.uint8, device=CPU)
    assert table.data_ptr() % memory._PAGE == 0 or not hasattr(mmap, "MADV_HUGEPAGE")


def test_tables_share_no_memory():
    tables = [zeros(LARGE // 8, dtype=torch.int64, device=CPU) for _ in range(3)]
    for number, table in enumerate(tables):
        table.fill_(number)
    assert [int(table.min()) for table in tables] == [int(table.max()) for table in tables] == [0, 1, 2]


def test_memory_lives_as_long_as_a_view_of_it():
    view = zeros(LARGE // 8, dtype=torch.int64, device=CPU)[5:8]
    gc.collect()
    others = [zeros(LARGE // 8, dtype=torch.int64, device=CPU).fill_(9) for _ in range(3)]
    assert view.tolist() == [0, 0, 0] and len(others) == 3


@pytest.mark.parametrize("refusal", ["no such advice", "an old kernel"])
def test_without_large_pages_there_are_small_ones(monkeypatch, refusal):
    if refusal == "no such advice":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    else:

        class Region(mmap.mmap):
            def madvise(self, *_: object) -> None:
                raise OSError("not built in")

        monkeypatch.setattr(mmap, "mmap", Region)
    table = zeros(LARGE // 8, dtype=torch.int64, device=CPU)
    assert not table.any() and table.shape == (LARGE // 8,)
    table[-1] = 1


@pytest.mark.parametrize("nbytes", [8, LARGE])
def test_what_is_made_in_inference_mode_is_writable_after_it(nbytes):
    with torch.inference_mode():
        table = zeros(nbytes // 8, dtype=torch.int64, device=CPU)
        theirs = torch.zeros(4, 2)[1:, :1]
    table.add_(1)
    assert not table.is_inference() and int(table[0]) == 1
    ours = writable(theirs)
    ours.fill_(3)
    assert theirs.flatten().tolist() == [3.0] * 3 and ours.shape == theirs.shape and ours.stride() == theirs.stride()
    with pytest.raises(RuntimeError):
        theirs.fill_(4)


def test_what_is_writable_is_left_as_it_is():
    tensor = torch.zeros(3)
    assert writable(tensor) is tensor
