"""A directory that keeps a dump: content files, and a manifest that names them.

Saving writes content files of new names aside, brings them to the disk, and then renames a new manifest over the old
one: that is the switch, before which the directory holds the old dump and after which it holds the new one, whatever
happens. Files that no manifest names any more go afterwards. So do those that a killed process left behind, which are
told from other people's files by their names; anything else in the directory is left alone.

Who saves holds the directory's lock (`fcntl.flock`), who loads shares it, between threads and processes.

Nothing that is read is believed before its checksum was seen, nothing is allocated that is larger than the file that
asks for it, no name leads out of the directory or through a link, and nothing is ever executed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchrb.persistence import content

VERSION = 1
MANIFEST = "torchrb.manifest"
_OWN_NAME = re.compile(r"torchrb-[0-9a-f]{32}\.(content|manifest)")
_FIRST_LINE = re.compile(rb"torchrb dump, version ([1-9][0-9]{0,8}), checksum ([0-9a-f]{8})\n")
_MOST_MANIFEST = 1 << 28


class FileEntry(NamedTuple):
    """A content file of a dump."""

    name: str
    content: content.Entry


class Dump:
    """A dump in a directory, as its manifest tells. ``id``: no other dump has it. ``kind``: of what it is. ``parts``:
    the content files of each part.
    """

    def __init__(self, folder: Path, id: str, kind: str, parts: dict[str, list[FileEntry]]) -> None:
        self.folder, self.id, self.kind, self.parts = folder, id, kind, parts

    def read(self, entry: FileEntry, place: content.Place | None = None) -> Any:
        """The tree in one of the files. ValueError, or FileNotFoundError, that names the file if it is not what was
        saved.
        """
        with _blamed(self.folder / entry.name), _open(self.folder / entry.name) as fd:
            return content.read(fd, entry.content, place)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Dump]:
    """The dump in a directory, which nobody replaces meanwhile. FileNotFoundError where there is none, ValueError for
    one that has changed since it was saved, or that a newer torchrb has saved.
    """
    folder = Path(path)
    if not (folder / MANIFEST).exists():
        raise FileNotFoundError(f"loads: there is no dump in {folder}: it has no {MANIFEST}.")
    with _locked(folder, fcntl.LOCK_SH):
        yield _read_manifest(folder)


# Of each part, a list of trees, or of `FileEntry` for files of the dump before that stay.
Parts = Mapping[str, Sequence[Any]]


def saved(path: str | os.PathLike[str], kind: str, parts: Callable[[Dump | None], Parts]) -> Dump:
    """Save what ``parts`` makes of the dump that is there before: None if there is none that is whole.

    Returns the dump that is now in the directory, which is made if need be. An exception leaves the directory as it
    was. NotADirectoryError, or FileExistsError, where something else is in the way.
    """
    folder = Path(path)
    made = _make(folder)
    try:
        with _locked(folder, fcntl.LOCK_EX):
            return _save(folder, kind, parts(_before(folder)))
    except BaseException:
        for parent in made:  # ours, and empty unless somebody else came
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _before(folder: Path) -> Dump | None:
    """The dump that is in a directory; None if there is none, or files of it are missing or cut off."""
    try:
        dump = _read_manifest(folder)
        for entries in dump.parts.values():
            for name, entry in entries:
                if os.stat(folder / name, follow_symlinks=False).st_size != entry.bytes:
                    return None
    except (OSError, ValueError):
        return None
    return dump


def _make(folder: Path) -> list[Path]:
    """Make a directory and those above it; returns the new ones, the lowest first."""
    made: list[Path] = []
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        for place in reversed(missing):
            with contextlib.suppress(FileExistsError):
                place.mkdir()
                made.insert(0, place)
                _sync_folder(place.parent)
        if not folder.is_dir():
            raise NotADirectoryError(f"dumps: {folder} is a file, expected a directory. Choose another path.")
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise
    return made


def _save(folder: Path, kind: str, parts: Parts) -> Dump:
    manifest, new = folder / MANIFEST, []
    if manifest.exists():
        _require_ours(manifest)
    old = manifest.read_bytes() if manifest.exists() else None
    switched = False
    try:
        entries: dict[str, list[FileEntry]] = {}
        for part, trees in parts.items():
            entries[part] = []
            for tree in trees:
                if not isinstance(tree, FileEntry):
                    name = f"torchrb-{secrets.token_hex(16)}.content"
                    new.append(name)
                    tree = FileEntry(name, _write(folder / name, tree))
                entries[part].append(tree)
        dump = Dump(folder, secrets.token_hex(16), kind, entries)
        aside = f"torchrb-{secrets.token_hex(16)}.manifest"
        new.append(aside)
        _write_bytes(folder / aside, _manifest_of(dump))
        _sync_folder(folder)
        os.replace(folder / aside, manifest)
        switched = True
        _sync_folder(folder)
    except BaseException:
        if switched:
            _put_back(folder, old)
        _remove(folder, new)
        raise
    named = {entry.name for files in entries.values() for entry in files}
    _remove(folder, [name for name in os.listdir(folder) if _OWN_NAME.fullmatch(name) and name not in named])
    return dump


def _put_back(folder: Path, old: bytes | None) -> None:
    """Undo a switch that did not get to the disk."""
    if old is None:
        (folder / MANIFEST).unlink()
        return
    aside = folder / f"torchrb-{secrets.token_hex(16)}.manifest"
    aside.write_bytes(old)
    os.replace(aside, folder / MANIFEST)


def _remove(folder: Path, names: Sequence[str]) -> None:
    """Remove files, as far as possible: what stays is removed by the next dump."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(folder / name)


