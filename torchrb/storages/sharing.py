"""A storage in the hands of several processes.

`share` moves what they must all see into memory that each of them maps: counters, journal, tables. What belongs to one
process stays there: the storage object, group indices (which follow the journal), samplers. A process gets the storage
from another one as an argument of a `torch.multiprocessing` process or through one of its queues and pipes; nothing is
copied on the way. Whichever process writes the first batch tells the others what a record is.

The memory begins with a few words (`OWNER` of the lock, and where that batch is to be found), the
counters and the journal. Tables come next, each from a whole page on, then a pickled batch of no
records, from which another process learns what a record is.
"""

from __future__ import annotations

import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrb.ops.schemas import CONTROL_SIZE
from torchrb.storages.process_lock import ProcessLock
from torchrb.storages.repair import repair
from torchrb.storages.shared_memory import SharedMemory, rounded
from torchrb.storages.structure import Structure, numbers_of, shown

if TYPE_CHECKING:
    from torchrb.storages.records import RecordTable
    from torchrb.storages.tensor import LazyTensorStorage

# Words of the memory, int64, after OWNER: where the batch of no records lies (0 before there is one), how long it is.
EXAMPLE_AT, EXAMPLE_BYTES = 1, 2
_CONTROL = 8
_JOURNAL = _CONTROL + CONTROL_SIZE

# In one process, one storage object for one memory, however often it arrives.
_HERE: weakref.WeakValueDictionary[tuple[int, int], LazyTensorStorage] = weakref.WeakValueDictionary()
_here_lock = threading.RLock()


