"""What a storage is to the rooms around it."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import is_tensor_collection
from torch import Tensor

from torchrb import ops
from torchrb.generations import generations_at
from torchrb.journal import new_journal
from torchrb.ops.schemas import (
    CONTROL_CLEARS,
    CONTROL_CURSOR,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_SIZE,
    CONTROL_WRITES,
)
from torchrb.storages.indexing import Slots, is_single, resolve, settled
from torchrb.storages.memory import zeros
from torchrb.storages.saving import Saving
from torchrb.storages.staging import Staging
from torchrb.storages.streams import DeviceLock


class Column(NamedTuple):
    """One field of all rows as an op takes it: tables whose first has the headers, a layout entry, a template."""

    tables: list[Tensor]
    leaf: list[int]
    template: Tensor


class Placement(NamedTuple):
    """Where the rows of a batch go: the slot of each, int64 ``[n]``, -1 for one that is left out; of several with one
    slot the last stays. And what cursor and write count are afterwards.
    """

    slots: Tensor
    cursor: int
    write_count: int

    def advance(self, control: Tensor) -> None:
        """Move cursor and write count. May be called twice."""
        control[CONTROL_CURSOR], control[CONTROL_WRITES] = self.cursor, self.write_count


# Told how many rows there are, and what gives their values of a field.
Choose = Callable[[int, Callable[[Any], Any]], Placement]


class Storage(Saving):
    """Rows by slot, with the headers, counters and journal that every buffer on the storage shares.

    A method that writes either does all of it or raises and has changed nothing; each holds `lock`, and so does a
    caller that needs several calls to see one state. What is written is copied; what is returned is the caller's own.
    An exception that comes from outside, as a signal handler's does, finds a write whole or not begun, never half.

    Data may bring code of its own (`__deepcopy__`, `__len__`), and that code may write here. So a write first makes the
    data its own, then asks what is stored, and then writes without looking at the data again.

    ``max_size``: capacity in records. ``device``: where rows live. ``control``, ``journal``: see `ops.schemas`.
    ``seed``: where a draw's seed lies while the draw holds the lock. ``known_nonempty``: on a GPU, that something is
    stored, as far as the host knows without asking the device.

    ``ndim``, ``cells``, ``num_cells``: dimensions of a batch in records, and the cells of a record, as a shape and as a
    number; 1, ``[]`` and 1 except in storages of tensors. What this class calls records and slots are cells and their
    rows where a record has several; see `cells`.
    """

    ndim = 1
    num_cells = 1
    cells = torch.Size()

    def __init__(self, max_size: int, device: torch.device | str | int | None = "cpu") -> None:
        super().__init__()
        name = type(self).__name__
        if isinstance(max_size, bool) or not isinstance(max_size, int) or not 0 < max_size < 2**32:
            raise ValueError(f"{name}: max_size must be an int from 1 to 2**32 - 1, got {max_size!r}.")
        self.max_size = max_size
        where = torch.empty(0, device="cpu" if device is None else device).device
        if where.type == "meta":
            raise ValueError(f"{name}: device must be one that keeps data, got 'meta'. Use 'cpu'.")
        self.lock: Any = DeviceLock(where) if where.type == "cuda" else threading.RLock()
        self.known_nonempty = False
        this = weakref.proxy(self)  # no cycle: a storage's memory goes as soon as nobody has it
        self._staging = Staging(lambda: this.journal_position)
        with self.lock:
            self._settle(where)

    def _settle(self, device: torch.device) -> None:
        """Put counters, journal and seed on the device. The caller holds the lock."""
        control = zeros(CONTROL_SIZE, dtype=torch.int64, device=device)
        journal, seed = new_journal(self.max_size, device), zeros(1, dtype=torch.int64, device=device)
        self.device, self.control, self.journal, self.seed = device, control, journal, seed
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self.lock.owns(control, journal, seed)
        # On a CPU the counters are read through this view: a fraction of the cost of Tensor.item.
        self._counters = control.numpy().data if device.type == "cpu" else control

    # --- counters

    def __len__(self) -> int:
        return int(self._counters[CONTROL_LENGTH])

    @property
    def extent(self) -> int | Tensor:
        """The number of records for whoever can do without an int: on a GPU a tensor, which nobody waits for."""
        return self.control[CONTROL_LENGTH] if self._on_gpu else int(self._counters[CONTROL_LENGTH])

    @property
    def cursor(self) -> int:
        """The slot that the next append writes first."""
        return int(self._counters[CONTROL_CURSOR])

    @property
    def write_count(self) -> int:
        """Records written through add and extend so far."""
        return int(self._counters[CONTROL_WRITES])

    @property
    def journal_position(self) -> int:
        """How many slots the journal was ever told of."""
        return int(self._counters[CONTROL_JOURNAL])

    @property
    def num_clears(self) -> int:
        """How often what was stored has been cleared: after that, slots are given out anew."""
        return int(self._counters[CONTROL_CLEARS])

    def moment(self) -> tuple[int, ...]:
        """Equal at two times only if nothing was written in between; on a GPU the host waits for it."""
        return self.journal_position, self.num_clears

    @property
    def num_drawable(self) -> int:
        """How many records a sampler may draw: here, all."""
        return len(self)

    def drawable(self) -> Tensor | None:
        """Their slots, int64; None where they are those below the length."""
        return None

    # --- rows

    @property
    @abstractmethod
    def tables(self) -> list[Tensor]:
        """The tables; the first one has the headers. Empty before anything was stored."""

    @abstractmethod
    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        """Write a batch (or ``one`` record) at the cursor. Returns slots and generations, int64 ``[n]``."""

    def place(self, data: Any, choose: Choose, *, one: bool = False) -> tuple[Tensor, Tensor]:
        """Write those rows of a batch (or ``one`` record) that ``choose`` finds a slot for. Returns the slot and the
        generation of each row, int64 ``[n]``; -1 for one that was left out.

        ``choose`` is told how many rows there are, and may ask for their values of a field by its key, as `values_at`
        gives them. It is called once, when all of the data's own code has run, and writes nothing.
        """
        call = "add" if one else "extend"
        with self.lock:
            taken = self._take(data, one, call)
            num = self._num_rows(taken)
            if not num:
                return self._no_slots(), self._no_slots()
            self._make_room(num)
            placement = choose(num, lambda key: self._values_of(taken, key, call))
            generations = torch.full_like(placement.slots, -1)
            kept = placement.slots >= 0
            if bool(kept.any()):
                rows = torch.nonzero(kept).view(-1)
                chosen = taken if rows.shape[0] == num else self._rows_of(taken, rows)
                generations[rows] = self._put(placement.slots[rows], chosen, call, placement)
            return placement.slots, generations

    def write(self, slots: Tensor, data: Any, *, one: bool = False, call: str = "write") -> Tensor:
        """Overwrite whole records at valid slots (int64 ``[n]``). Returns their generations, int64 ``[n]``. ``call`` is
        what errors name.
        """
        with self.lock:
            return self._put(slots, self._take(data, one, call), call)

    def write_fields(self, slots: Tensor, fields: Mapping[Any, Any], call: str = "write_fields") -> None:
        """Overwrite some fields of stored records, which stay the same records. KeyError for an unknown field."""
        with self.lock:
            self._put_fields(slots, self._take_fields(fields, call), call)

    @abstractmethod
    def _take(self, data: Any, one: bool, call: str) -> Any:
        """The storage's own copy of a batch (or of ``one`` record). All of the data's own code runs here."""

    @abstractmethod
    def _put(self, slots: Tensor, taken: Any, call: str, placement: Placement | None = None) -> Tensor:
        """Write what `_take` gave to valid slots, or raise. Returns generations. With a ``placement`` what it counts
        moves along.
        """

    @abstractmethod
    def _num_rows(self, taken: Any) -> int:
        """How many records `_take` gave."""

    @abstractmethod
    def _rows_of(self, taken: Any, rows: Tensor) -> Any:
        """Some of the records that `_take` gave."""

    @abstractmethod
    def _values_of(self, taken: Any, key: Any, call: str) -> Any:
        """A field of the records that `_take` gave, as `values_at` gives it."""

    def _make_room(self, num: int) -> None:
        """Told before rows are placed; a storage without bounds may have to grow."""
        return None

    @abstractmethod
    def _take_fields(self, fields: Mapping[Any, Any], call: str) -> Any:
        """The storage's own copy of some fields. All of the data's own code runs here."""

    @abstractmethod
    def _put_fields(self, slots: Tensor, taken: Any, call: str) -> None:
        """Write what `_take_fields` gave to valid slots, or raise."""

    @abstractmethod
    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        """Records at valid slots, in an index shape (default: that of ``slots``), and their generations."""

    @abstractmethod
    def values_at(self, key: Any, slots: Tensor, call: str) -> Any:
        """One field of the records at valid slots: a tensor ``[n, ...]``, or a list of values where records need not be
        alike. KeyError when there is none of that name, TypeError for one that is no tensor in a storage of tensors.
        """

    def _no_slots(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64, device=self.device)

    def clear(self, reset_writes: bool = True) -> None:
        """Retire every record: their handles are stale from now on. Cursor and length are 0."""
        with self.lock:
            self.known_nonempty = False
            if self.tables:
                ops.clear_rows_(self.tables, self.control, self.journal, reset_writes)
            elif reset_writes:
                self.control[CONTROL_WRITES] = 0

    def generations(self, slots: Tensor) -> Tensor:
        """Generations of slots on the storage's device, any shape; -1 for one never written or out of range."""
        return generations_at(self.tables, slots) if self.tables else torch.full_like(slots, -1)

    @property
    def asked_size(self) -> int:
        """The capacity that was asked for: `max_size`, before it was rounded up to whole records of cells."""
        return self.max_size

    def rows_of(self, index: Any, call: str) -> Any:
        """The inverse of `coordinates`, of an index as users have it."""
        return index

    def coordinates(self, slots: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Slots as their user gets them: a tuple, when there are several dimensions."""
        return slots

    def first_rows(self, slots: Tensor) -> Tensor:
        """Slots as this class knows them, those of their first cells; -1 for one that there is not."""
        return slots

    def locate(self, index: Any, call: str, dim: int = 0) -> Slots:
        """The slots of an index as users write it, as of now; see `indexing.resolve`. ``dim``: the dimension that the
        index has slots in, when there are several.
        """
        index = settled(index, self.device, call)
        return resolve(index, self.extent, self.device, call)

    def get(self, index: Any) -> Any:
        """Records at an index as users write it."""
        with self.lock:
            slots = self.locate(index, f"{type(self).__name__}[...]")
            return self.read(slots.flat, slots.shape)[0]

    def set(self, index: Any, data: Any, call: str | None = None, dim: int = 0) -> None:
        """Overwrite whole records at an index as users write it; a single record takes data without a batch. ``dim`` as
        in `locate`.
        """
        call = call or f"{type(self).__name__}[...] ="
        with self.lock:
            index = settled(index, self.device, call)
            taken = self._take(data, is_single(index), call)
            self._put(resolve(index, self.extent, self.device, call).flat, taken, call)

    def set_fields(self, index: Any, fields: Mapping[Any, Any], call: str) -> None:
        """Overwrite some fields at an index as users write it; a single record takes values without a batch."""
        with self.lock:
            index = settled(index, self.device, call)
            if is_single(index):
                fields = {key: _one_row(value) for key, value in fields.items()}
            taken = self._take_fields(fields, call)
            self._put_fields(resolve(index, self.extent, self.device, call).flat, taken, call)

    __getitem__ = get
    __setitem__ = set

    # --- columns, for samplers

    def key_column(self, key: Any) -> Column | None:
        """A field to group by, of integers or floats; None when its values are not numbers of a fixed shape. KeyError
        when there is none of that name.
        """
        raise TypeError(
            f"{type(self).__name__} cannot group its records by a key. Store tensordicts in another storage."
        )

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        """For a field that is no column: words that are equal where the values are, int64 ``[n, DIGEST_WORDS]``."""
        raise TypeError(
            f"{type(self).__name__} cannot group its records by a key. Store tensordicts in another storage."
        )

    def reward_column(self, key: Any) -> Column:
        """A numeric field of all rows. KeyError when there is none of that name."""
        raise TypeError(f"{type(self).__name__} has no reward column. Store tensordicts.")

    @property
    def field_paths(self) -> list[tuple]:
        """The fields of a record, each as the tuple of its parts; none while nothing is stored, or where records are
        not made of fields.
        """
        return []

    def read_fields(self, paths: list[tuple], slots: Tensor) -> list[Any]:
        """Some fields of the records at valid slots, int64 ``[n]``, and nothing else of them: of each a tensor
        ``[n, ...]``, or a list of ``n`` values where they are not numbers of one shape.
        """
        raise TypeError(f"{type(self).__name__} keeps whole records and has no fields to read. Store tensordicts.")

    # --- other processes

    def share(self) -> None:
        """Let other processes use this storage: see `ReplayBuffer.share`. TypeError for one that cannot."""
        raise TypeError(
            f"share: the records of a {type(self).__name__} are Python objects, which live in one process. "
            "Use a LazyTensorStorage, or a TensorStorage, on the CPU."
        )

    @property
    def shared(self) -> bool:
        """Whether other processes may use this storage."""
        return False

    stack_dim = 0  # where the dimension of the records is in what is read
    _goes_anywhere = False  # whether it goes to other processes without being shared first

    def __getstate__(self) -> Any:
        if self.shared or self._goes_anywhere:
            remedy = (
                "This one is shared: hand it to a torch.multiprocessing.Process, or send it through one of its queues."
            )
        else:
            remedy = (
                "To use it in several processes share it first: ReplayBuffer.share(), with a LazyTensorStorage or "
                "TensorStorage of tensors on the CPU."
            )
        raise TypeError(
            f"{type(self).__name__}: a storage is neither copied nor pickled, as handles would name records in both. "
            f"Make a new one and extend it with the records of this one, storage[:]. {remedy}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(len={len(self)}, max_size={self.max_size}, device={str(self.device)!r})"


def _one_row(value: Any) -> Any:
    """A record's value of a field, as a batch of one."""
    if isinstance(value, Tensor) or is_tensor_collection(value):
        return value.unsqueeze(0)
    return np.asarray(value)[None] if isinstance(value, np.ndarray | np.generic) else [value]
