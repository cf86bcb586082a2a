"""The best records stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensordict import is_tensor_collection
from torch import Tensor

from torchrb.storages.base import Placement, Storage
from torchrb.writers.base import Writer
from torchrb.writers.ranking import REDUCTIONS, Ranking, worths
from torchrb.writers.round_robin import without_handles


class TensorDictMaxValueWriter(Writer):
    """Keeps the records whose value of a field is highest: a record is written while there is room, and then only over
    the lowest one, if it is worth more.

    Args:
        rank_key: the field that counts. Default: ``("next", "reward")``.
        reduction: what a field of several numbers is worth: their ``"sum"``, ``"max"``, ``"min"``, ``"mean"`` or
            ``"median"`` (of an even number the lower of the two in the middle), over all dimensions of a record.
        compilable: accepted for compatibility.
        track_generations: as in `RoundRobinWriter`.

    `add` returns the slot, or None for a record that was not kept; `extend` the slots, -1 for those that are not kept.
    A batch has the same outcome as its records one by one, whatever its size, in one write. ``write_count`` counts the
    records that were accepted, those too which made way for others of their batch.

    Values are compared in their own type, integers and float64 exactly; floats are added up in order, as float64. NaN
    is worth less than any number, -inf less than any other. A record worth as much as the lowest is not kept, and of
    several lowest ones that written last makes way: whoever was there first, stays.

    What counts is what is stored now. So records that another buffer wrote, a field that `set_` or `update_if_present`
    has changed, and `empty` are all taken into account; a write costs the rows written since the last one, and
    log(rows stored) for each of its own. On a GPU the host waits for the values.

    A record that is kept takes the slot of another, so slots tell nothing about the order in time. Where trajectories
    end by flags (see `SliceSampler`, `ReplayBuffer.query`) they cannot be told from what is left: use ids.

    Errors, with nothing written: TypeError for records that are no tensordicts, and for a field of no numbers; KeyError
    for a field that is not there.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, TensorDictMaxValueWriter, TensorDictReplayBuffer
    >>> rb = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=TensorDictMaxValueWriter(rank_key="score"))
    >>> rb.extend(TensorDict({"score": torch.tensor([1.0, 5.0, 3.0])}, [3]))
    tensor([0, 1, 2])
    >>> rb.extend(TensorDict({"score": torch.tensor([2.0, 0.0, 4.0])}, [3]))  # 2 came in, and made way for 4
    tensor([-1, -1,  0])
    >>> rb.add(TensorDict({"score": torch.tensor(3.0)})), rb[:]["score"]
    (None, tensor([4., 5., 3.]))
    """

    def __init__(
        self,
        rank_key: Any = None,
        reduction: str = "sum",
        *,
        compilable: bool = False,
        track_generations: bool = False,
    ) -> None:
        super().__init__(track_generations=track_generations)
        if reduction not in REDUCTIONS:
            raise ValueError(f"TensorDictMaxValueWriter: reduction must be one of {REDUCTIONS}, got {reduction!r}.")
        self.rank_key = ("next", "reward") if rank_key is None else rank_key
        self.reduction = reduction
        self._ranking: tuple[Storage, Ranking] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ranking": None}  # which belongs to the process that made it

    def add(self, data: Any) -> int | None:  # type: ignore[override]
        """Write one record if it is good enough; returns its slot, or None."""
        slot = int(self.append(data, one=True)[0])
        return slot if slot >= 0 else None

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        call = "add" if one else "extend"
        if isinstance(data, Tensor | tuple | str | bytes) or not (
            is_tensor_collection(data) or isinstance(data, Mapping) or (hasattr(data, "__iter__") and not one)
        ):
            raise TypeError(
                f"{call}: TensorDictMaxValueWriter ranks records by their field {self.rank_key!r} and takes "
                f"tensordicts, got {type(data).__name__}. Put it into one, or use a RoundRobinWriter."
            )
        storage = self.storage

        def choose(num: int, values_of: Callable[[Any], Any]) -> Placement:
            coming = worths(values_of(self.rank_key), self.rank_key, self.reduction, call)
            ranking = self._ranking_of(storage)
            ranking.catch_up(call)
            return ranking.place(coming)

        return storage.place(self.prepared(data), choose, one=one)

    def prepared(self, data: Any) -> Any:
        return without_handles(data)

    def _ranking_of(self, storage: Storage) -> Ranking:
        if self._ranking is None or self._ranking[0] is not storage:
            self._ranking = storage, Ranking(storage, self.rank_key, self.reduction)
        return self._ranking[1]

    def __repr__(self) -> str:
        where = super().__repr__()[:-1] + ("" if self._storage is None else ", ")
        return f"{where}rank_key={self.rank_key!r}, reduction={self.reduction!r})"
