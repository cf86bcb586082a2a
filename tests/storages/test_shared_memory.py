"""Memory that several processes map."""

import os

import pytest
import torch

from torchrb.storages.shared_memory import PAGE, SharedMemory, rounded

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")


@pytest.mark.parametrize(("nbytes", "pages"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_sizes_are_whole_pages(nbytes, pages):
    assert rounded(nbytes) == pages * PAGE


def test_two_maps_of_one_memory_show_each_other_s_writes():
    memory = SharedMemory.new(2 * PAGE)
    first, second = memory.tensor(PAGE, 8), SharedMemory(os.dup(memory.fd)).tensor(PAGE, 8)
    first.view(torch.int64)[0] = -3
    assert second.view(torch.int64).tolist() == [-3] and not memory.tensor(0, 8).any()


def test_what_is_appended_is_zero_and_what_is_cut_off_is_gone():
    memory = SharedMemory.new(PAGE)
    memory.tensor(0, PAGE).fill_(7)
    memory.resize(3 * PAGE)
    assert memory.nbytes == 3 * PAGE and not memory.tensor(PAGE, 2 * PAGE).any()
    memory.resize(0)
    memory.resize(PAGE)
    assert not memory.tensor(0, PAGE).any()


def test_a_tensor_outlives_the_handle():
    memory = SharedMemory.new(PAGE)
    tensor = memory.tensor(0, 4)
    del memory
    assert tensor.fill_(1).tolist() == [1, 1, 1, 1]


def test_nothing_can_be_asked_for():
    assert SharedMemory.new(0).tensor(0, 0).shape == (0,)


def test_a_token_is_one_memory_s_whatever_the_descriptor():
    memory, other = SharedMemory.new(PAGE), SharedMemory.new(PAGE)
    assert memory.token == SharedMemory(memory.another_handle()).token != other.token


def test_a_system_without_it_is_told(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(RuntimeError, match="needs Linux"):
        SharedMemory.new(PAGE)
