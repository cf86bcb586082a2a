"""Law 1 for loads: cut off at any line, a buffer has its old records or the loaded ones, and what belongs to them."""

from __future__ import annotations

import pytest
import torch

from tests.spec import dumps
from tests.spec.test_law_1_interrupted import Struck, moments, strike_at
from torchrb import LazyMemmapStorage, LazyStackStorage, LazyTensorStorage, TensorStorage

STORAGES = {
    "packed": lambda: LazyTensorStorage(5),
    "columns": lambda: LazyTensorStorage(5, layout="columns"),
    "adopted": lambda: TensorStorage(dumps.rows(0, 5)),
    "memmap": lambda: LazyMemmapStorage(5),
    "stack": lambda: LazyStackStorage(5),
}


def buffer(kind, first, num):
    rb = dumps.buffer(num=0)
    rb.set_storage(STORAGES[kind]())
    rb.empty()
    if num:
        rb.extend(dumps.rows(first, num))
        rb.sample()
    return rb


def told(rb):
    ids = [int(rb[i]["id"]) for i in range(len(rb))]
    texts = [rb[i]["text"] for i in range(len(rb))]
    generations = rb.writer.generations_of(torch.arange(len(rb))).tolist()
    return len(rb), rb.storage.cursor, rb.write_count, ids, texts, generations, rb.sampler.stats(rb.storage)


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("before", [0, 5])
def test_a_load_that_is_cut_off_is_done_or_was_never_begun(kind, before):
    saved = buffer(kind, 50, 4)
    state, new = saved.state_dict(), told(saved)

    def make():
        return buffer(kind, 0, before)

    def load(rb):
        rb.load_state_dict(state)

    old, seen = told(make()), []
    for moment in moments(make, load)[:: 3 if before else 7]:
        rb = make()
        with strike_at(moment), pytest.raises(Struck):
            load(rb)
        seen.append(told(rb))
        assert seen[-1] in (old, new), f"cut off at line {moment}"
        rb.extend(dumps.rows(90, 2))
        assert len(rb) in (min(old[0] + 2, 5), 5)
    assert old in seen and new in seen