def _write(path: Path, tree: Any) -> content.Entry:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        entry = content.write(fd, tree)
        os.fsync(fd)
    finally:
        os.close(fd)
    return entry


def _write_bytes(path: Path, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        content._write_all(fd, [memoryview(text)], 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(folder: Path, mode: int) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, mode)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # not left to the descriptor, which a forked process may hold too
        os.close(fd)


# --- the manifest


def _manifest_of(dump: Dump) -> bytes:
    parts = {part: [[name, *entry] for name, entry in entries] for part, entries in dump.parts.items()}
    body = json.dumps({"id": dump.id, "kind": dump.kind, "parts": parts}).encode()
    return b"torchrb dump, version %d, checksum %08x\n%s" % (VERSION, zlib.crc32(body), body)


def _require_ours(manifest: Path) -> None:
    with _open(manifest) as fd:
        if not os.pread(fd, 13, 0).startswith(b"torchrb dump,"):
            raise FileExistsError(
                f"dumps: {manifest} is not from torchrb, and a dump needs that name. Choose another directory."
            )


def _read_manifest(folder: Path) -> Dump:
    with _blamed(folder / MANIFEST):
        with _open(folder / MANIFEST) as fd:
            size = os.fstat(fd).st_size
            if size > _MOST_MANIFEST:
                raise ValueError(f"has {size} bytes, which is no manifest")
            text = bytearray(size)
            content._read_all(fd, [memoryview(text)], 0)
        line = _FIRST_LINE.match(text)
        if line is None:
            raise ValueError("is not the manifest of a dump, or has changed since it was written")
        version = int(line[1])
        if version > VERSION:
            raise ValueError(
                f"is of version {version}, and this torchrb reads versions up to {VERSION}. Use the torchrb that wrote "
                "it, or a newer one"
            )
        body = bytes(text[line.end() :])
        if version != VERSION or line[2] != b"%08x" % zlib.crc32(body):
            raise ValueError("has changed since it was written: its checksum differs")
        told = json.loads(body)
        parts = {part: [_entry(*file) for file in files] for part, files in told["parts"].items()}
        if not isinstance(told["id"], str) or not isinstance(told["kind"], str):
            raise ValueError("tells no id and kind")
        return Dump(folder, told["id"], told["kind"], parts)


def _entry(name: Any, size: Any, head: Any, sums: Any) -> FileEntry:
    if not isinstance(name, str) or not _OWN_NAME.fullmatch(name):
        raise ValueError(f"names a file {name!r}, which is none that a dump has")
    if type(size) is not int or type(head) is not int or not isinstance(sums, list):
        raise ValueError(f"tells of file {name} what it cannot be")
    return FileEntry(name, content.Entry(size, head, sums))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    """An ordinary file, and nothing that stands for one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise FileNotFoundError(f"loads: {path} is missing, and the dump needs it.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("is a link, and files of a dump are not") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("is not an ordinary file")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Errors of what is read say which file it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"loads: {path} {error}. Nothing was loaded; load another dump."
            if isinstance(error, ValueError)
            else f"loads: {path} holds what no dump does ({type(error).__name__}: {error}). Nothing was loaded."
        ) from error
