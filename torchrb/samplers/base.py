"""What a sampler is to the buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb.storages.base import Storage


class NothingToDraw(RuntimeError):
    """Records are stored, and a sampler cannot make a batch of them; of others, or of more, it could."""


class NotOneBatch(NothingToDraw, ValueError):
    """What is stored is less than a batch, and smaller ones are not wanted."""


class Sampler(ABC):
    """Chooses slots. A sampler may be used with any storage; what it caches follows the storage's journal.

    A subclass implements `sample`. The buffer holds the storage's lock around it. ``keeps_priorities``: records have
    priorities, so that a buffer has it `heed` each of its writes, and a draw tells a dict of tensors that have a row
    for each record.
    """

    keeps_priorities = False
    marks_records = False  # whether `marks` has anything to add to the records that were drawn

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        """Draw ``batch_size`` slots of live records: int64 ``[batch_size]`` on the storage's device, and what
        `explain` needs (a dict, where it is not overridden).

        RuntimeError when nothing is stored, `NothingToDraw` when nothing of it will do; ValueError for a batch size
        that does not fit.
        """

    def explain(self, drawn: Any) -> dict[str, Any]:
        """What there is to tell about a draw, for ``return_info``; asked for only then."""
        return dict(drawn)

    def marks(self, drawn: Any, data: Any) -> dict[Any, Tensor]:
        """Fields that a draw adds to the records that were read for it, ``[n, ...]`` each; asked for only where
        ``marks_records``.
        """
        return {}

    def notice(self, drawn: Any) -> None:
        """Warn about a draw, if there is something to warn of. Called when the storage's lock is free again."""
        return None

    def heed(self, storage: Storage) -> None:
        """Take note of a write at once. Asked for only where there are priorities."""
        return None

    def update_priority(
        self, index: Any, priority: Any, *, storage: Storage | None = None, generation: Tensor | None = None
    ) -> None:
        """Set priorities; nothing happens where there are none."""
        return None

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Give records the priority of new ones; nothing happens where there are none."""
        return None

    def stats(self, storage: Storage) -> dict[str, int]:
        """Counters for `ReplayBuffer.stats`."""
        return {}

    # --- draws ahead of their calls (see `torchrb.prefetch`)

    def fork(self, storage: Storage) -> Sampler | None:
        """A sampler that draws from the storage what this one would, and of whose draws this one knows nothing until it
        is told to `take_over`: itself, for one that no draw changes. None, as here: batches cannot be drawn ahead, and
        prefetching buffers draw when they are asked. The caller of these three holds the storage's lock.
        """
        return None

    def take_over(self, fork: Sampler, storage: Storage) -> None:
        """Be where a fork of this sampler was left by its draws."""
        return None

    def moment(self, storage: Storage) -> tuple[Any, ...]:
        """Equal at two times, and of two forks, only if they would draw the same, what is stored being the same. Here:
        all attributes that are numbers, strings and the like.
        """
        return tuple((name, value) for name, value in vars(self).items() if _plain(value))

    # --- saved states

    def state_dict(self, storage: Storage) -> dict[str, Any]:
        """What draws from a storage go on from, besides its records: a snapshot that shares no memory with the sampler,
        of nested dicts (with strings for keys) and lists of tensors, numbers, bools, strings and None. Empty where
        there is nothing but what follows from the records. The caller holds the storage's lock.
        """
        return {}

    def plan_load(self, storage: Storage, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        """Validate a saved state for a storage that will hold ``size`` records when it is put in place, and return what
        puts it there, which does not fail. ValueError for a state that is not this sampler's. Nothing is changed before
        that is called, and it copies what it keeps. The caller holds the storage's lock until then.

        The storage may be about to take up a state itself: validate against ``size``, not against the storage; by the
        time of the call it has its new records, and has counted a clearing (`Storage.num_clears`).
        """
        if not isinstance(state, Mapping) or state:
            told = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"load: a {type(self).__name__} keeps no state, got {told}. Load it with the sampler that saved it."
            )
        return lambda: None

    def load_state_dict(self, storage: Storage, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; see `plan_load` for the errors, after which nothing has changed."""
        with storage.lock:
            self.plan_load(storage, state, len(storage))()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | None) or (isinstance(value, tuple) and all(map(_plain, value)))


def take_seed(generator: torch.Generator | None, storage: Storage) -> Tensor:
    """One seed number from the generator, int64 ``[1]`` on the storage's device: all that a draw takes from it. The
    caller holds the storage's lock until the draw is done, as the next one may use the same memory.
    """
    device, seed = storage.device, storage.seed
    source = device if generator is None else generator.device
    if source.type != "cpu" or device.type != "cpu":  # a kernel may still have to read the last one
        staged = source.type == "cpu" and device.type == "cuda"
        if staged and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "sample: a generator on the CPU gives a CUDA graph one number for ever. Use one on the device, "
                "registered with the graph, or none."
            )
        seed = torch.empty(1, dtype=torch.int64, device=source, pin_memory=staged)
    seed.random_(generator=generator)
    return seed if source == device else seed.to(device, non_blocking=source.type == "cpu")


def split_batch(sampler: Sampler, batch_size: int, count: str, size: str) -> tuple[int, int]:
    """How many parts a batch has, and of how many records each, where one of the two is given by the attributes
    ``count`` and ``size`` of the sampler. ValueError for a batch that has a rest.
    """
    name = count if getattr(sampler, count) else size
    given = getattr(sampler, name)
    other, rest = divmod(batch_size, given)
    if rest or not other:
        raise ValueError(
            f"{type(sampler).__name__}: batch_size must be a multiple of {name}, "
            f"got batch_size={batch_size} and {name}={given}."
        )
    return (given, other) if name == count else (other, given)


def require_records(storage: Storage) -> None:
    """RuntimeError when there is nothing to draw from."""
    if not (storage.known_nonempty or len(storage)):
        raise RuntimeError("sample: cannot sample from an empty storage. Write to the buffer first.")
