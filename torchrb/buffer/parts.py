"""The parts of a buffer: storage, sampler, writer and transforms, put together, exchanged and shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchrb import transforms
from torchrb.buffer.deployment import checked_backend
from torchrb.buffer.making import (
    Given,
    checked_batch_size,
    checked_dim,
    checked_prefetch,
    default_collate,
    made,
    made_sampler,
    made_storage,
)
from torchrb.consumption import Consumption, checked_limit, choice_of
from torchrb.prefetch import Prefetcher
from torchrb.sample_unit import SampleUnit, checked_unit
from torchrb.samplers import Sampler
from torchrb.storages import Storage
from torchrb.transforms import Compose, Transform
from torchrb.writers import RoundRobinWriter, Writer

if TYPE_CHECKING:
    from typing import Self

# Attributes that are there once the parts are made, and those that `shutdown` takes away again. Calls find them missing
# and nothing else has to ask, so a buffer in use pays for neither.
_MADE = ("_storage", "_sampler", "_writer", "_read_from", "_consumption", "_flat")
_GIVEN_UP = ("_writer", "_read_from", "_transform")


class _Missing:
    """What a buffer finds where it has no such attribute of its own: parts that are still to be made, or given up.

    A `__getattr__` would do the same, and would make every other look at an attribute slower, too.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, buffer: Parts | None, owner: type) -> Any:
        if buffer is not None and buffer.__dict__.get("_lock") is not None:
            buffer._make_for_use()
        if buffer is None or self._name not in buffer.__dict__:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")
        return buffer.__dict__[self._name]


