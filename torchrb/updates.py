"""Conditional updates: a late patch lands on the record it was made for, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import is_non_tensor, is_tensor_collection
from torch import Tensor

from torchrb.ops.schemas import ORDERED_DTYPES, STALE, SUPERSEDED, UPDATED, VERSION_REJECTED
from torchrb.storages.base import Storage
from torchrb.storages.cells import Handles
from torchrb.storages.structure import as_path, shown
from torchrb.storages.tensor import Fields, LazyTensorStorage
from torchrb.storages.transfer import moved

_CALL = "update_if_present"


class ConditionalUpdateResult:
    """What became of each row of an `update_if_present`.

    ``updated``: bool, shaped like the index; the row was written. ``version_rejected``: bool of the same shape, the
    record was live but its version was not lower; None when no version was given. ``stale``: the handle names no live
    record. ``superseded``: another row of the same call addressed the same record, later, and was written instead.
    ``updated_count``, ``stale_count``, ``version_rejected_count``, ``superseded_count``: ints, counted when read.
    """

    def __init__(self, status: Tensor, versioned: bool) -> None:
        self._status, self._versioned = status, versioned

    @property
    def updated(self) -> Tensor:
        return self._status == UPDATED

    @property
    def stale(self) -> Tensor:
        return self._status == STALE

    @property
    def superseded(self) -> Tensor:
        return self._status == SUPERSEDED

    @property
    def version_rejected(self) -> Tensor | None:
        return self._status == VERSION_REJECTED if self._versioned else None

    @property
    def updated_count(self) -> int:
        return int(self.updated.sum())

    @property
    def stale_count(self) -> int:
        return int(self.stale.sum())

    @property
    def superseded_count(self) -> int:
        return int(self.superseded.sum())

    @property
    def version_rejected_count(self) -> int:
        return int((self._status == VERSION_REJECTED).sum())

    def __repr__(self) -> str:
        rejected = f", version_rejected_count={self.version_rejected_count}" if self._versioned else ""
        return (
            f"ConditionalUpdateResult(updated_count={self.updated_count}, stale_count={self.stale_count}, "
            f"superseded_count={self.superseded_count}{rejected})"
        )


class Plan(NamedTuple):
    """A validated conditional update; nothing is written yet."""

    storage: LazyTensorStorage
    asked: Tensor
    slots: Tensor
    generations: Tensor
    fields: Fields
    version_leaf: int | None
    version: Tensor | None
    require_newer: bool
    handles: Handles | None = None  # of a storage of several dimensions


def plan(
    storage: Storage,
    index: Any,
    generation: Any,
    patch: Any,
    version_key: Any,
    version: Any,
    require_newer: bool,
) -> Plan:
    """Validate everything that can be wrong with a conditional update, so that `apply` cannot fail half-way."""
    if not isinstance(storage, LazyTensorStorage):
        raise RuntimeError(
            f"{_CALL}: {type(storage).__name__} does not support conditional updates. Use LazyTensorStorage."
        )
    handles, shape = None, None
    if storage.ndim > 1:
        if isinstance(index, tuple):
            index = torch.stack(torch.broadcast_tensors(*(_integers("index", part) for part in index)), -1)
        places = moved(_integers("index", index), storage.device)
        handles = storage.handles(places, moved(_integers("generation", generation), storage.device), _CALL)
        index, generation, shape = handles.rows, handles.generations, handles.shape
    index, generation = _integers("index", index), _integers("generation", generation)
    if index.shape != generation.shape:
        raise ValueError(
            f"{_CALL}: index and generation must have the same shape, got {[*index.shape]} and {[*generation.shape]}."
        )
    slots, generations = _flat(index, storage.device), _flat(generation, storage.device)

    fields = fields_of(patch, _CALL)
    version_leaf, stored_version = None, None
    if (version_key is None) != (version is None):
        given, missing = ("version", "version_key") if version_key is None else ("version_key", "version")
        raise ValueError(f"{_CALL}: version_key and version go together, got {given} without {missing}.")
    if version_key is not None:
        if isinstance(version_key, str) and "." in version_key:
            raise ValueError(
                f"{_CALL}: version_key {version_key!r} is a dotted string. Name a nested field by a tuple: "
                f"{tuple(version_key.split('.'))}."
            )
        if as_path(version_key) in {as_path(key) for key in fields}:
            raise ValueError(
                f"{_CALL}: version_key {version_key!r} must not be in patch; the version is written with it."
            )
        version_leaf = storage.find(version_key, _CALL)
        if handles is not None and handles.whole:
            raise ValueError(
                f"{_CALL}: field {version_key!r} holds a version for each cell, and index names whole records. Name "
                f"cells: index [n, {storage.ndim}], as in a sample's, with generation [n]."
            )
        stored_version = _version_for(storage, version_leaf, version_key, version, slots.shape[0])
    planned = storage.plan_fields(fields, slots.shape[0], _CALL, shape)
    return Plan(storage, index, slots, generations, planned, version_leaf, stored_version, bool(require_newer), handles)


def apply(plan: Plan) -> ConditionalUpdateResult:
    """Carry a plan out, row by row, in one op."""
    status = plan.storage.update_if(
        plan.slots, plan.generations, plan.fields, plan.version_leaf, plan.version, plan.require_newer
    )
    if plan.handles is not None:
        status = plan.handles.answers(status)
    elif plan.asked is not plan.slots:
        status = status.view(plan.asked.shape).to(plan.asked.device)
    return ConditionalUpdateResult(status, plan.version is not None)


def _flat(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of any shape as the op takes them: the tensor itself, where it is like that already."""
    if numbers.dim() != 1 or numbers.device != device:
        numbers = moved(numbers, device).reshape(-1)
    return numbers.contiguous()


