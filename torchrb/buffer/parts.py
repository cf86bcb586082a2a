"""The parts of a buffer: storage, sampler, writer and transforms, put together, exchanged and shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchrb import transforms
from torchrb.collate import stack_records
from torchrb.consumption import Consumption, checked_limit
from torchrb.samplers import RandomSampler, Sampler
from torchrb.storages import ListStorage, Storage
from torchrb.transforms import Compose, Transform
from torchrb.writers import RoundRobinWriter, Writer

if TYPE_CHECKING:
    from typing import Self

_Part = TypeVar("_Part")
_DEFAULT_SIZE = 1000


class Parts:
    """What a buffer is made of. Its arguments are those of `ReplayBuffer`."""

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        transform: Transform | None = None,
        transform_factory: Callable[[], Transform] | None = None,
        batch_size: int | None = None,
        generator: torch.Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
    ) -> None:
        self._transform = transforms.chain(transform, transform_factory, type(self).__name__)
        self._storage = _made("storage", storage, Storage, lambda: ListStorage(_DEFAULT_SIZE))
        self._sampler = _made("sampler", sampler, Sampler, RandomSampler)
        self._writer = _made("writer", writer, Writer, self._default_writer)
        self._writer.register_storage(self._storage)
        self._read_from = (self._storage, collate_fn or _default_collate(self._storage))  # which belong together
        self._batch_size = None if batch_size is None else checked_batch_size(batch_size, type(self).__name__)
        self.generator = generator
        limit = None if consume_after_n_samples is None else checked_limit(consume_after_n_samples, type(self).__name__)
        self._consumption = None if limit is None else Consumption(self._storage, limit)
        self._writer.choose = None if self._consumption is None else self._consumption.place
        if shared:
            self.share()

    _default_writer: Callable[[], Writer] = RoundRobinWriter

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
        previous, self._sampler = self._sampler, _made("sampler", sampler, Sampler, RandomSampler)
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Put another writer in; returns the one that was there."""
        previous, self._writer = self._writer, _made("writer", writer, Writer, self._default_writer)
        self._writer.register_storage(self._storage)
        choose, previous.choose = previous.choose, None
        self._writer.choose = choose
        return previous

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in, with ``collate_fn`` or the default one for it; returns the one that was there."""
        made = _made("storage", storage, Storage, lambda: ListStorage(_DEFAULT_SIZE))
        if self.shared:
            made.share()
        previous, self._storage = self._storage, made
        if self._consumption is not None:
            self._consumption = Consumption(made, self._consumption.limit)
            self._writer.choose = self._consumption.place
        self._writer.register_storage(self._storage, replace=True)
        self._read_from = (self._storage, collate_fn or _default_collate(self._storage))
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

        TypeError for storages that cannot be shared: those of Python objects (`ListStorage`, `LazyStackStorage`), with
        strings among the fields, or on a GPU. ValueError for ``shared=False`` once it is shared.

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
            self._storage.share()
        elif self.shared:
            raise ValueError("share: a storage stays shared once it is. Extend another one with its records, rb[:].")
        return self

    def __getstate__(self) -> dict[str, Any]:
        state, generator = dict(self.__dict__), self.generator
        if generator is not None:  # as bytes: torch lets go of a state that it sends to a process before it is there
            state["generator"] = (str(generator.device), generator.get_state().numpy().tobytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.generator is not None:
            device, numbers = state["generator"]
            self.generator = torch.Generator(device)
            self.generator.set_state(torch.frombuffer(bytearray(numbers), dtype=torch.uint8))

    @property
    def shared(self) -> bool:
        """Whether other processes may use this buffer's storage."""
        return self._storage.shared

    def __repr__(self) -> str:
        parts = f"storage={self._storage}, sampler={self._sampler}, writer={self._writer}"
        if self._transform.pending or self._transform.steps():
            parts += f", transform={self._transform}"
        return f"{type(self).__name__}({parts}, batch_size={self._batch_size})"


def _made(name: str, part: Any, kind: type[_Part], default: Callable[[], _Part]) -> _Part:
    """A part of the buffer from an instance, a callable or nothing."""
    try:
        made = default() if part is None else part() if callable(part) and not isinstance(part, kind) else part
    except TypeError as error:
        raise TypeError(
            f"ReplayBuffer: {name} is called without arguments to make one, and {part!r} did not like it ({error}). "
            "Pass an instance, or a lambda."
        ) from error
    if not isinstance(made, kind):
        raise TypeError(f"ReplayBuffer: {name} must be a {kind.__name__} or make one, got {type(made).__name__}.")
    return made


def checked_batch_size(batch_size: int, call: str) -> int:
    """A batch size, if it is one; ValueError otherwise. ``call`` is what the error names."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"{call}: batch_size must be a positive int, got {batch_size!r}.")
    return batch_size


def _default_collate(storage: Storage) -> Callable[[Any], Any]:
    return stack_records if isinstance(storage, ListStorage) else _as_it_is


def _as_it_is(data: Any) -> Any:
    return data
