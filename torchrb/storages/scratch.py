"""The files of a storage on disk: who may use them, when they go, and what stands at their beginning.

Without a directory they have no name: the system frees them when the last process that has them is gone, however it
ends. In a directory of the user's they stay, under names that say whose they are, and a lock that dies with its holder
keeps others out.

The first page of the records' file holds 64-bit words (those below, and the storage's counters), the rest of its first
`PAGE` bytes what a record is, as JSON. The table of records begins at a multiple of `PAGE`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from torchrb.ops.schemas import CONTROL_SIZE
from torchrb.storages.shared_memory import PAGE, SharedMemory, rounded

NAMES = RECORDS, OBJECTS, LOCK = "torchrb.records", "torchrb.objects", "torchrb.lock"
_PREFIX = "torchrb-memmap-"
_VERSION = 1
_MAGIC = int.from_bytes(b"torchrb\0", "little")

# Words of the first page. The first one is that of `process_lock.OWNER`.
IS_RECORDS, VERSION, MAX_SIZE, RUN, TABLE_AT, TOLD_BYTES, TOLD_HASH = range(1, 8)
_CONTROL = 8
HEAP = _CONTROL + CONTROL_SIZE  # three words of the heap
_HEAD_BYTES = 4096
_CHUNK, _MOST_CHUNK = 64 << 10, 64 << 20  # bytes of the disk that are taken ahead of the rows
_SMALL = 256 << 20  # bytes of a table whose rows may cost a large page each on their way to the disk


class Scratch:
    """The files of one storage. ``directory``: where the user can see them, or None.

    ``words``: the first page as numbers. ``control``: the storage's counters, in it.
    """

    def __init__(
        self, records: SharedMemory, objects: SharedMemory, lock: SharedMemory | None, directory: str | None
    ) -> None:
        self.records, self.objects, self.lock, self.directory = records, objects, lock, directory
        self.table_at = self._taken = 0  # where the table begins; up to where it is on disk for sure
        with torch.inference_mode(False):
            head = self.records.tensor(0, _HEAD_BYTES).view(torch.int64)
        self.words, self.control = head.numpy().data, head[_CONTROL : _CONTROL + CONTROL_SIZE]

    @classmethod
    def nameless(cls, max_size: int, what: str) -> Scratch:
        """New files that nobody else finds."""
        with explained(f"{what}: cannot keep records in {_temporary()!r}"):
            return cls._begun(_nameless(), _nameless(), None, None, max_size)

    @classmethod
    def at(cls, directory: Any, max_size: int, existsok: bool, what: str) -> Scratch:
        """The files in a directory, new or, with ``existsok``, as they were left.

        RuntimeError while another storage uses them; FileExistsError when they are there and may not be; ValueError
        when they are not what this version of torchrb wrote for a storage of ``max_size``.
        """
        directory = os.path.abspath(os.fspath(directory))
        with explained(f"{what}: cannot keep records in scratch_dir={directory!r}"):
            os.makedirs(directory, exist_ok=True)
            lock = _open(directory, LOCK)
            try:
                fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock.fd, 20, 0).decode("ascii", "replace") or "?"
                raise RuntimeError(
                    f"{what}: scratch_dir={directory!r} is in use by process {owner}. Give another directory; or, to "
                    "use one buffer in several processes, make it in one of them and hand it to the others."
                ) from None
            lock.resize(0)
            os.pwrite(lock.fd, str(os.getpid()).encode(), 0)
            records, objects = _open(directory, RECORDS), _open(directory, OBJECTS)
            if not _has_rows(records, what, directory):
                return cls._begun(records, objects, lock, directory, max_size)
            if not existsok:
                raise FileExistsError(
                    f"{what}: scratch_dir={directory!r} has the records of an earlier storage. existsok=True goes on "
                    f"with them; to begin anew remove {', '.join(NAMES)} there, or give another directory."
                )
            scratch = cls(records, objects, lock, directory)
            scratch._check(max_size, what)
            return scratch

    @classmethod
    def _begun(
        cls,
        records: SharedMemory,
        objects: SharedMemory,
        lock: SharedMemory | None,
        directory: str | None,
        max_size: int,
    ) -> Scratch:
        records.resize(0)
        objects.resize(0)
        records.resize(PAGE)
        _take(records.fd, 0, _HEAD_BYTES)
        scratch = cls(records, objects, lock, directory)
        scratch.words[MAX_SIZE], scratch.words[VERSION], scratch.words[IS_RECORDS] = max_size, _VERSION, _MAGIC
        return scratch

    def _check(self, max_size: int, what: str) -> None:
        where, words = f"scratch_dir={self.directory!r}", self.words
        if words[VERSION] != _VERSION:
            raise ValueError(
                f"{what}: {where} was written in format {words[VERSION]}, and this torchrb reads {_VERSION}."
            )
        if words[MAX_SIZE] != max_size:
            raise ValueError(
                f"{what}: {where} holds a storage of max_size={words[MAX_SIZE]}, got max_size={max_size}. "
                "Use the same, or another directory."
            )

    # --- what a record is

    @property
    def is_told(self) -> bool:
        """Whether the files say what a record is."""
        return self.words[TOLD_BYTES] != 0

    def prepare_to_tell(self, description: Any, what: str) -> bytes:
        """What `tell` needs to be sure to succeed. ValueError for a description that is too long."""
        told = json.dumps(description, separators=(",", ":")).encode()
        if len(told) > PAGE - _HEAD_BYTES:
            raise ValueError(f"{what}: a record of so many fields cannot be kept on disk. Store wider fields instead.")
        with explained(f"{what}: no room for what a record is in {self}"):
            _take(self.records.fd, _HEAD_BYTES, len(told))
        return told

    def tell(self, told: bytes, table_at: int) -> None:
        """Say what a record is, and where the records are."""
        self.words[TOLD_BYTES] = 0
        os.pwrite(self.records.fd, told, _HEAD_BYTES)
        self.words[TABLE_AT], self.words[TOLD_HASH] = table_at, _hash(told + str(table_at).encode())
        self.words[TOLD_BYTES] = len(told)

    def told(self, what: str) -> tuple[Any, int]:
        """What `tell` was given. ValueError when that is damaged."""
        size, at = self.words[TOLD_BYTES], self.words[TABLE_AT]
        told = os.pread(self.records.fd, min(max(size, 0), PAGE), _HEAD_BYTES)
        if len(told) != size or _hash(told + str(at).encode()) != self.words[TOLD_HASH]:
            raise ValueError(f"{what}: {self} is damaged: it does not say what its records are.")
        try:
            return json.loads(told), at
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{what}: {self} is damaged: it does not say what its records are.") from error

    # --- room

    def grow(self, nbytes: int, what: str) -> None:
        """Make the file of records so large; it takes up nothing of the disk by that."""
        with explained(f"{what}: no room for a file of {nbytes:,} bytes in {self}"):
            self.records.resize(nbytes)

    def lay(self, at: int, used: int) -> None:
        """Say where the table begins, and how many of its bytes have been written."""
        self.table_at, self._taken = at, at + used
        self._have_large_pages(at)

    def reserve(self, begin: int, end: int, what: str) -> None:
        """Make sure that bytes of the table are on disk before they are written through a mapping, where a full disk
        would end the process. OSError when there is no room.
        """
        begin, end = self.table_at + begin, self.table_at + end
        if end <= self._taken:
            return
        with explained(f"{what}: no room for more records in {self}"):
            if begin > self._taken + _MOST_CHUNK:  # a few rows far beyond the others
                _take(self.records.fd, begin, end - begin)
                return
            ahead = min(max(_CHUNK, (end - self.table_at) // 4), _MOST_CHUNK)
            end = end + ahead if ahead < PAGE else rounded(end + ahead)
            begin, end = self._taken, min(end, self.records.nbytes)
            _take(self.records.fd, begin, end - begin)
            self._taken = end
            self._have_large_pages(begin)

    def _have_large_pages(self, begin: int) -> None:
        """Of a table that may as well be written to the disk as a whole, as a large page is with the first row that
        changes in it; up to where that takes no more room.
        """
        if self.records.nbytes - self.table_at <= _SMALL:
            self.records.ask_for_large_pages(begin // PAGE * PAGE, self._taken)

    # --- the end

    @property
    def was_interrupted(self) -> bool:
        """Whether the files were in use when their machine stopped, or still are on another one: then rows may be there
        in part, as pages reach a disk in any order.
        """
        return self.words[RUN] not in (0, _this_run())

    def use(self) -> None:
        """Note that the files are in use from now on."""
        self.words[RUN] = _this_run()

    def close(self, remove: bool) -> None:
        """Put what the user keeps on disk for good, or remove it."""
        if self.directory is None:
            return
        if remove:
            for name in NAMES:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.directory, name))
            with contextlib.suppress(OSError):
                os.rmdir(self.directory)  # if nothing else is in it
            return
        for memory in (self.objects, self.records):
            os.fsync(memory.fd)
        self.words[RUN] = 0

    def __str__(self) -> str:
        return f"scratch_dir={self.directory!r}" if self.directory else f"the temporary directory {_temporary()!r}"


def temporary_directory() -> str:
    """A new directory for files that stay, though nobody said where."""
    return tempfile.mkdtemp(prefix=_PREFIX)


def _temporary() -> str:
    return tempfile.gettempdir()


def _nameless() -> SharedMemory:
    with tempfile.TemporaryFile(prefix=_PREFIX) as file:
        return SharedMemory(os.dup(file.fileno()))


def _open(directory: str, name: str) -> SharedMemory:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return SharedMemory(os.open(os.path.join(directory, name), flags, 0o666))


def _has_rows(records: SharedMemory, what: str, directory: str) -> bool:
    """Whether a file has records; one that was only begun has none. ValueError for a file of somebody else's."""
    size = records.nbytes
    if not size:
        return False
    head = memoryview(os.pread(records.fd, _HEAD_BYTES, 0).ljust(_HEAD_BYTES, b"\0")).cast("q")
    if head[IS_RECORDS] == _MAGIC and size >= PAGE:
        return head[TOLD_BYTES] != 0
    if any(head):
        raise ValueError(f"{what}: {os.path.join(directory, RECORDS)!r} is not a file of torchrb on this machine.")
    return False  # killed before it had begun


def _take(fd: int, begin: int, nbytes: int) -> None:
    if nbytes > 0:
        os.posix_fallocate(fd, begin, nbytes)


def _hash(told: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little", signed=True)


def _this_run() -> int:
    """What tells this run of the machine from any other; never 0."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return _hash(file.read()) | 1
    except OSError:
        return 1


@contextlib.contextmanager
def explained(failed: str) -> Iterator[None]:
    """Say what was to be done, and the remedy, in an OSError of the system's."""
    try:
        yield
    except FileExistsError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, f"{failed}: {error.strerror}. Give a directory.") from error
    except OSError as error:
        if error.errno is None:
            raise
        remedy = "Free some space, or give another scratch_dir"
        if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError) or error.errno == 30:  # EROFS
            remedy = "Give a directory that can be written to"
        raise type(error)(error.errno, f"{failed}: {error.strerror}. {remedy}.") from error
