"""The buffer's writes: data -> inverse transforms -> writer -> storage -> one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.utils._pytree as pytree
from torch import Tensor

from torchrb import updates
from torchrb.buffer.priorities import Priorities
from torchrb.storages import ListStorage
from torchrb.storages.cells import records_first
from torchrb.writers.base import as_rows

if TYPE_CHECKING:
    from typing import Self


class Writing(Priorities):
    """Records go in whole, in part, or only where they are still there."""

    def add(self, data: Any) -> int | Tensor:
        """Write one record, after the inverse transforms; returns its slot, None if the writer does not keep it. In a
        storage of several dimensions: the index of each of its cells, int64 ``[cells, ndim]``.
        """
        if self._sampler.keeps_priorities:
            return self._add_with_priority(self._transform.inv(data))
        return self._writer.add(self._transform.inv(data))

    def extend(
        self, data: Any, *, update_priority: bool | None = None, return_generations: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Write a batch of records, after the inverse transforms, over the oldest ones when the storage is full.

        ``data``: a tensordict, tensor, tuple or dict of tensors with a first dimension, or a list of records.
        Returns the slots, int64 ``[n]``; with ``return_generations`` also the generation that each row got, so that
        (slot, generation) names that very row even where a batch wraps over itself. ``update_priority``: whether, with
        a `PrioritizedSampler`, records take their priorities from the data of a `TensorDictReplayBuffer`, where that
        has its ``priority_key``; None is True. KeyError or ValueError, with nothing written, for fields, shapes or
        dtypes that are not those of the storage.

        With ``dim_extend=d`` the records of a batch lie along dimension ``d``, as in ``[B, T, ...]`` with ``d=1``; a
        list of records is that of its items. In a storage of several dimensions what is returned is about cells:
        int64 ``[n, ndim]``, and generations ``[n]``.
        """
        if not self._flat:
            return self._extend_along(data, update_priority, return_generations)
        if self._sampler.keeps_priorities:
            slots, generations = self._append_with_priorities(self._transform.inv(data), update_priority)
        else:
            slots, generations = self._writer.append(self._transform.inv(data))
        return (slots, generations) if return_generations else slots

    def _extend_along(
        self, data: Any, update_priority: bool | None, return_generations: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        storage = self._storage
        data = records_first(self._transform.inv(data), self.dim_extend, storage)
        if self._sampler.keeps_priorities:
            slots, generations = self._append_with_priorities(data, update_priority)
        else:
            slots, generations = self._writer.append(data)
        index = as_rows(storage, slots)
        return (index, generations) if return_generations else index

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove every record and go back to slot 0; handles to removed records stay stale for ever."""
        self._writer.check_writable("empty")
        self._storage.clear(empty_write_count)
        if self._early is not None:
            self._early.drop()

    def update_if_present(
        self,
        *,
        index: Tensor | tuple[Tensor, ...],
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
        In a storage of several dimensions such handles name whole records, with values ``[n, *cells, ...]``; an index
        with coordinates, a tuple of ``ndim`` tensors or one tensor ``[n, ndim]`` beside generations ``[n]``, names
        cells, each with versions of its own.

        ``patch``: field to values, ``[n, ...]`` of the stored dtype. ``version_key``: a field of one number a record;
        with ``version`` (a scalar or one a row) a record is written only if ``version > stored`` (``require_newer``)
        or ``version >= stored``, and the version is stored with the patch. A NaN version is rejected. When rows
        address one record, the highest version wins and the last of equals; without versions, the last row.

        RuntimeError when the storage cannot do it or the writer does not track generations; KeyError for a field that
        is not stored; ValueError for a shape, a dtype, a version without key or a key without version, a version key
        in the patch, of several numbers, or with dots in it; TypeError for a mask as index; IndexError, on a CPU, for
        coordinates outside of a record. Nothing is written then.
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

    def set_(self, key: Any, value: Any) -> Self:
        """Overwrite one field of all records: ``value`` is ``[len(self), ...]``, or, with several dimensions,
        ``[slots, *cells, ...]``. Records keep their handles.
        """
        return self._set_everywhere({key: value}, "set_")

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Overwrite one field of some records: ``value`` is ``[n, ...]``, or one record's value for an int index. With
        several dimensions ``index`` is as in ``rb.storage[index]``, and so is the shape of ``value``.
        """
        self._writer.check_writable("set_at_")
        self._storage.set_fields(index, {key: value}, "set_at_")
        return self

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Sequence[Any] | None = None
    ) -> Self:
        """Overwrite fields of all records: each value is as in `set_`. Records keep their handles.

        ``keys_to_update``: only these fields; a key of a nested tensordict names all that is in it. Values are copied
        whether or not ``clone`` is asked for.
        """
        fields = updates.fields_of(self._writer.prepared(input_dict_or_td), "update_")
        if keys_to_update is not None:
            fields = updates.only(fields, keys_to_update, "update_")
        return self._set_everywhere(fields, "update_")

    def _set_everywhere(self, fields: Mapping[Any, Any], call: str) -> Self:
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
        self._storage.set(index, self._writer.prepared(data), dim=self.dim_extend)
        if self._sampler.keeps_priorities:
            self._heed()
