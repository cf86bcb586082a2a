"""Records drawn in proportion to their priorities."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb.persistence import StateReader
from torchrb.samplers.base import NothingToDraw, Sampler, require_records, take_seed
from torchrb.samplers.priorities import Priorities, bad_priority
from torchrb.samplers.priority_arguments import REDUCTIONS, as_priorities, as_slots, checked_setting, reduced
from torchrb.storages.base import Storage
from torchrb.storages.transfer import moved

_COLUMNS = {"slots": torch.int64, "generations": torch.int64, "priorities": torch.float64}


class PrioritizedSampler(Sampler):
    """Draws records with a probability in proportion to ``(priority + eps) ** alpha``, with replacement, and tells the
    importance weights that make up for it (Schaul et al.: Prioritized Experience Replay, 2015).

    Args:
        max_capacity: the most records of a storage to draw from; ValueError for one that can hold more.
        alpha: how much priorities count, at least 0; 0 draws uniformly.
        beta: how far the weights make up for it, at least 0: ``(p / p_min) ** -beta``, where ``p_min`` is the smallest
            probability of a record that can be drawn. No weight is above 1.
        eps: added to priorities, so that a priority of 0 can be drawn; with ``eps=0`` such a record never is.
        dtype: of the weights, float32 or float64. Priorities are kept as float64.
        reduction: ``"max"``, ``"min"``, ``"median"`` (the lower one of two) or ``"mean"``: what becomes of several
            numbers that one record has under the priority key.
        max_priority_within_buffer: accepted for compatibility: it is always so.
        device: accepted for compatibility: priorities lie where the storage's records do. ValueError for another one.

    A new record has the greatest priority of all records that are there when it is written (those that its batch
    replaces are not), or 1.0 if there is none. Changing some fields of a record leaves its priority; a record that was
    overwritten or emptied has none, and an update that comes too late for it does nothing where the sample carried
    generations. Writes that do not come through a buffer with this sampler are seen at its next call.

    ``sample`` tells ``"priority_weight"``, which a `TensorDictReplayBuffer` puts into its batches, too. ``alpha``,
    ``beta``, ``eps`` and ``reduction`` can be set at any time; after ``alpha`` or ``eps`` all weights are computed anew
    from the priorities. What a draw or an update costs grows with the batch and with the logarithm of the capacity.

    Priorities belong to this sampler and a storage: two buffers that share both share them; a copy of the sampler, or
    the one that another process was sent, begins with new records everywhere.

    Errors: RuntimeError when nothing is stored or every probability is 0; see `update_priority`.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, PrioritizedSampler, ReplayBuffer
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, alpha=0.7, beta=0.9, eps=0))
    >>> index = rb.extend(torch.arange(5))
    >>> rb.update_priority(index, torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0]))
    >>> batch, info = rb.sample(3, return_info=True)
    >>> batch, info["priority_weight"]
    (tensor([2, 2, 2]), tensor([1., 1., 1.]))
    """

    keeps_priorities = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(max_capacity, bool) or not isinstance(max_capacity, int) or max_capacity < 1:
            raise ValueError(f"PrioritizedSampler: max_capacity must be a positive int, got {max_capacity!r}.")
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"PrioritizedSampler: dtype must be torch.float32 or torch.float64, got {dtype!r}.")
        self.max_capacity, self.dtype = max_capacity, dtype
        self.max_priority_within_buffer = max_priority_within_buffer
        self.device = None if device is None else torch.device(device)
        self._weighting = (checked_setting("alpha", alpha), checked_setting("eps", eps))
        self.beta = beta
        self.reduction = reduction
        self._forget()

    def _forget(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Storage, Priorities] = weakref.WeakKeyDictionary()
        self._last: tuple[weakref.ref[Storage], Priorities] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_kept", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # --- settings

    @property
    def alpha(self) -> float:
        """The exponent of priorities."""
        return self._weighting[0]

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._weighting = (checked_setting("alpha", value), self._weighting[1])

    @property
    def beta(self) -> float:
        """The exponent of importance weights."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = checked_setting("beta", value)

    @property
    def eps(self) -> float:
        """What is added to priorities."""
        return self._weighting[1]

    @eps.setter
    def eps(self, value: float) -> None:
        self._weighting = (self._weighting[0], checked_setting("eps", value))

    @property
    def reduction(self) -> str:
        """What becomes of several numbers for one record."""
        return self._reduction

    @reduction.setter
    def reduction(self, value: str) -> None:
        if value not in REDUCTIONS:
            raise ValueError(f"PrioritizedSampler: reduction must be one of {REDUCTIONS}, got {value!r}.")
        self._reduction = value

    # --- draws

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        require_records(storage)
        kept = self._priorities_of(storage)
        kept.refuse_late()
        kept.catch_up(storage, self._weighting)
        if not kept.drawable:
            raise NothingToDraw(
                "PrioritizedSampler: every record has the priority 0 and eps is 0, so none can be drawn. "
                "Update priorities, or set eps."
            )
        slots, weights = kept.draw(take_seed(generator, storage), batch_size, self._beta, self.dtype == torch.float64)
        return slots, {"priority_weight": weights}

    def explain(self, drawn: Any) -> dict[str, Any]:
        return {}  # the buffer tells what a batch carries

    def fork(self, storage: Storage) -> Sampler | None:
        if type(self).sample is not PrioritizedSampler.sample:
            return None
        fork = type(self).__new__(type(self))
        fork.__dict__.update(self.__dict__)  # the priorities are the same: no draw changes them
        return fork

    def take_over(self, fork: Sampler, storage: Storage) -> None:
        assert isinstance(fork, PrioritizedSampler)
        self._last = fork._last  # this is now the storage that was last used

    def moment(self, storage: Storage) -> tuple[Any, ...]:
        kept = self._kept.get(storage)
        updates = (kept, kept.num_updates) if kept is not None and kept.num_updates else None  # None: all are as new
        return self._weighting, self._beta, self.dtype, updates

    # --- priorities

    def update_priority(
        self, index: Any, priority: Any, *, storage: Storage | None = None, generation: Tensor | None = None
    ) -> None:
        """Set the priorities of records: one number for all of them, or one for each.

        ``index``: slots, an int or integers of any shape, with ``priority`` of the same shape. Among equal slots the
        last one counts. Slots without a record are left out, and with ``generation`` (of the shape of ``index``) those
        whose record is another one by now. ``storage``: default, the one that was last used.

        TypeError for a mask; ValueError for a shape, or a priority that is negative, infinite or NaN; IndexError for
        what is no slot. Nothing is changed then. (On a GPU a bad value does nothing, and a later call raises.)
        """
        storage = self._storage_or(storage, "update_priority")
        slots = as_slots(index, storage, "update_priority")
        priorities = as_priorities(priority, slots, storage)
        if generation is not None:
            generation = torch.as_tensor(generation).reshape(-1)
            if generation.shape != slots.shape:
                raise ValueError(
                    f"update_priority: generation must have one entry for each of {slots.shape[0]} slots, got "
                    f"{generation.shape[0]}."
                )
            generation = moved(generation.to(torch.int64), storage.device).contiguous()
        with storage.lock:
            if not storage.tables:
                return
            kept = self._priorities_of(storage)
            kept.refuse_late()
            kept.set(storage, self._weighting, slots, generation, priorities, "update_priority")

    def mark_update(self, index: Any, *, storage: Storage | None = None) -> None:
        """Give records the priority that a new one would get."""
        storage = self._storage_or(storage, "mark_update")
        slots = as_slots(index, storage, "mark_update")
        with storage.lock:
            if not storage.tables:
                return
            kept = self._priorities_of(storage)
            kept.catch_up(storage, self._weighting)
            priorities = kept.greatest().expand(slots.shape).contiguous()
            kept.set(storage, self._weighting, slots, None, priorities, "mark_update")

    @property
    def default_priority(self) -> float:
        """The priority of the next new record; on a GPU the host waits for it."""
        storage = None if self._last is None else self._last[0]()
        if storage is None:
            return 1.0
        with storage.lock:
            kept = self._priorities_of(storage)
            kept.catch_up(storage, self._weighting)
            return float(kept.greatest())

    def heed(self, storage: Storage) -> None:
        with storage.lock:
            if storage.tables:
                self._priorities_of(storage).catch_up(storage, self._weighting)

    def priorities(self, storage: Storage) -> Tensor:
        """A copy of the priorities by slot, float64, -1 where there is no record."""
        with storage.lock:
            if not storage.tables:
                return torch.empty(0, dtype=torch.float64, device=storage.device)
            kept = self._priorities_of(storage)
            kept.catch_up(storage, self._weighting)
            return kept.by_slot.clone()

    def num_updates(self, storage: Storage) -> int:
        kept = self._kept.get(storage)
        return 0 if kept is None else kept.num_updates

    def check(self, priorities: Tensor, call: str) -> None:
        """ValueError for priorities that `update_priority` would not take, as far as that is known without waiting."""
        if priorities.device.type == "cpu" and priorities.numel():
            bad = torch.nonzero(~((priorities >= 0) & (priorities < torch.inf))).view(-1)
            if bad.shape[0]:
                raise ValueError(bad_priority(call, float(priorities[bad[0]]), int(bad[0])))

    def reduced(self, values: Tensor, one: bool, call: str) -> Tensor:
        """One number for each record of ``values`` ``[n, ...]``, or for the ``one`` record that all are of."""
        return reduced(values, one, self._reduction, call)

    # --- saved states

    def state_dict(self, storage: Storage) -> dict[str, Any]:
        """Settings, and the priorities of a storage's records with their handles; see `Sampler.state_dict`."""
        records = {name: torch.empty(0, dtype=dtype, device=storage.device) for name, dtype in _COLUMNS.items()}
        if storage.tables:
            kept = self._priorities_of(storage)
            kept.catch_up(storage, self._weighting)
            records = kept.snapshot()
        return {"alpha": self.alpha, "beta": self.beta, "eps": self.eps, "reduction": self.reduction, **records}

    def plan_load(self, storage: Storage, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        """Of a saved state: settings, and the priorities of those records that are there again; others are new. See
        `Sampler.plan_load`.
        """
        reader = StateReader(state, f"load: {type(self).__name__}")
        weighting = checked_setting("alpha", reader.real("alpha")), checked_setting("eps", reader.real("eps"))
        beta, reduction = checked_setting("beta", reader.real("beta")), reader.text("reduction")
        if reduction not in REDUCTIONS:
            raise reader.refuse("reduction", f"one of {REDUCTIONS}")
        slots = reader.tensor("slots", torch.int64, None)
        columns = [reader.tensor(name, dtype, slots.shape[0]) for name, dtype in _COLUMNS.items()]
        if bool((slots < 0).any()) or bool((slots >= size).any()):
            raise reader.refuse("slots", f"slots below {size}")
        if not bool(((columns[2] >= 0) & (columns[2] < torch.inf)).all()):
            raise reader.refuse("priorities", "finite numbers of at least 0")
        self._check_fits(storage)
        slots, generations, priorities = (column.to(storage.device, copy=True) for column in columns)

        def put() -> None:
            self._weighting, self._beta, self._reduction = weighting, beta, reduction
            if storage.tables:
                self._priorities_of(storage).set(storage, weighting, slots, generations, priorities, "load")

        return put

    def _storage_or(self, storage: Storage | None, call: str) -> Storage:
        if storage is None:
            storage = None if self._last is None else self._last[0]()
        if storage is None:
            raise RuntimeError(
                f"{call}: this sampler has not been used with a storage yet. Call it on the buffer, or pass storage=."
            )
        return storage

    def _priorities_of(self, storage: Storage) -> Priorities:
        if self._last is not None and self._last[0]() is storage:
            return self._last[1]
        kept = self._kept.get(storage)
        if kept is None:
            self._check_fits(storage)
            kept = self._kept[storage] = Priorities(storage)
        self._last = weakref.ref(storage), kept
        return kept

    def _check_fits(self, storage: Storage) -> None:
        """ValueError for a storage that this sampler is not made for."""
        if getattr(storage, "bounded", True) and storage.asked_size > self.max_capacity:
            raise ValueError(
                f"PrioritizedSampler: max_capacity must be at least the storage's, got {self.max_capacity} and "
                f"{storage.asked_size} records."
            )
        if self.device is not None and self.device.type != storage.device.type:
            raise ValueError(
                f"PrioritizedSampler: priorities lie where the records do, got device={str(self.device)!r} and a "
                f"storage on {str(storage.device)!r}. Leave device out."
            )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(alpha={self.alpha}, beta={self.beta}, eps={self.eps}, reduction={self.reduction})"
        )
