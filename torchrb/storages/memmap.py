"""A storage whose records lie in a file: as many as the disk holds, and there again another day."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor

from torchrb import ops
from torchrb.generations import words_of
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_EPOCH,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_LOCK,
    CONTROL_STAMP,
    CONTROL_WRITES,
    SLOT_LIVE,
)
from torchrb.persistence import StateReader
from torchrb.storages import memmap_state
from torchrb.storages.base import Placement
from torchrb.storages.description import cells_in, describe, structure_from
from torchrb.storages.fields import Fields
from torchrb.storages.heap import REF_WORDS, Heap
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.records import LeafSpec, RecordTable, packed
from torchrb.storages.repair import repair
from torchrb.storages.saving import Counters, PlannedRows, Saving, new_epoch
from torchrb.storages.scratch import HEAP, Scratch, explained, temporary_directory
from torchrb.storages.shared_memory import SharedMemory, rounded
from torchrb.storages.sharing import Sharing, here
from torchrb.storages.structure import Rows, Structure, numbers_of, shown
from torchrb.storages.tensor import LazyTensorStorage

_VALUE_BYTES = 64  # looking for dead values visits every record: not before so much was added for each


class LazyMemmapStorage(LazyTensorStorage):
    """Records in a memory-mapped file, allocated when the first batch tells what a record is.

    Args:
        max_size: capacity in records, with several dimensions in cells. The file takes up as much of the disk as was
            written.
        scratch_dir: the directory of the files. It belongs to one storage: while that lives, in whatever process, no
            other one opens it (RuntimeError). None: files without a name in the system's temporary directory, which are
            gone when the storage is, however its process ends.
        device: only "cpu"; move what is sampled.
        ndim: dimensions of a batch in records, as in `LazyTensorStorage`.
        existsok: go on with the records that an earlier storage of this ``max_size`` and ``ndim`` left in
            ``scratch_dir``: rows, handles, counters, strings. Otherwise they are a FileExistsError. Of a process that
            was killed while it wrote, the records that it had not finished are dropped, and a warning says so.
            Priorities, passes and how often records were drawn are no part of a storage, and begin anew; see
            `ReplayBuffer.dumps`.
        compilable: accepted for compatibility.
        shared_init: other processes will use it before it has records: as `ReplayBuffer.share`.
        auto_cleanup: remove the files when the storage goes, or the process ends; default: only without a
            ``scratch_dir``. False without one: they stay in a new directory, see the attribute ``scratch_dir``.

    Everything else is as in `LazyTensorStorage`. Fields that are not tensors lie in a file of their own: strings, None,
    numbers, bytes, and lists, tuples and dicts of these (TypeError for others). The storage goes to other processes as
    it is, strings included, and a forked one uses the same records.

    Nothing in the files is ever executed. Classes of records are only named in them: import their module before
    ``existsok=True``. Files are read on the kind of machine that wrote them, and by this version of the format. As
    sharing, all of this needs Linux.

    >>> import tempfile, torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyMemmapStorage, ReplayBuffer
    >>> there = tempfile.mkdtemp()
    >>> rb = ReplayBuffer(storage=LazyMemmapStorage(1000, scratch_dir=there))
    >>> _ = rb.extend(TensorDict({"prompt": ["a", "b"], "reward": torch.tensor([0.0, 1.0])}, [2]))
    >>> del rb  # another day:
    >>> rb = ReplayBuffer(storage=LazyMemmapStorage(1000, scratch_dir=there, existsok=True))
    >>> list(rb[:]["prompt"]), rb[:]["reward"], rb.write_count
    (['a', 'b'], tensor([0., 1.]), 2)
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        name = type(self).__name__
        if device != "auto" and torch.device(device).type != "cpu":
            raise ValueError(
                f"{name}: records in a file are on the CPU, got device={str(device)!r}. Use 'cpu', and move what is "
                "sampled: rb.sample().to(device)."
            )
        super().__init__(max_size, ndim=ndim, compilable=compilable)
        if scratch_dir is None and auto_cleanup is False:
            scratch_dir = temporary_directory()
        if scratch_dir is None:
            files = Scratch.nameless(max_size, name)
        else:
            files = Scratch.at(scratch_dir, max_size, existsok, name)
        self._open(files, SharedMemory.new(rounded(8 * self.journal.shape[0])))
        if files.is_told:
            self._resume(files.was_interrupted)
        files.use()
        self._close: Any = Finalize(self, files.close, (bool(auto_cleanup),), exitpriority=0)  # in any process's end
        if shared_init:
            self.share()

    def _open(self, files: Scratch, memory: SharedMemory) -> None:
        self._files, self._heap = files, Heap(files.objects, files.words, HEAP)
        self._wanted, self._for_others = 0, False
        FileSharing(self, memory, files).take_over(self)

    def _resume(self, interrupted: bool) -> None:
        control, counters = self.control, self._counters
        name = type(self).__name__
        capacity = self._capacity_for(cells_in(self._files.told(name)[0], name))
        counts = [
            (counters[CONTROL_CURSOR], capacity - 1),
            (counters[CONTROL_LENGTH], capacity),
            (counters[CONTROL_WRITES], 2**62),
            (counters[CONTROL_STAMP], 2**51),
            (self._files.words[HEAP], self._files.objects.nbytes),
        ]
        for count, most in counts:
            if not 0 <= count <= most:
                raise ValueError(f"{name}: {self._files} is damaged: it counts {count} of {most}.")
        control[CONTROL_LOCK] = 0
        control[CONTROL_EPOCH] = new_epoch()  # the files may be a copy, or older than what was counted last
        control[CONTROL_JOURNAL] = max(counters[CONTROL_JOURNAL], 0) + self.journal.shape[0] + 1  # readers start anew
        with self.lock:  # which learns what a record is, and cleans up after a process that was killed
            if interrupted:
                dropped = repair(self.tables, control, self.journal, self.num_cells)
                warnings.warn(
                    f"{type(self).__name__}: {self._files} was in use when its machine stopped, or is on another one. "
                    f"Records written in its last minute may be there in part; {dropped} that look so were dropped.",
                    RuntimeWarning,
                    stacklevel=4,
                )

    @property
    def scratch_dir(self) -> str | None:
        """The directory of the files; None where they have no name."""
        return self._files.directory

    def cleanup(self) -> bool:
        """Remove the files from ``scratch_dir`` now; whether there were any. The storage goes on without a name."""
        if self.scratch_dir is None or self._close is None or not self._close.still_active():
            return False
        self._close.cancel()
        self._files.close(remove=True)
        return True

    _goes_anywhere = True

    def share(self) -> None:
        self._for_others = True  # all that takes is done already

    @property
    def shared(self) -> bool:
        return self._for_others

    # --- rows

    def _begin(
        self, taken: Any, write: Callable[[RecordTable, Tensor, Rows], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        structure, rows = taken.structure, taken.rows
        records, publish = self.lay_out_file(structure)
        try:
            self.reserve(0, max(self._wanted, min(rows.num, self._capacity_for(structure.cells))), records)
            control = self.control.clone()
            written = write(records, control, rows)

            def finish() -> None:
                self.control.copy_(control)
                publish()

            with self._staging as staging:
                if self.structure is None:
                    staging.written(finish)
                    return written
        except BaseException:
            if self.structure is None and self._staging.noted is None:
                with contextlib.suppress(OSError):
                    self._files.records.resize(self._files.table_at)
            raise
        return None

    def lay_out_file(self, structure: Structure) -> tuple[RecordTable, Callable[[], None]]:
        """A table for records of a structure, which nobody knows of until the function that comes with it is called;
        that does not fail.
        """
        files, name = self._files, type(self).__name__
        told, at = files.prepare_to_tell(describe(structure, name), name), rounded(files.records.nbytes)
        records, numbers = self._table(structure, at), numbers_of(structure)
        files.lay(at, 0)

        def publish() -> None:
            self._records, self._numbers = records, numbers
            files.tell(told, at)  # last: before it, the files hold nothing
            self.structure = structure

        return records, publish

    def _table(self, structure: Structure, at: int) -> RecordTable:
        """The table in the file, with a reference for each field that is not a tensor."""
        refs = [LeafSpec(key, torch.int64, torch.Size([REF_WORDS])) for key in structure.object_keys]

        def zeros(capacity: int, nbytes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            memory = self._files.records
            if memory.nbytes < at + capacity * nbytes:
                if self._files.is_told:
                    raise ValueError(f"{type(self).__name__}: {self._files} is damaged: the file of records is short.")
                self._files.grow(at + capacity * nbytes, type(self).__name__)
            # Large pages only where room was made sure of: see `Scratch.reserve`.
            return memory.tensor(at, capacity * nbytes, large_pages=False).view(capacity, nbytes)

        return packed([*structure.leaves, *refs], self._capacity_for(structure.cells), self.device, zeros)

    def reserve(self, begin: int, end: int, records: RecordTable | None = None) -> None:
        """Make sure that there is room on disk for records in these slots. OSError when there is none."""
        for table in (records or self._records).tables:
            nbytes = table.shape[1]
            self._files.reserve(begin * nbytes, end * nbytes, type(self).__name__)

    def _fit(self, batch: Any, call: str) -> Any:
        taken = super()._fit(batch, call)
        rows, keys = taken.rows, taken.structure.object_keys
        if keys:
            refs = self.add_values(rows.objects, keys, call)
            taken = taken._replace(rows=rows._replace(values=[*rows.values, *refs], objects=[]))
        first, beyond = self.cursor, self.cursor + rows.num - self.max_size
        self.reserve(first, min(first + rows.num, self.max_size))
        if beyond > 0:
            self.reserve(0, min(beyond, self.max_size))
        return taken

    def _put(self, slots: Tensor, taken: Any, call: str, placement: Placement | None = None) -> Tensor:
        if slots.shape[0]:
            self._wanted = int(slots.max()) + 1
            self.reserve(int(slots.min()), self._wanted)
        return super()._put(slots, taken, call, placement)

    def _fit_fields(self, taken: Any, num: int, call: str) -> Fields:
        fields = super()._fit_fields(taken, num, call)
        if not fields.places:
            return fields
        keys = [self.structure.object_keys[place] for place in fields.places]  # type: ignore[union-attr]
        refs = self.add_values(fields.objects, keys, call)
        leaves = [*fields.leaves, *map(self._ref_leaf, fields.places)]
        return Fields(leaves, [*fields.values, *refs], [], [])

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        with self.lock:
            structure = self.structure
            if structure is None or not structure.object_keys:
                return super().read(slots, shape)
            records, num = self._records, len(structure.leaves)
            values, generations = ops.read_rows(records.tables, records.layout, records.templates, slots)
            objects = [self._heap.values(refs) for refs in values[num:]]
        return structure.build(values[:num], objects, slots.shape if shape is None else shape), generations

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        place = ~self.find(key, "PromptGroupSampler: group_key")
        words = [value_words(value, key) for value in self.stored_values(slots, [place])[0]]
        return torch.tensor(words, dtype=torch.int64).view(slots.shape[0], DIGEST_WORDS)

    def stored_values(self, slots: Tensor, places: list[int]) -> list[list[Any]]:
        """The values of some non-tensor fields in some slots."""
        leaves, records = list(map(self._ref_leaf, places)), self._records
        templates = [records.templates[leaf] for leaf in leaves]
        refs, _ = ops.read_rows(records.tables, records.part(leaves), templates, slots) if leaves else ([], None)
        return list(map(self._heap.values, refs))

    def _ref_leaf(self, place: int) -> int:
        return len(self.structure.leaves) + place  # type: ignore[union-attr]

    def add_values(self, columns: list[list[Any]], keys: list[tuple], call: str) -> list[Tensor]:
        """References to the values of some fields, which no record names yet."""
        if self._heap.is_due(_VALUE_BYTES * self.max_size):
            self._free_dead()
        with explained(f"{call}: no room for strings and other values in {self._files}"):
            return self._heap.add(columns, lambda i: f"{call}: field {shown(keys[i])!r}")

    def _free_dead(self) -> None:
        """Give back values that no record names any more."""
        if self.structure is None:
            return
        num, table = len(self), self.tables[0]
        live = (words_of(self.tables)[:num] & SLOT_LIVE) != 0
        refs = []
        for place in range(len(self.structure.object_keys)):
            _, at, nbytes = self._records.leaf(self._ref_leaf(place))
            refs.append(table[:num, at : at + nbytes].view(torch.int64)[live])
        self._heap.free_all_but(torch.cat(refs))

    # --- saved states

    def _told(self, call: str) -> dict[str, Any]:
        return memmap_state.told(self)

    def _segment(self, slots: Tensor, call: str) -> dict[str, Any]:
        return memmap_state.segment(self, slots, call)

    def _plan_rows(self, reader: StateReader, counters: Counters, placed: Any) -> PlannedRows:
        return memmap_state.plan(self, reader, counters)

    def _placed(self) -> Any:
        return Saving._placed(self)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, scratch_dir={self.scratch_dir!r})"


class FileSharing(Sharing):
    """A storage that several processes see: counters and table in its files, the journal in memory."""

    def __init__(self, storage: LazyMemmapStorage, memory: SharedMemory, files: Scratch) -> None:
        self._storage, self._memory, self._files = weakref.ref(storage), memory, files
        with torch.inference_mode(False):
            ring = storage.journal.shape[0]
            self.journal = memory.tensor(0, rounded(8 * ring)).view(torch.int64)[:ring]
        self.control, self._words = files.control, files.words

    def _learn(self, storage: LazyTensorStorage) -> None:
        files, name = self._files, type(storage).__name__
        if not files.is_told:
            return
        description, at = files.told(name)
        structure = structure_from(description, storage.device, name)
        if len(structure.cells) + 1 != storage.ndim:
            raise ValueError(
                f"{name}: the records in {files} are of a storage with ndim={len(structure.cells) + 1}, got "
                f"ndim={storage.ndim}."
            )
        records = storage._table(structure, at)  # type: ignore[attr-defined]
        files.lay(at, len(storage) * records.tables[0].shape[1])
        storage._records, storage._numbers, storage.structure = records, numbers_of(structure), structure

    def sent(self, storage: LazyTensorStorage) -> tuple[Any, ...]:
        files = self._files
        held = [self._memory, files.records, files.objects, *([files.lock] if files.lock else [])]
        fds = [reduction.DupFd(memory.fd) for memory in held]
        return _arrived, (type(storage), storage.max_size, storage.ndim, files.directory, fds)


def _arrived(
    kind: type[LazyMemmapStorage], max_size: int, ndim: int, directory: str | None, fds: list[Any]
) -> LazyTensorStorage:
    memory, records, objects, *lock = (SharedMemory(fd.detach()) for fd in fds)

    def made() -> LazyTensorStorage:
        storage = kind._received(max_size, "packed", ndim)
        assert isinstance(storage, LazyMemmapStorage)
        storage._open(Scratch(records, objects, lock[0] if lock else None, directory), memory)
        storage._close = None  # whoever made it looks after the files
        storage._for_others = True
        return storage

    return here(memory.token, made)
