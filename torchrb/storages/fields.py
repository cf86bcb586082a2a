"""The fields of records in tables: found by name, written in part, and told to samplers as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrb import ops
from torchrb.ops.schemas import ORDERED_DTYPES, STALE, UPDATED
from torchrb.storages.base import Column
from torchrb.storages.cells import CellStorage, flat_values
from torchrb.storages.copies import own_copy
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.records import RecordTable
from torchrb.storages.staging import Finish, placing
from torchrb.storages.structure import Structure, as_path, as_tensor, check_value, parts_of, shown


class Fields(NamedTuple):
    """New values of some fields, validated: leaf numbers and values, non-tensor field numbers and values."""

    leaves: list[int]
    values: list[Tensor]
    places: list[int]
    objects: list[list[Any]]


class NewField(NamedTuple):
    """New values of one field, the storage's own: a tensor for a field's number, a list for its complement."""

    key: Any
    number: int
    value: Any


class FieldStorage(CellStorage):
    """Records of named fields, in tables that ops write and read; non-tensor fields beside them, by slot.

    ``structure``: what a record is, None before the first batch. ``_numbers``: a field's leaf, or the complement of its
    place among ``_objects``. ``_adopted``: tensors of the user's own that the records live in.
    """

    structure: Structure | None
    _records: RecordTable
    _objects: list[list[Any]]
    _adopted: list[Tensor]
    _numbers: dict[tuple, int]

    def find(self, key: Any, call: str) -> int:
        """The number of a tensor field, or ``~number`` of a non-tensor one. KeyError when there is none."""
        if self._staging.noted:
            self._staging.settle()
        return self._number(self._numbers, key, call)

    @staticmethod
    def _number(numbers: dict[tuple, int], key: Any, call: str) -> int:
        number = numbers.get(as_path(key))
        if number is None:
            stored = [shown(path) for path in numbers]
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {stored}.")
        return number

    def plan_fields(self, fields: Mapping[Any, Any], num: int, call: str, shape: torch.Size | None = None) -> Fields:
        """Validate new values of some fields for ``num`` rows; writes nothing. ``shape``: that in which values come,
        where it is not ``[num]``. KeyError for a field that is not stored, ValueError for a shape or dtype.
        """
        taken = self._take_fields(fields, call)
        if shape is not None:
            taken = [field._replace(value=flat_values(field.key, field.value, shape, call)) for field in taken]
        return self._fit_fields(taken, num, call)

    def _fit_fields(self, taken: list[NewField], num: int, call: str) -> Fields:
        fields = Fields([], [], [], [])
        for key, number, value in taken:
            if number >= 0:
                fields.leaves.append(number)
                fields.values.append(check_value(self.structure.leaves[number], value, num, self.device, call))  # type: ignore[union-attr]
                continue
            if len(value) != num:
                raise ValueError(f"{call}: field {key!r} needs a list of {num} values, got {value!r}.")
            fields.places.append(~number)
            fields.objects.append(value)
        return fields._replace(values=self._apart(fields.values)) if self._adopted else fields

    def update_if(
        self,
        slots: Tensor,
        generations: Tensor,
        fields: Fields,
        version_leaf: int | None,
        version: Tensor | None,
        require_newer: bool,
    ) -> Tensor:
        """One conditional update, planned by `plan_fields`; see the op `update_rows_if_`. Returns status, uint8 [n]."""
        with self.lock:
            if self._staging.noted:
                self._staging.settle()
            if self.structure is None:
                return torch.full_like(slots, STALE, dtype=torch.uint8)
            records = self._records
            slots, generations = self._apart([slots, generations])
            version = None if version is None else self._apart([version])[0]

            def placing_of(rows: list[int]) -> Finish:
                at = [slots_of[row] for row in rows]
                return self._placing(at, [[column[row] for row in rows] for column in fields.objects], fields.places)

            part = records.part(fields.leaves)
            version_part = [] if version_leaf is None else records.leaf(version_leaf)
            args = (
                records.tables, self.control, self.journal, part, slots, generations, fields.values,
                version_part, version, require_newer,
            )  # fmt: skip
            if not fields.places:
                return ops.update_rows_if_(*args)
            slots_of, start = slots.tolist(), self.journal_position
            with self._staging as staging:
                staging.note(
                    lambda: placing_of(self._updated_since(start, slots, generations, version_leaf, version))()
                )
                status = ops.update_rows_if_(*args)
                staging.written(placing_of(torch.nonzero(status == UPDATED).view(-1).tolist()))
            return status

    def _updated_since(
        self, start: int, slots: Tensor, generations: Tensor, version_leaf: int | None, version: Tensor | None
    ) -> list[int]:
        """Which rows of a conditional update were written, when its answer was lost: of those that address a slot noted
        since, by the generation that it still has and the version that it has now, the last.
        """
        size, head = self.journal.shape[0], self.journal_position
        noted = set(self.journal[torch.arange(start, head, device=self.device) % size].tolist())
        chosen = [] if version_leaf is None else [version_leaf]
        records = self._records
        stored, live = ops.read_rows(
            records.tables, records.part(chosen), [records.templates[leaf] for leaf in chosen], slots
        )
        matches = live == generations
        if version is not None:
            matches &= stored[0].view(-1) == version
        last = {slot: row for row, slot in enumerate(slots.tolist()) if slot in noted and matches[row]}
        return sorted(last.values())

    def key_column(self, key: Any) -> Column | None:
        number = self.find(key, "PromptGroupSampler: group_key")
        if number < 0:
            return None
        template = self._records.templates[number]
        if template.dtype not in ORDERED_DTYPES and not template.is_complex() and template.dtype != torch.uint64:
            raise TypeError(
                f"PromptGroupSampler: group_key {key!r} must hold integers, bools, floats of 16 bits and more, strings "
                f"or None, got {template.dtype}. Group by an integer id."
            )
        if template.is_complex():
            template = torch.view_as_real(template)
        elif template.dtype == torch.uint64:
            template = template.view(torch.int64)
        return Column(self._records.tables, self._records.leaf(number), template)

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        number = self.find(key, "PromptGroupSampler: group_key")
        column = self._objects[~number]
        words = [value_words(column[slot], key) for slot in slots.tolist()]
        return torch.tensor(words, dtype=torch.int64, device=self.device).view(slots.shape[0], DIGEST_WORDS)

    def reward_column(self, key: Any) -> Column:
        number = self.find(key, "PromptGroupSampler: reward_key")
        if number < 0:
            raise TypeError(f"PromptGroupSampler: reward_key {key!r} names a non-tensor field; a reward is numeric.")
        return Column(self._records.tables, self._records.leaf(number), self._records.templates[number])

    def _take_fields(self, fields: Mapping[Any, Any], call: str) -> list[NewField]:
        taken = []
        for key, value in fields.items():
            parts = parts_of(key, value, self._numbers)
            if parts:
                taken += self._take_fields(parts, call)
                continue
            number = self.find(key, call)
            if number >= 0:
                taken.append(NewField(key, number, as_tensor(value, f"{call}: field {key!r}")))
                continue
            items = value.tolist() if hasattr(value, "tolist") else value
            if not isinstance(items, list):
                raise ValueError(f"{call}: field {key!r} needs a list of values, got {items!r}.")
            taken.append(NewField(key, number, own_copy(list(items))))
        return taken

    def _put_fields(self, slots: Tensor, taken: list[NewField], call: str) -> None:
        fields = self._fit_fields(taken, slots.shape[0], call)
        if self.structure is None:
            return
        (slots,) = self._apart([slots])
        records = self._records
        part = records.part(fields.leaves)
        args = (records.tables, self.control, self.journal, part, slots, fields.values, False)
        if not fields.places:
            ops.write_rows_(*args)
            return
        finish = self._placing(slots.tolist(), fields.objects, fields.places)
        with self._staging as staging:
            staging.note(finish)
            ops.write_rows_(*args)
            staging.written(finish)

    def _placing(self, slots: list[int], objects: list[list[Any]], places: list[int] | None = None) -> Finish:
        """What puts non-tensor fields (all, or those at some places) beside their rows."""
        columns = self._objects if places is None else [self._objects[place] for place in places]
        return placing(columns, slots, objects)

    def _apart(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors that an op can read while it writes rows: copies of those that lie in memory of the user's own."""
        if not self._adopted:
            return tensors
        return [tensor.clone() if overlap(tensor, self._adopted) else tensor for tensor in tensors]


def overlap(tensor: Tensor, others: list[Tensor]) -> bool:
    """Whether a tensor lies, in part, in the memory of others; all of them contiguous."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    return any(begin < other.data_ptr() + other.nbytes and other.data_ptr() < begin + size for other in others if size)
