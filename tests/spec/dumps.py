"""Directories that hold a dump: looked at, damaged, and written as an attacker would."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrb.persistence import content, folder

TEXTS = ["a", "é", None, "\ud800"]


def buffer(first: int = 0, num: int = 4, capacity: int = 5) -> ReplayBuffer:
    """A buffer of all kinds of fields, with a pass under way and a generator of its own."""
    generator = torch.Generator()
    generator.manual_seed(first)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SamplerWithoutReplacement(),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=generator,
        batch_size=2,
    )
    if num:
        rb.extend(rows(first, num))
        rb.sample()
    return rb


def rows(first: int, num: int) -> TensorDict:
    numbers = torch.arange(first, first + num)
    texts = [TEXTS[i % len(TEXTS)] for i in range(num)]
    return TensorDict({"id": numbers, "next": {"x": numbers[:, None].expand(num, 3).double()}, "text": texts}, [num])


def plain_buffer(num: int = 3, capacity: int = 5) -> ReplayBuffer:
    rb = ReplayBuffer(storage=LazyTensorStorage(capacity), writer=RoundRobinWriter(track_generations=True))
    rb.extend(torch.arange(num))
    return rb


def told(rb: ReplayBuffer) -> tuple[Any, ...]:
    """What a buffer holds, in a form that can be compared."""
    storage = rb.storage
    ids = rb[:]["id"].tolist() if len(rb) else []
    texts = [rb[i]["text"] for i in range(len(rb))]
    assert not len(rb) or (rb[:]["next", "x"] == rb[:]["id"][:, None]).all()
    return len(rb), storage.cursor, rb.write_count, ids, texts, rb.sampler.stats(storage)


def files_of(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}


def content_files(place: Path) -> list[Path]:
    return sorted(place.glob("*.content"))


def manifest(place: Path) -> dict[str, Any]:
    return json.loads((place / folder.MANIFEST).read_bytes().split(b"\n", 1)[1])


def sign(place: Path, told: Any, version: int = 1) -> None:
    """Write a manifest with a right checksum."""
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    line = b"torchrb dump, version %d, checksum %08x\n" % (version, zlib.crc32(body))
    (place / folder.MANIFEST).write_bytes(line + body)


def rewrite(place: Path, part: str, number: int, change: Callable[[Any], Any]) -> None:
    """Change the tree in one of a part's files, with right checksums everywhere."""
    with folder.opened(place) as dump:
        tree = dump.read(dump.parts[part][number])
    data = change(tree)
    replace(place, part, number, lambda path: write_tree(path, data))


def replace(place: Path, part: str, number: int, write: Callable[[Path], list[Any]]) -> None:
    """Write one of a part's files anew, by a function that returns what the manifest is to say of it."""
    listed = manifest(place)
    name = listed["parts"][part][number][0]
    (place / name).unlink()
    listed["parts"][part][number] = [name, *write(place / name)]
    sign(place, listed)


def write_tree(path: Path, tree: Any) -> list[Any]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        return [*content.write(fd, tree)]
    finally:
        os.close(fd)


def write_bytes(path: Path, text: bytes, head: int | None = None) -> list[Any]:
    """Any bytes, with right checksums."""
    path.write_bytes(text)
    head = len(text) if head is None else head
    blocks = [text[at : at + content.BLOCK] for at in range(head, len(text), content.BLOCK)]
    return [len(text), head, [f"{zlib.crc32(piece):08x}" for piece in [text[:head], *blocks]]]


def one_bit_off(text: bytes, step: int = 1) -> Iterator[tuple[int, bytes]]:
    """The same bytes with one bit changed, a different bit in turn, at every ``step``-th place."""
    for at in range(0, len(text), step):
        changed = bytearray(text)
        changed[at] ^= 1 << (at // step % 8)
        yield at, bytes(changed)
