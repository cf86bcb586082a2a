"""The buffer's state: a snapshot in memory, a dump on disk, and the way back.

Everything is read, and everything is validated, before anything changes; then each part puts its own in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchrb import persistence
from torchrb.buffer.parts import Parts
from torchrb.persistence import Dump, StateReader
from torchrb.storages.saving import PART, Loaded

_BUFFER = "buffer"  # the kind of dump, and the part of it that is not the storage's
_FORMAT = 1


class Saving(Parts):
    """Records, with all that draws and writes go on from, can be kept and come back."""

    # --- in memory

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of the buffer: records with their generations, counters, the sampler's pass or priorities, the
        generator, if the buffer has one of its own.

        Nested dicts and lists of tensors, numbers, bools, strings and None, which share no memory with the buffer; so
        it goes through `torch.save`, and through ``torch.load(weights_only=True)``. Transforms, hooks and
        ``batch_size`` are not part of it. TypeError for records that are not made of tensors, tensordicts, numbers,
        strings, None, and dicts, lists and tuples of these.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(3))
        >>> _ = rb.extend(torch.tensor([1, 2, 3]))
        >>> state = rb.state_dict()
        >>> rb[:] = torch.tensor([4, 5, 6])
        >>> rb.load_state_dict(state)
        >>> rb[:]
        tensor([1, 2, 3])
        """
        storage = self._storage
        with storage.lock:
            return {_BUFFER: persistence.copied(self._beside()), PART: storage.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` told, in this process or in another one, and go on from there bit for bit: the same
        draws, the same generations for the same records, so that handles from before are good again. Whatever is
        written later gets generations that were never given out, not even by a process that went on from the same
        snapshot and was lost.

        The buffer has the same kinds of storage, sampler and writer, and a generator if that one had; it may have
        records or none, be on another device, and have another capacity, if there is room: records keep their slots,
        and where the capacity is another one, what is written next goes behind the last of them. ValueError or KeyError
        for what does not fit, or is no such state; nothing has changed then. Other buffers on the storage see the
        records change, and so do other processes.
        """
        reader = StateReader(state, "load_state_dict")
        self._load("load_state_dict", reader.any(PART), reader.any(_BUFFER), None)

    # --- on disk

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the buffer, as `state_dict` has it, to a directory, which is made if need be.

        Whenever the process is killed, or the disk is full, the directory holds the whole dump of before or the whole
        new one. It takes as much room as the records that are stored. Dumped there again, the buffer writes what was
        written since, and leaves the rest in the files it is in. Other files in the directory are left alone. Other
        calls on the storage wait until the dump is done.

        TypeError for records that cannot be saved, see `state_dict`; OSError for a place that cannot be written to. No
        file has changed then.

        >>> import tempfile
        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10))
        >>> _ = rb.extend(torch.arange(3))
        >>> with tempfile.TemporaryDirectory() as there:
        ...     rb.dumps(there)
        ...     other = ReplayBuffer(storage=LazyTensorStorage(10))
        ...     other.loads(there)
        >>> other[:], other.write_count
        (tensor([0, 1, 2]), 3)
        """
        storage = self._storage
        with storage.lock:
            noted: list[Callable[[Dump], None]] = []

            def parts(before: Dump | None) -> dict[str, list[Any]]:
                trees, note = storage.trees(before)
                noted.append(note)
                return {PART: trees, _BUFFER: [self._beside()]}

            dump = persistence.saved(path, _BUFFER, parts)
            noted[0](dump)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what `dumps` saved; see `load_state_dict` for what fits and what it means.

        The files are checked before anything changes: one that is missing, cut off or has a bit changed is a
        FileNotFoundError or a ValueError that names it. Nothing in them is executed, whoever wrote them; classes of
        records are only named in them and must have been imported.
        """
        storage = self._storage
        with persistence.opened(path) as dump:
            if dump.kind != _BUFFER or len(dump.parts.get(_BUFFER, ())) != 1:
                raise ValueError(
                    f"loads: the dump in {dump.folder} is that of a {dump.kind}, not of a buffer. Load it there: "
                    f"rb.{dump.kind}.loads(path)."
                )
            loaded, beside = storage.read_dump(dump), dump.read(dump.parts[_BUFFER][0])
        self._load("loads", loaded.state, beside, loaded)

    def dump(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def load(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `loads`."""
        self.loads(*args, **kwargs)

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have ``hook`` change the storage's data on its way to a directory: it is given all records, as ``storage[:]``
        gives them (None where none was ever stored), and returns what is saved instead: tensors, tensordicts, numbers,
        strings, None, and dicts, lists and tuples of these. Hooks are called in the order in which they were
        registered, with the storage locked, and a dump is written whole. They belong to the storage, are not saved,
        and have no part in `state_dict`. Those of torchrl do for tensordicts that
        follow its conventions.
        """
        self._storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have ``hook`` change the data on its way from a directory: it is given what the save hooks returned, or all
        records where there were none, on the CPU, and returns the records to be stored. As many as were saved are the
        same records, with their generations; others are new ones. Called in order, before anything changes.
        """
        self._storage.register_load_hook(hook)

    # --- what is beside the storage

    def _beside(self) -> dict[str, Any]:
        """The state of everything but the storage, which is locked."""
        generator, consumption = self.generator, self._consumption
        drawn_from: Any = self._storage if consumption is None else consumption.drawn_from
        return {
            "format": _FORMAT,
            "sampler": {"kind": type(self._sampler).__name__, "state": self._sampler.state_dict(drawn_from)},
            "writer": {"kind": type(self._writer).__name__, "state": self._writer.state_dict()},
            "generator": None
            if generator is None
            else {"device": generator.device.type, "state": generator.get_state().clone()},
            "consumption": None if consumption is None else consumption.state_dict(),
        }

    def _load(self, call: str, storage_state: Any, beside: Any, loaded: Loaded | None) -> None:
        storage = self._storage
        with storage.lock:
            puts = [storage.plan_load(storage_state, call, loaded)]
            length = StateReader(storage_state, call).number("length", 0)
            puts += self._plan_beside(StateReader(beside, call), length)
            _call_all(puts)
        if self._early is not None:
            self._early.drop()

    def _plan_beside(self, reader: StateReader, length: int) -> list[Callable[[], None]]:
        """Validate the state of everything but the storage, and return what puts it in place."""
        if reader.number("format", 1) > _FORMAT:
            raise ValueError(
                f"{reader.call}: the saved state has format {reader.any('format')}, and this torchrb knows formats up "
                f"to {_FORMAT}. Use the torchrb that saved it, or a newer one."
            )
        for name, part in (("sampler", self._sampler), ("writer", self._writer)):
            kind = reader.within(name).text("kind")
            if kind != type(part).__name__:
                raise ValueError(
                    f"{reader.call}: the saved state is of a buffer with a {kind}, and the {name} of this one is a "
                    f"{type(part).__name__}. Load it into a buffer with a {kind}, and rb.set_{name}(...) afterwards; "
                    f"or {_records_alone(reader)}."
                )
        consumption = self._consumption
        if (consumption is None) != (reader.any("consumption") is None):
            had = "without" if consumption is not None else "with"
            raise ValueError(
                f"{reader.call}: the saved state is of a buffer {had} consume_after_n_samples, and this one is not. "
                f"Make one that is, or {_records_alone(reader)}."
            )
        drawn_from: Any = self._storage if consumption is None else consumption.drawn_from
        puts = [] if consumption is None else [consumption.plan_load(reader.any("consumption"), length)]
        return [
            *puts,
            self._sampler.plan_load(drawn_from, reader.within("sampler").any("state"), length),
            self._writer.plan_load(reader.within("writer").any("state"), length),
            *self._plan_generator(reader),
        ]

    def _plan_generator(self, reader: StateReader) -> list[Callable[[], None]]:
        if reader.any("generator") is None:
            return []
        saved, generator = reader.within("generator"), self.generator
        device = saved.text("device")
        if generator is None or generator.device.type != device:
            got = "none of its own" if generator is None else f"one on {str(generator.device)!r}"
            raise ValueError(
                f"{reader.call}: the saved state is of a buffer with a generator on {device!r}; this one has {got}. "
                f"It could not go on drawing as that one did. Construct it with generator=torch.Generator({device!r}), "
                f"or {_records_alone(reader)}."
            )
        numbers = saved.tensor("state", torch.uint8, None).clone()
        try:
            torch.Generator(generator.device).set_state(numbers)
        except (RuntimeError, TypeError) as error:
            raise saved.refuse("state", f"the state of a generator on {device!r} ({error})") from error

        def put() -> None:
            generator.set_state(numbers)

        return [put]


def _records_alone(reader: StateReader) -> str:
    what = "path" if reader.call == "loads" else f"state[{PART!r}]"
    return f"load the records alone: rb.storage.{reader.call}({what})"


def _call_all(calls: list[Callable[[], None]]) -> None:
    """Call each of them, none of which fails. If an exception comes from outside meanwhile, as a signal handler's does,
    all are called again, which changes nothing but what was cut off, and it is raised then.
    """
    try:
        for call in calls:
            call()
    except BaseException:
        for call in calls:
            call()
        raise
