import os
import random

import pytest
import torch

from torchrb.persistence import content
from torchrb.persistence.plain import DTYPES


@pytest.fixture
def fd(tmp_path):
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def same(one, other):
    if isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def bits(tensor):
    return bytes(content.bytes_of(tensor))


def random_bytes(num):
    return torch.randint(0, 256, (num,), dtype=torch.uint8)


def random_tree(rng, depth=3):
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice([None, True, -1, 2**80, 1.5, float("nan"), "é", "", "$", "\ud800"])
    if kind < 5:
        dtype = rng.choice(sorted(DTYPES))
        size = DTYPES[dtype].itemsize
        if rng.random() < 0.1:
            return random_bytes(content._LARGE + rng.randrange(3000))
        shape = rng.choice([(), (0,), (1,), (7,), (2, 3), (3, 0, 2)])
        count = torch.Size(shape).numel()
        return (
            random_bytes(count * size).view(DTYPES[dtype]).view(shape)
            if count
            else torch.empty(shape, dtype=DTYPES[dtype])
        )
    items = [random_tree(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 5:
        return items
    return {rng.choice(["$", "$$", "a", "type", "x"]) + str(i): item for i, item in enumerate(items)} | (
        {"$": 0} if rng.random() < 0.3 else {}
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("seed", range(40))
def test_any_tree_comes_back(fd, seed):
    tree = random_tree(random.Random(seed), depth=4)
    entry = content.write(fd, tree)
    assert os.fstat(fd).st_size == entry.bytes
    assert same(content.read(fd, entry), tree)


@pytest.mark.parametrize("extra", [-1, 0, 1, 63, 64, 65])
def test_tensors_around_the_sizes_that_matter(fd, extra):
    sizes = [content._LARGE + extra, 1, content.BLOCK + extra, 3, content._LARGE, 2 * content.BLOCK + extra, 5]
    tree = [random_bytes(size) for size in sizes]
    entry = content.write(fd, tree)
    assert len(entry.sums) == 1 + -(-(entry.bytes - entry.head) // content.BLOCK)
    assert same(content.read(fd, entry), tree)


def test_large_tensors_are_read_to_where_they_are_wanted(fd):
    tree = {"rows": torch.arange(300_000), "small": torch.arange(3)}
    entry = content.write(fd, tree)
    memory, asked = torch.zeros(400_000, dtype=torch.int64), []

    def place(dtype, shape):
        asked.append((dtype, shape))
        return memory[:300_000]

    read = content.read(fd, entry, place)
    assert asked == [(torch.int64, [300_000])]
    assert read["rows"].data_ptr() == memory.data_ptr() and memory[299_999] == 299_999 and memory[300_000] == 0


def test_views_are_written_as_what_they_show(fd):
    base = torch.arange(12).view(3, 4)
    tree = [base.T, base[:, 1], base[1:], torch.tensor([1 + 2j]).conj(), torch.tensor([1.0]).expand(5)]
    entry = content.write(fd, tree)
    for made, value in zip(content.read(fd, entry), tree, strict=True):
        assert torch.equal(made, value.resolve_conj())


def test_writes_and_reads_that_do_a_part_at_a_time(fd, monkeypatch):
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: write(fd, [views[0][:1000]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:1000]], at))
    tree = [random_bytes(5000), random_bytes(1)]
    assert same(content.read(fd, content.write(fd, tree)), tree)


def test_a_flipped_bit_in_any_block_is_told_with_its_place(fd):
    entry = content.write(fd, random_bytes(2 * content.BLOCK + 100))
    for at in (entry.head, entry.head + content.BLOCK, entry.bytes - 1):
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 4]), at)
        begin = entry.head + (at - entry.head) // content.BLOCK * content.BLOCK
        with pytest.raises(ValueError, match=f"the checksum of the bytes from {begin} on differs"):
            content.read(fd, entry)
        os.pwrite(fd, bytes([byte]), at)
    content.read(fd, entry)