class Parts:
    """What a buffer is made of. Its arguments are those of `ReplayBuffer`."""

    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _read_from: tuple[Storage, Callable[[Any], Any]]  # the storage and what merges its records, which belong together
    _transform: Compose
    _consumption: Consumption | None  # counts what was drawn, where records are drawn so often and no more
    _flat: bool  # whether records lie along the first dimension of a batch, and have no cells

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        sample_unit: SampleUnit | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        transform_factory: Callable[[], Transform] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
        compilable: bool = False,
        delayed_init: bool | None = None,
        use_ray_service: bool = False,
        service_backend: str | None = None,
        service_backend_options: Mapping[str, Any] | None = None,
        transport: str = "auto",
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        name = type(self).__name__
        self._service_backend = checked_backend(
            name, use_ray_service, service_backend, service_backend_options, transport, transport_options
        )
        self._lock = threading.RLock()
        self._compilable = bool(compilable)
        if shared:
            self._check_shareable()
        self._transform = transforms.chain(transform, transform_factory, name)
        self._sample_unit = checked_unit(sample_unit, name)
        self._batch_size = None if batch_size is None else checked_batch_size(batch_size, name)
        self._dim_extend = None if dim_extend is None else checked_dim(dim_extend, name)
        depth = checked_prefetch(prefetch, batch_size, name)
        self._early = Prefetcher(depth, bool(pin_memory)) if depth or pin_memory else None
        self.generator = generator
        limit = None if consume_after_n_samples is None else checked_limit(consume_after_n_samples, name)
        self._given: Given | None = Given(storage, sampler, writer, collate_fn, limit, shared)
        self._given.check()
        at_once = delayed_init is False
        if delayed_init is None:
            delayed_init = transform_factory is not None and not shared
        if not delayed_init:
            self._make()
        if at_once:
            self._transform.steps()

    _default_writer: Callable[[], Writer] = RoundRobinWriter

    # --- made when they are needed

    def _make(self) -> None:
        with self._lock:
            given, self._given = self._given, None
            if given is None:
                return
            try:
                parts = given.made(self._default_writer)
                self.__dict__.update(parts, _flat=self._is_flat(parts["_storage"]))
            except BaseException:
                self._given = given
                raise

    def _make_for_use(self) -> None:
        """Make the parts now, once, whichever thread is first."""
        with self._lock:
            if self._shut_down:
                raise RuntimeError(
                    f"{type(self).__name__}: this buffer was shut down. Its storage is as it was: make a new buffer "
                    "with storage=rb.storage."
                )
            if self._making:
                raise RuntimeError(
                    f"{type(self).__name__}: what makes its storage, sampler or writer uses the buffer itself. Make "
                    "them from something else."
                )
            self._making = True
            try:
                self._make()
            except AttributeError as error:  # it would say that the buffer has no such attribute
                raise RuntimeError(
                    f"{type(self).__name__}: a part of the buffer could not be made ({error}). See the error above."
                ) from error
            finally:
                self._making = False

    _making = _shut_down = False

    # --- parts

    @property
    def storage(self) -> Storage:
        """Where the records are."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """What chooses the records of a sample."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """What decides where new records go."""
        return self._writer

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Put another sampler in; returns the one that was there."""
        new = made_sampler(sampler)
        with self._lock:
            previous, self._sampler = self._sampler, new
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Put another writer in; returns the one that was there."""
        new = made("writer", writer, Writer, self._default_writer)
        with self._lock:
            previous = self._writer
            new.register_storage(self._storage, choose=choice_of(self._consumption))
            if new is not previous:
                previous.choose = None
            self._writer = new
        return previous

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in, with ``collate_fn`` or the default one for it; returns the one that was there.

        Threads that use the buffer meanwhile find it before or after that, not in between.
        """
        new = made_storage(storage)
        if self.shared:
            new.share()
        with new.lock, self._lock:  # whoever comes to the new storage first waits until all of the buffer has
            previous, read_from, counts = self._storage, self._read_from, self._consumption
            writer, merge = self._writer, collate_fn or default_collate(new)
            anew = None if counts is None else Consumption(new, counts.limit)
            flat, was_flat = self._is_flat(new), self._flat
            try:
                self.__dict__.update(_storage=new, _read_from=(new, merge), _consumption=anew, _flat=flat)
                writer.register_storage(new, replace=True, choose=choice_of(anew))
            except BaseException:
                self.__dict__.update(_storage=previous, _read_from=read_from, _consumption=counts, _flat=was_flat)
                writer.register_storage(previous, replace=True, choose=choice_of(counts))
                raise
        return previous

    # --- state

    def __len__(self) -> int:
        if self._consumption is None:
            return len(self._storage)
        with self._storage.lock:
            return self._consumption.num_left

    @property
    def _drawn_from(self) -> Storage:
        """The storage as samplers are to see it."""
        return self._storage if self._consumption is None else self._consumption.drawn_from

    @property
    def write_count(self) -> int:
        """Records written through `add` and `extend` so far; 0 with an `ImmutableDatasetWriter`."""
        return self._writer.write_count

    @property
    def batch_size(self) -> int | None:
        """Records in a sample, unless `sample` is told otherwise."""
        return self._batch_size

    @property
    def dim_extend(self) -> int:
        """The dimension of a batch that its records lie along: that of the constructor, or the storage's last."""
        return self._storage.ndim - 1 if self._dim_extend is None else self._dim_extend

    def _is_flat(self, storage: Storage) -> bool:
        return not self._dim_extend and storage.ndim == 1

    # --- transforms

    @property
    def transform(self) -> Compose:
        """The transforms, in the order in which they are applied to what is read."""
        self._transform.steps()
        return self._transform

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Put a transform behind those that are there; returns the buffer.

        ``invert``: its call is applied to what is written, and its ``inv``, if it has one, to what is read.

        On the way in it receives the very object that was handed to `add`, `extend`, ``rb[i] =`` or `write_all`, before
        that is validated. Other writes, to some fields or through a part of the buffer, take values as they are stored.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(4)).append_transform(lambda x: 10 * x)
        >>> _ = rb.append_transform(lambda x: x - 1, invert=True).extend(torch.arange(3))
        >>> rb.storage[:], rb[:]
        (tensor([-1,  0,  1]), tensor([-10,   0,  10]))
        """
        self._transform.append(transforms.directed(transform, invert, "append_transform"))
        return self

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Put a transform before the one at ``index``, otherwise as `append_transform` does; returns the buffer."""
        self._transform.insert(index, transforms.directed(transform, invert, "insert_transform"))
        return self

    # --- other processes

    def share(self, shared: bool = True) -> Self:
        """Let several processes use this buffer; returns it. ``ReplayBuffer(shared=True)`` does so from the start.

        The storage moves into shared memory (call this before other threads use the buffer). From then on it goes to
        other processes as an argument of a `torch.multiprocessing` process, or through one of its queues and pipes.
        Nothing is copied: what one process writes, the next draw of every other one sees; handles name the same record
        everywhere; the first batch may come from any of them. Calls of several processes take turns.

        Each process has a sampler of its own, and a generator that starts where this one stood: seed it there, or both
        draw the same. When a process is killed in the middle of a write, records that it had not finished are lost, and
        the next call of another process says so (RuntimeWarning) and goes on without them.

        A forked process inherits no threads, so if its parent had used torch on several it hangs in large operations,
        here as everywhere in torch: spawn it, or call ``torch.set_num_threads(1)`` in it first.

        With prefetching each process draws ahead for itself.

        TypeError for storages that cannot be shared: those of Python objects (`ListStorage`, `LazyStackStorage`), with
        strings among the fields (a `LazyMemmapStorage` shares them), or on a GPU. ValueError with ``compilable=True``,
        and for ``shared=False`` once it is shared.

        >>> import torch
        >>> import torch.multiprocessing as mp
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10), shared=True, batch_size=2)
        >>> actor = mp.get_context("spawn").Process(target=rb.extend, args=(torch.arange(3),))
        >>> actor.start()
        >>> actor.join()
        >>> rb[:]
        tensor([0, 1, 2])
        """
        if shared:
            self._check_shareable()
            self._storage.share()
        elif self.shared:
            raise ValueError("share: a storage stays shared once it is. Extend another one with its records, rb[:].")
        return self

    def _check_shareable(self) -> None:
        if self._compilable:
            raise ValueError(
                f"share: this {type(self).__name__} was constructed with compilable=True, and such a buffer belongs to "
                "one process. Construct it with compilable=False."
            )

    def __getstate__(self) -> dict[str, Any]:
        state, generator = dict(self.__dict__), self.generator
        del state["_lock"]
        if self._early is not None:
            state["_early"] = self._early.anew()
        if generator is not None:  # as bytes: torch lets go of a state that it sends to a process before it is there
            state["generator"] = (str(generator.device), generator.get_state().numpy().tobytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        if self.generator is not None:
            device, numbers = state["generator"]
            self.generator = torch.Generator(device)
            self.generator.set_state(torch.frombuffer(bytearray(numbers), dtype=torch.uint8))

    @property
    def shared(self) -> bool:
        """Whether other processes may use this buffer's storage."""
        given = self._given
        return self._storage.shared if given is None else given.shared

    def __repr__(self) -> str:
        if self._shut_down:
            return f"{type(self).__name__}(shut down)"
        given = self._given
        if given is None:
            parts = f"storage={self._storage}, sampler={self._sampler}, writer={self._writer}"
        else:
            told = given._asdict().items()
            parts = ", ".join(f"{name}={part}" for name, part in told if part not in (None, False)) or "to be made"
        if self._transform.pending or self._transform.steps():
            parts += f", transform={self._transform}"
        return f"{type(self).__name__}({parts}, batch_size={self._batch_size})"


for _name in {*_MADE, *_GIVEN_UP}:
    setattr(Parts, _name, _Missing(_name))

Parts.__init__.__qualname__ = "ReplayBuffer.__init__"  # as errors about arguments name it
