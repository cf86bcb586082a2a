"""What a buffer is made of, from what its constructor was given: at once, or when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torchrb.collate import stack_records
from torchrb.consumption import Consumption, choice_of
from torchrb.samplers import RandomSampler, Sampler
from torchrb.storages import ListStorage, Storage
from torchrb.writers import Writer

_Part = TypeVar("_Part")
_DEFAULT_SIZE = 1000


class Given(NamedTuple):
    """Arguments of a buffer's constructor: instances, or what makes them. ``call`` is what errors name."""

    storage: Storage | Callable[[], Storage] | None
    sampler: Sampler | Callable[[], Sampler] | None
    writer: Writer | Callable[[], Writer] | None
    collate_fn: Callable[[Any], Any] | None
    limit: int | None
    shared: bool

    def check(self) -> None:
        """TypeError for what is no part and makes none, as far as that is seen without making it."""
        for name, part, kind in (
            ("storage", self.storage, Storage), ("sampler", self.sampler, Sampler), ("writer", self.writer, Writer)
        ):  # fmt: skip
            if not (part is None or isinstance(part, kind) or callable(part)):
                raise _no_part(name, part, kind)

    def made(self, default_writer: Callable[[], Writer]) -> dict[str, Any]:
        """The parts, as the attributes of a buffer. What raises here has left nothing behind."""
        storage, sampler = made_storage(self.storage), made_sampler(self.sampler)
        writer = made("writer", self.writer, Writer, default_writer)
        counts = None if self.limit is None else Consumption(storage, self.limit)
        writer.register_storage(storage, choose=choice_of(counts))
        if self.shared:
            storage.share()
        collate = self.collate_fn or default_collate(storage)
        parts = {"_storage": storage, "_sampler": sampler, "_writer": writer, "_consumption": counts}
        return parts | {"_read_from": (storage, collate)}


def made(name: str, part: Any, kind: type[_Part], default: Callable[[], _Part]) -> _Part:
    """A part of the buffer from an instance, a callable or nothing."""
    try:
        made = default() if part is None else part() if callable(part) and not isinstance(part, kind) else part
    except TypeError as error:
        raise TypeError(
            f"ReplayBuffer: {name} is called without arguments to make one, and {part!r} did not like it ({error}). "
            "Pass an instance, or a lambda."
        ) from error
    if not isinstance(made, kind):
        raise _no_part(name, made, kind)
    return made


def made_storage(storage: Any) -> Storage:
    """A storage from an instance, a callable or nothing."""
    return made("storage", storage, Storage, lambda: ListStorage(_DEFAULT_SIZE))


def made_sampler(sampler: Any) -> Sampler:
    """A sampler from an instance, a callable or nothing."""
    return made("sampler", sampler, Sampler, RandomSampler)


def _no_part(name: str, got: Any, kind: type) -> TypeError:
    return TypeError(f"ReplayBuffer: {name} must be a {kind.__name__} or make one, got {type(got).__name__}.")


def checked_batch_size(batch_size: int, call: str) -> int:
    """A batch size, if it is one; ValueError otherwise. ``call`` is what the error names."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"{call}: batch_size must be a positive int, got {batch_size!r}.")
    return batch_size


def checked_dim(dim: int, call: str) -> int:
    """A dimension of a batch, if it is one; ValueError otherwise."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0:
        raise ValueError(f"{call}: dim_extend must be an int from 0 on, got {dim!r}. Count from the first dimension.")
    return dim


def checked_prefetch(prefetch: int | None, batch_size: int | None, call: str) -> int:
    """How many batches to draw ahead; ValueError when that is no number, or nobody knows how large they are."""
    if prefetch is None:
        return 0
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"{call}: prefetch must be None or an int of at least 0, got {prefetch!r}.")
    if prefetch and batch_size is None:
        raise ValueError(
            f"{call}: prefetch={prefetch} draws batches before they are asked for, so their size must be known. Give "
            "batch_size to the constructor."
        )
    return prefetch


def default_collate(storage: Storage) -> Callable[[Any], Any]:
    """What is done with records that were read when nobody says otherwise."""
    return stack_records if isinstance(storage, ListStorage) else as_it_is


def as_it_is(data: Any) -> Any:
    """Batches of storages that read whole batches."""
    return data
