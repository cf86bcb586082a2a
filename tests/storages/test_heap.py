"""Values beside records: named by references, and gone from the disk when no record names them."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

from torchrb.storages.heap import Heap
from torchrb.storages.shared_memory import SharedMemory


@pytest.fixture
def file():
    with tempfile.TemporaryFile() as file:
        yield SharedMemory(os.dup(file.fileno()))


def heap_of(file, words=None):
    return Heap(file, memoryview(bytearray(64)).cast("q") if words is None else words, 2)


def on_disk(file):
    return os.fstat(file.fd).st_blocks * 512


def test_values_come_back_by_their_references(file):
    heap = heap_of(file)
    first, second = heap.add([["a", None, "é" * 1000], [1, (2.5,), b""]], str)
    assert heap.values(second) == [1, (2.5,), b""] and heap.values(first.flip(0)) == ["é" * 1000, None, "a"]
    (third,) = heap.add([["x" * 3_000_000]], str)  # beyond what is mapped
    assert heap.values(third) == ["x" * 3_000_000] and heap.values(first) == ["a", None, "é" * 1000]
    assert heap.values(torch.zeros(1, 2, dtype=torch.int64)) == [None]  # of a record that was never written
    assert heap.add([[]], str)[0].shape == (0, 2)


def test_whoever_opens_the_file_again_goes_on(file):
    words = memoryview(bytearray(64)).cast("q")
    (refs,) = heap_of(file, words).add([["a", "b"]], str)
    other = heap_of(file, words)
    (more,) = other.add([["c"]], str)
    assert (
        other.values(torch.cat([refs, more])) == heap_of(file, words).values(torch.cat([refs, more])) == ["a", "b", "c"]
    )


def test_a_value_that_cannot_be_kept_leaves_nothing(file):
    heap = heap_of(file)
    with pytest.raises(TypeError, match="field 1 must be strings"):
        heap.add([["a"], [object()]], lambda i: f"field {i}")
    assert file.nbytes == 0 and heap.values(heap.add([["b"]], str)[0]) == ["b"]


@pytest.mark.parametrize("ref", [[-1, 1], [0, -1], [0, 99], [98, 2], [2**62, 2**62]])
def test_a_reference_that_names_nothing_is_an_error(file, ref):
    heap = heap_of(file)
    heap.add([["a" * 97]], str)
    with pytest.raises(ValueError, match="a record names bytes"):
        heap.values(torch.tensor([ref]))


def test_a_file_that_was_cut_short_is_an_error(file):
    heap = heap_of(file)
    (refs,) = heap.add([["a"]], str)
    file.resize(1)
    with pytest.raises(ValueError, match="has 1 bytes, and 2 were written"):
        heap.values(refs)


def test_dead_values_are_given_back_and_live_ones_stay(file):
    heap, kept, texts = heap_of(file), [], []
    for number in range(40):
        texts.append(f"{number}" * 50_000)
        kept.append(heap.add([[texts[-1], "dead" * 100_000]], str)[0][:1])
        heap.free_all_but(torch.cat(kept))
        assert heap.values(torch.cat(kept)) == texts
    most = sum(map(len, texts)) + 64 * 8192
    assert on_disk(file) < most < file.nbytes
    heap.free_all_but(torch.empty(0, 2, dtype=torch.int64))
    assert on_disk(file) <= 8192


def test_it_is_due_when_enough_was_added_since(file):
    heap = heap_of(file)
    (refs,) = heap.add([["a" * (5 << 20)]], str)
    assert heap.is_due(0) and not heap.is_due(6 << 20)
    heap.free_all_but(refs)
    assert not heap.is_due(0)
    heap.add([["b" * (5 << 20)]], str)
    assert not heap.is_due(0)  # as much as is alive
    heap.add([["c" * 10]], str)
    assert heap.is_due(0)