class Sharing:
    """The part of a storage that other processes see."""

    def __init__(self, storage: LazyTensorStorage, memory: SharedMemory, journal_size: int) -> None:
        self._storage, self._memory = weakref.ref(storage), memory
        self._body = self._end = rounded(8 * (_JOURNAL + journal_size))  # where tables begin; where the next one goes
        with torch.inference_mode(False):
            head = memory.tensor(0, self._body).view(torch.int64)
            self.control, self.journal = head[_CONTROL:_JOURNAL], head[_JOURNAL : _JOURNAL + journal_size]
        self._words = head[:_CONTROL].numpy().data

    def take_over(self, storage: LazyTensorStorage) -> None:
        """Make this the storage's lock, counters and journal."""
        lock = ProcessLock(self._memory, self._words, storage.lock, self._entered)
        storage.control, storage.journal = self.control, self.journal
        storage._counters, storage.lock, storage._sharing = self.control.numpy().data, lock, self
        reduction.ForkingPickler.register(type(storage), _reduced)
        with _here_lock:
            _HERE[self._memory.token] = storage

    def define(self, storage: LazyTensorStorage, structure: Structure) -> RecordTable:
        """Lay out tables and tell the other processes. TypeError, with nothing told, for what cannot be shared."""
        _require_tensors(structure, type(storage).__name__)
        example = _example(structure)
        self._memory.resize(self._body)  # what a process left that was killed here
        self._end = self._body
        records = storage._lay_out(structure, storage.device, self.zeros)
        self._memory.resize(self._end + len(example))
        os.pwrite(self._memory.fd, example, self._end)
        self._words[EXAMPLE_BYTES] = len(example)
        self._words[EXAMPLE_AT] = self._end
        return records

    def zeros(self, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The next table's memory, like `memory.zeros`; the same for the same calls in another process."""
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        offset, self._end = self._end, self._end + rounded(nbytes)
        if self._memory.nbytes < self._end:
            self._memory.resize(self._end)
        with torch.inference_mode(False):
            return self._memory.tensor(offset, nbytes).view(dtype).view(shape)

    def _entered(self, died: int) -> None:
        """The lock was taken: learn what a record is, if another process has told; clean up after one that died."""
        storage = self._storage()
        if storage is None:
            return
        if storage.structure is None:
            self._learn(storage)
        if died:
            num_cells = 1 if storage.structure is None else storage.structure.cells.numel()
            dropped = repair(storage.tables, self.control, self.journal, num_cells)
            if dropped:
                warnings.warn(
                    f"{type(storage).__name__}: process {died} ended while it was writing; {dropped} records that it "
                    "had not finished were dropped. All others are as they were.",
                    RuntimeWarning,
                    stacklevel=5,
                )

    def _learn(self, storage: LazyTensorStorage) -> None:
        """What a record is, if a process has told."""
        if not self._words[EXAMPLE_AT]:
            return
        example = os.pread(self._memory.fd, self._words[EXAMPLE_BYTES], self._words[EXAMPLE_AT])
        structure = storage._learned(pickle.loads(example), storage.device, "share")
        self._end = self._body
        storage._records = storage._lay_out(structure, storage.device, self.zeros)
        storage.structure, storage._numbers = structure, numbers_of(structure)

    def sent(self, storage: LazyTensorStorage) -> tuple[Any, ...]:
        """What makes the storage in another process; the caller holds its lock."""
        fd, ring = reduction.DupFd(self._memory.fd), storage.journal.shape[0]
        return _arrived, (type(storage), storage.max_size, storage._layout, storage.ndim, fd, ring, storage._adopted)


def share(storage: LazyTensorStorage) -> None:
    """Move a storage into shared memory. TypeError when its records cannot be there."""
    name = type(storage).__name__
    with storage.lock:
        storage._staging.settle()
        if storage._sharing is not None:
            return
        if storage.device.type != "cpu":
            raise TypeError(
                f"share: {name} is on {str(storage.device)!r}, and only records on the CPU are shared between "
                f"processes. Use {name}(..., device='cpu'), and move what is sampled."
            )
        structure, old = storage.structure, storage._records
        if structure is not None:
            require_shareable(structure, name)
        memory = SharedMemory.new(rounded(8 * (_JOURNAL + storage.journal.shape[0])))
        sharing = Sharing(storage, memory, storage.journal.shape[0])
        sharing.control.copy_(storage.control)
        sharing.journal.copy_(storage.journal)
        if structure is not None:
            for tensor in storage._adopted:
                tensor.share_memory_()  # in place: whoever holds it still sees every write
            records = sharing.define(storage, structure)
            for new, table in zip(records.tables, old.tables, strict=True):
                if new.data_ptr() != table.data_ptr():
                    new.copy_(table)
            storage._records = records
        sharing.take_over(storage)


def require_shareable(structure: Structure, name: str) -> None:
    """TypeError for records that other processes cannot see, or cannot be told of."""
    _require_tensors(structure, name)
    _example(structure)


def _require_tensors(structure: Structure, name: str) -> None:
    if structure.object_keys:
        names = [shown(key) for key in structure.object_keys]
        raise TypeError(
            f"{name}: fields {names} hold strings or other Python objects, which cannot be shared between processes. "
            "Use a LazyMemmapStorage, which shares strings too; or leave them out, or store an integer id or token ids."
        )


def _example(structure: Structure) -> bytes:
    """A pickled batch of no records. TypeError when its classes cannot be named to another process."""
    with torch.inference_mode(False):
        values = [torch.empty((0, *leaf.shape), dtype=leaf.dtype) for leaf in structure.leaves]
        example = structure.build(values, [], torch.Size([0, *structure.cells]))
    try:
        return pickle.dumps(example)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"share: other processes cannot be told what a record is ({error}). Classes of records must be importable "
            "there: define them at the top of a module."
        ) from error


def _reduced(storage: LazyTensorStorage) -> tuple[Any, ...]:
    """How a storage goes to another process."""
    sharing = storage._sharing
    if sharing is None:
        return storage.__getstate__()  # which refuses
    with storage.lock:
        return sharing.sent(storage)


def here(token: tuple[int, int], made: Callable[[], LazyTensorStorage]) -> LazyTensorStorage:
    """The storage of some memory as this process has it: the one that is here already, if it is."""
    with _here_lock:
        storage = _HERE.get(token)
        return made() if storage is None else storage


def _arrived(
    kind: type[LazyTensorStorage], max_size: int, layout: Any, ndim: int, fd: Any, ring: int, adopted: list[Tensor]
) -> LazyTensorStorage:
    memory = SharedMemory(fd.detach())

    def made() -> LazyTensorStorage:
        storage = kind._received(max_size, layout, ndim)
        storage._adopted = adopted
        Sharing(storage, memory, ring).take_over(storage)
        return storage

    return here(memory.token, made)
