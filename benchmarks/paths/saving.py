"""Dumps and loads of a whole buffer, against copies of a file of the same bytes.

A dump brings its files to the disk before it returns, so the copy it is held against does, too (`os.fsync`); a load
brings nothing there, and is also held against a copy that does not. All files were just written or read: they are in
the page cache.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from torch import Tensor

import torchrb
from benchmarks.buffers import fill, ours
from benchmarks.harness import Contender, Row, within
from benchmarks.limits import bare_bytes
from benchmarks.workloads import W1, Ring, Scale

COPY, SYNCED = "file copy", "file copy + fsync"
_AT_LEAST = 0.7  # of the speed of a copy


class Folder:
    """A directory that goes with its contender. ``new``: a place in it where nothing is; what was there before goes."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="torchrb-bench-"))
        weakref.finalize(self, shutil.rmtree, self.path, True)
        self._numbers = itertools.count()

    def new(self) -> Path:
        for old in self.path.glob("new-*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        return self.path / f"new-{next(self._numbers)}"


def _checked(buffer: Any) -> Tensor:
    """The numbers of all records, each of which is what was written."""
    return W1.check(buffer[:])


def _loaded(place: Path, rows: int) -> Any:
    buffer = ours(rows)
    buffer.loads(place)
    return buffer


def dumping(rows: int) -> Contender:
    """All of a buffer to a new directory."""
    buffer, folder = fill(ours(rows), W1, rows), Folder()

    def call(place: Path) -> Path:
        buffer.dumps(place)
        return place

    return Contender(call, lambda: (folder.new(),), lambda place: _checked(_loaded(place, rows)), threads=2)


def dumping_again(rows: int) -> Contender:
    """A buffer to where it was dumped before, with 512 records written since."""
    buffer, folder, ring = fill(ours(rows), W1, rows), Folder(), Ring(W1, rows)
    place = folder.path / "there"
    buffer.dumps(place)

    def inputs() -> tuple[()]:
        buffer.extend(ring.next())
        return ()

    return Contender(lambda: buffer.dumps(place), inputs, lambda _: _checked(_loaded(place, rows)), threads=2)


def loading(rows: int) -> Contender:
    """All of a buffer into a new one."""
    folder = Folder()
    fill(ours(rows), W1, rows).dumps(folder.path / "there")

    def call(buffer: torchrb.ReplayBuffer) -> torchrb.ReplayBuffer:
        buffer.loads(folder.path / "there")
        return buffer

    return Contender(call, lambda: (ours(rows),), _checked, threads=2)


def copying(rows: int, synced: bool) -> Contender:
    """A file of as many bytes to a new one."""
    folder = Folder()
    source, data = folder.path / "source", bare_bytes(W1, rows).numpy()
    source.write_bytes(data)

    def call(target: Path) -> Path:
        shutil.copyfile(source, target)
        if synced:
            fd = os.open(target, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        return target

    def check(target: Path) -> None:
        if target.read_bytes() != data.tobytes():
            raise AssertionError("the copy is another file")

    return Contender(call, lambda: (folder.new(),), check)


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    num = scale.saved
    size = f"{num:,} rows of {W1.row_bytes / 1e3:.1f} KB"
    synced = {SYNCED: lambda: copying(num, True)}
    copies = {COPY: lambda: copying(num, False), **synced}
    return [
        Row(
            "saving/dump", f"{size}: dumps", lambda: dumping(num), limits=synced, goals=[within(SYNCED, 1 / _AT_LEAST)]
        ),
        Row("saving/dump again", f"{size}: dumps again, 512 of them new", lambda: dumping_again(num), limits=synced),
        Row(
            "saving/load", f"{size}: loads", lambda: loading(num), limits=copies,
            goals=[within(COPY, 1 / _AT_LEAST), within(SYNCED, 1 / _AT_LEAST)],
        ),
    ]  # fmt: skip