def _integers(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.dtype == torch.int64:
        return value
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{_CALL}: {name} must hold integers, got {value!r}.") from error
    if tensor.dtype == torch.bool:
        raise TypeError(f"{_CALL}: {name} must hold integers, got a boolean mask. Pass mask.nonzero().view(-1).")
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"{_CALL}: {name} must hold integers, got {tensor.dtype}.")
    return tensor.to(torch.int64)


def fields_of(fields: Any, call: str) -> dict[Any, Any]:
    """The leaves of a tensordict or of a (nested) mapping by key; ValueError where one is named twice."""
    if isinstance(fields, tuple):  # of a pytree
        fields = fields._asdict() if hasattr(fields, "_asdict") else dict(enumerate(fields))
    if not (isinstance(fields, dict | Mapping) or is_tensor_collection(fields)):
        raise TypeError(f"{call}: expected a mapping or a tensordict, got {type(fields).__name__}.")
    leaves: dict[Any, Any] = {}
    for key, value in fields.items():
        if isinstance(value, Tensor) and isinstance(key, str) and key not in leaves:
            leaves[key] = value
            continue
        nested = (isinstance(value, Mapping) or is_tensor_collection(value)) and not is_non_tensor(value)
        for rest, leaf in fields_of(value, call).items() if nested else [((), value)]:
            path = shown((*as_path(key), *as_path(rest)))
            if path in leaves:
                raise ValueError(f"{call}: field {path!r} is named twice.")
            leaves[path] = leaf
    return leaves


def only(fields: Mapping[Any, Any], keys: Sequence[Any], call: str) -> dict[Any, Any]:
    """The fields that keys name, by themselves or by a field they are nested in. KeyError for a key that names none."""
    chosen: dict[Any, Any] = {}
    for key in keys:
        path = as_path(key)
        named = {field: value for field, value in fields.items() if as_path(field)[: len(path)] == path}
        if not named:
            raise KeyError(f"{call}: keys_to_update names {key!r}, got fields {list(fields)}.")
        chosen |= named
    return chosen


def _version_for(storage: LazyTensorStorage, number: int, key: Any, version: Any, num: int) -> Tensor:
    """The incoming versions as ``[num]`` of the stored field's dtype; ValueError where that would change a value."""
    leaf = storage.structure.leaves[number] if number >= 0 else None  # type: ignore[union-attr]
    if leaf is None or leaf.shape.numel() != 1 or leaf.dtype == torch.bool or leaf.dtype not in ORDERED_DTYPES:
        got = "a field that is not a tensor" if leaf is None else f"{leaf.dtype} {[*leaf.shape]}"
        raise ValueError(f"{_CALL}: version_key {key!r} must name a field of one real number a record, got {got}.")
    if type(version) is int and not leaf.dtype.is_floating_point and version.bit_length() < 8 * leaf.dtype.itemsize:
        if version >= 0 or leaf.dtype.is_signed:
            return torch.full((num,), version, dtype=leaf.dtype, device=storage.device)
    try:
        given = torch.as_tensor(version)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{_CALL}: version must be a number or a tensor of numbers, got {version!r}.") from error
    if given.dtype == torch.bool or given.is_complex():
        raise ValueError(f"{_CALL}: version must be a number or a tensor of numbers, got {given.dtype}.")
    if given.dim() == 0:
        given = given.expand(num)
    if given.numel() != num:
        raise ValueError(
            f"{_CALL}: version must be a scalar or have one entry for each of {num} records, got {[*given.shape]}."
        )
    given = given.reshape(num)
    if given.is_floating_point() and not leaf.dtype.is_floating_point:
        raise ValueError(
            f"{_CALL}: field {key!r} is stored as {leaf.dtype}, got versions of {given.dtype}. Convert them first."
        )
    converted = given.to(leaf.dtype)
    if given.device.type == "cpu" and given.dtype != leaf.dtype:
        same = (converted.to(given.dtype) == given) | (given != given)
        # A number that wrapped round comes back as it was, but with another sign.
        if given.dtype == torch.uint64 and not converted.is_floating_point():
            same &= given.to(torch.int64) >= 0
        elif given.dtype != torch.uint64 and not given.is_floating_point():
            same &= (given.to(torch.int64) < 0) == (converted.to(torch.float64) < 0)
        if not bool(same.all()):
            value = given[~same][0].item()
            raise ValueError(f"{_CALL}: version {value} does not fit field {key!r}, which is stored as {leaf.dtype}.")
    return moved(converted, storage.device).contiguous()
