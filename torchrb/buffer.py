"""The buffer: storage, writer and sampler wired together, in order, under the storage's lock. Nothing else.

extend: data -> writer -> storage.append -> one op. sample: sampler -> slots -> storage.read -> one op -> batch.
Transforms stand before the writer and behind the read, and run without the lock: they are user's code, and may be slow.
update_if_present: `updates.plan` validates -> `updates.apply` -> one op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.utils._pytree as pytree
from tensordict import TensorDictBase
from torch import Tensor

from torchrb import transforms, updates
from torchrb.collate import stack_records
from torchrb.samplers import RandomSampler, Sampler
from torchrb.storages import ListStorage, Storage
from torchrb.transforms import Compose, Transform
from torchrb.writers import RoundRobinWriter, TensorDictRoundRobinWriter, Writer

_Part = TypeVar("_Part")
_DEFAULT_SIZE = 1000


class ReplayBuffer:
    """A replay buffer put together from a storage, a sampler and a writer.

    Keyword Args:
        storage: a `Storage`, or a callable that makes one. Default: ``ListStorage(1000)``.
        sampler: a `Sampler`, or a callable that makes one. Default: `RandomSampler`.
        writer: a `Writer`, or a callable that makes one. Default: `RoundRobinWriter`.
        collate_fn: what is done with the records that were read, before they are returned. Default: lists of records
            (`ListStorage`) are stacked where that is possible, other batches are returned as they are.
        transform: a callable on what is read; its method ``inv``, if any, on what is written. `Compose` chains several.
        transform_factory: instead of a transform, what makes it; called once, when a transform is first needed.
        batch_size: records in a sample; can be given to `sample` instead.
        generator: a `torch.Generator` to take seeds from; default: torch's global one.
        shared: several processes will use this buffer; see `share`.

    The same seed and the same history draw the same records, whatever backend serves them. Writing copies; what is
    returned belongs to the caller. Calls from several threads are safe.

    >>> import torch
    >>> from torchrb import ListStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=ListStorage(1000), batch_size=5)
    >>> rb.extend(range(10))
    tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> rb.sample().shape, rb.sample(3).shape
    (torch.Size([5]), torch.Size([3]))
    >>> for i, batch in enumerate(rb):
    ...     if i == 3:
    ...         break
    """

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
        shared: bool = False,
    ) -> None:
        self._transform = transforms.chain(transform, transform_factory, type(self).__name__)
        self._storage = _made("storage", storage, Storage, lambda: ListStorage(_DEFAULT_SIZE))
        self._sampler = _made("sampler", sampler, Sampler, RandomSampler)
        self._writer = _made("writer", writer, Writer, self._default_writer)
        self._writer.register_storage(self._storage)
        self._read_from = (self._storage, collate_fn or _default_collate(self._storage))  # which belong together
        self._batch_size = None if batch_size is None else _checked_batch_size(batch_size, type(self).__name__)
        self.generator = generator
        if shared:
            self.share()

    _default_writer: Callable[[], Writer] = RoundRobinWriter

    # --- writing

    def add(self, data: Any) -> int:
        """Write one record, after the inverse transforms; returns its slot."""
        return self._writer.add(self._transform.inv(data))

    def extend(
        self, data: Any, *, update_priority: bool | None = None, return_generations: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Write a batch of records, after the inverse transforms, over the oldest ones when the storage is full.

        ``data``: a tensordict, tensor, tuple or dict of tensors with a first dimension, or a list of records.
        Returns the slots, int64 ``[n]``; with ``return_generations`` also the generation that each row got, so that
        (slot, generation) names that very row even where a batch wraps over itself. ``update_priority`` has no effect
        with samplers that keep no priorities. KeyError or ValueError, with nothing written, for fields, shapes or
        dtypes that are not those of the storage.
        """
        slots, generations = self._writer.append(self._transform.inv(data))
        return (slots, generations) if return_generations else slots

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove every record and go back to slot 0; handles to removed records stay stale for ever."""
        self._writer.check_writable("empty")
        self._storage.clear(empty_write_count)

    def update_if_present(
        self,
        *,
        index: Tensor,
        generation: Tensor,
        patch: Mapping[Any, Any],
        version_key: Any = None,
        version: int | Tensor | None = None,
        require_newer: bool = False,
    ) -> updates.ConditionalUpdateResult:
        """Overwrite some fields of records that are still there; leave every other record alone.

        A handle is a slot (``index``, from `extend` or a sample's ``"index"``) with its generation (from
        ``extend(..., return_generations=True)`` or ``"index_generation"``), both integer tensors of one shape. A row
        is written only while its slot still holds that record, all fields of the patch at once; the handle stays good.

        ``patch``: field to values, ``[n, ...]`` of the stored dtype. ``version_key``: a field of one number a record;
        with ``version`` (a scalar or one a row) a record is written only if ``version > stored`` (``require_newer``)
        or ``version >= stored``, and the version is stored with the patch. A NaN version is rejected. When rows
        address one record, the highest version wins and the last of equals; without versions, the last row.

        RuntimeError when the storage cannot do it or the writer does not track generations; KeyError for a field that
        is not stored; ValueError for a shape, a dtype, a version without key or a key without version, a version key
        in the patch, of several numbers, or with dots in it; TypeError for a mask as index. Nothing is written then.
        """
        self._writer.check_writable("update_if_present")
        if not self._writer.tracks_generations:
            name = type(self._writer).__name__
            raise RuntimeError(
                f"update_if_present: {name} does not track generations. Construct it with track_generations=True."
            )
        storage = self._storage
        with storage.lock:
            return updates.apply(updates.plan(storage, index, generation, patch, version_key, version, require_newer))

    def set_(self, key: Any, value: Any) -> ReplayBuffer:
        """Overwrite one field of all records: ``value`` is ``[len(self), ...]``. Records keep their handles."""
        return self._set_everywhere({key: value}, "set_")

    def set_at_(self, key: Any, value: Any, index: Any) -> ReplayBuffer:
        """Overwrite one field of some records: ``value`` is ``[n, ...]``, or one record's value for an int index."""
        self._writer.check_writable("set_at_")
        self._storage.set_fields(index, {key: value}, "set_at_")
        return self

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Sequence[Any] | None = None
    ) -> ReplayBuffer:
        """Overwrite fields of all records: each value is ``[len(self), ...]``. Records keep their handles.

        ``keys_to_update``: only these fields; a key of a nested tensordict names all that is in it. Values are copied
        whether or not ``clone`` is asked for.
        """
        fields = updates.fields_of(self._writer.prepared(input_dict_or_td), "update_")
        if keys_to_update is not None:
            fields = updates.only(fields, keys_to_update, "update_")
        return self._set_everywhere(fields, "update_")

    def _set_everywhere(self, fields: Mapping[Any, Any], call: str) -> ReplayBuffer:
        self._writer.check_writable(call)
        self._storage.set_fields(slice(None), fields, call)
        return self

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first ``end`` records (default: as many as ``data`` has), whole, in slot order."""
        if end is not None and not hasattr(end, "__index__"):
            raise TypeError(f"write_all: end must be an int or None, got {end!r}.")
        data = self._transform.inv(data)
        if end is None:
            whole = isinstance(data, Mapping | tuple) and not isinstance(self._storage, ListStorage)  # not records
            end = len(pytree.tree_leaves(data)[0] if whole else data)
        self._overwrite(slice(None, end), data)

    def __setitem__(self, index: Any, data: Any) -> None:
        self._overwrite(index, self._transform.inv(data))

    def _overwrite(self, index: Any, data: Any) -> None:
        self._writer.check_writable("ReplayBuffer[...] =")
        self._storage.set(index, self._writer.prepared(data))

    # --- reading

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch with the sampler, and transform it.

        ``batch_size``: records to draw; default: that of the constructor. ``return_info``: also return a dict with
        ``"index"`` (slots), ``"index_generation"`` when the writer tracks generations, and what the sampler tells.
        RuntimeError when the storage is empty or no batch size is known.
        """
        num = self._batch_size if batch_size is None else _checked_batch_size(batch_size, "sample")
        if num is None:
            raise RuntimeError("sample: batch_size is not known. Give it to the constructor or to sample().")
        storage, collate = self._read_from
        with storage.lock:
            slots, drawn = self._sampler.sample(storage, num, self.generator)
            data, generations = storage.read(slots)
        self._sampler.notice(drawn)
        info = {"index": slots}
        if self._writer.tracks_generations:
            info["index_generation"] = generations
        data = self._transformed(collate(data), info)
        if not return_info:
            return data
        return data, {key: value.clone() for key, value in info.items()} | self._sampler.explain(drawn)

    def __iter__(self) -> Iterator[Any]:
        if self._batch_size is None:
            raise RuntimeError("Iterating over a replay buffer needs a batch size. Give batch_size to the constructor.")
        while True:
            yield self.sample()

    def next(self) -> Any:
        """The next batch, as iterating gives it."""
        return next(iter(self))

    def __getitem__(self, index: Any) -> Any:
        storage, collate = self._read_from
        with storage.lock:
            slots = storage.locate(index, "ReplayBuffer[...]")
            data, _ = storage.read(slots.flat, slots.shape)
        if slots.shape or not isinstance(storage, ListStorage):  # a single object is no list to be merged
            data = collate(data)
        return self._transformed(data, {"index": slots.flat.view(slots.shape).clone()})

    def read_all_in_order(self, end: int | None = None) -> Any:
        """The first ``end`` records (default: all) in slot order."""
        if end is not None and not hasattr(end, "__index__"):
            raise TypeError(f"read_all_in_order: end must be an int or None, got {end!r}.")
        return self[:end]

    def _transformed(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        """Merged records, as they are returned. Their handles come last: no transform can change what they name."""
        if not self._transform.steps():
            return self._finished(data, info)
        data = transforms.for_reader(self._transform, data)
        try:
            return self._finished(data, info)
        except RuntimeError as error:
            raise RuntimeError(
                f"{type(self).__name__}: the slots of {[*info['index'].shape]} records do not go with the batch of "
                f"{[*data.batch_size]} that a transform returned. Keep the rows, and choose among them after sampling."
            ) from error

    def _finished(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        """Transformed records, as they are returned. ``info``: their slots and generations."""
        return data

    # --- transforms

    @property
    def transform(self) -> Compose:
        """The transforms, in the order in which they are applied to what is read."""
        self._transform.steps()
        return self._transform

    def append_transform(self, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
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

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> ReplayBuffer:
        """Put a transform before the one at ``index``, otherwise as `append_transform` does; returns the buffer."""
        self._transform.insert(index, transforms.directed(transform, invert, "insert_transform"))
        return self

    # --- state

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def write_count(self) -> int:
        """Records written through `add` and `extend` so far; 0 with an `ImmutableDatasetWriter`."""
        return self._writer.write_count

    @property
    def batch_size(self) -> int | None:
        """Records in a sample, unless `sample` is told otherwise."""
        return self._batch_size

    def stats(self) -> dict[str, int | float | bool]:
        """Counters, cheap and serializable: ``size``, ``write_count``, ``prefetch_queue_size``, ``initialized``;
        ``capacity`` and ``utilization`` when the storage is bounded; with a `PromptGroupSampler` also ``num_groups``
        and ``num_singleton_groups``.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10))
        >>> _ = rb.extend(torch.arange(5))
        >>> snapshot = rb.stats()
        >>> print(snapshot["size"], snapshot["write_count"], snapshot["capacity"])
        5 5 10
        """
        storage = self._storage
        with storage.lock:
            counters: dict[str, int | float | bool] = {
                "size": len(storage),
                "write_count": self.write_count,
                "prefetch_queue_size": 0,
                "initialized": True,
            }
            if getattr(storage, "bounded", True):
                counters["capacity"] = storage.max_size
                counters["utilization"] = len(storage) / storage.max_size
            return counters | self._sampler.stats(storage)

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
        return previous

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Put another storage in, with ``collate_fn`` or the default one for it; returns the one that was there."""
        made = _made("storage", storage, Storage, lambda: ListStorage(_DEFAULT_SIZE))
        if self.shared:
            made.share()
        previous, self._storage = self._storage, made
        self._writer.register_storage(self._storage, replace=True)
        self._read_from = (self._storage, collate_fn or _default_collate(self._storage))
        return previous

    # --- other processes

    def share(self, shared: bool = True) -> ReplayBuffer:
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


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of tensordicts: what it returns carries ``"index"``, and in samples ``"index_generation"`` when
    the writer tracks generations (a tensorclass has its own fields only: ask for ``return_info``). Default writer:
    `TensorDictRoundRobinWriter`.

    Keyword Args:
        priority_key: the field that priorities come from, for samplers that keep them.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
    >>> rb = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(10), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=4
    ... )
    >>> _ = rb.extend(TensorDict({"obs": torch.zeros(10, 3)}, [10]))
    >>> batch = rb.sample()
    >>> patch = {"obs": torch.ones(4, 3)}
    >>> result = rb.update_if_present(index=batch["index"], generation=batch["index_generation"], patch=patch)
    >>> bool((rb[batch["index"]]["obs"] == 1).all()), result.stale_count
    (True, 0)
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def _finished(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        if isinstance(data, TensorDictBase):
            for key, value in info.items():
                inner = data.batch_dims - value.dim()  # batch dimensions within a record
                data.set(
                    key, value.view(*value.shape, *[1] * inner).expand(data.batch_size).clone() if inner > 0 else value
                )
        return data


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


def _checked_batch_size(batch_size: int, call: str) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"{call}: batch_size must be a positive int, got {batch_size!r}.")
    return batch_size


def _default_collate(storage: Storage) -> Callable[[Any], Any]:
    return stack_records if isinstance(storage, ListStorage) else _as_it_is


def _as_it_is(data: Any) -> Any:
    return data
