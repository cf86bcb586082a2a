"""The shape of a record: how the user's data falls apart into leaves, and how it is put together again.

A structure is learned from the first batch that a storage is given; every later batch is held against it before
anything is written. Three kinds: tensordicts (nested, tensorclasses, with non-tensor fields), pytrees of tensors, and
plain tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from torchrb.storages.copies import own_copy
from torchrb.storages.records import STORABLE_DTYPES, LeafSpec
from torchrb.storages.transfer import moved


class Rows(NamedTuple):
    """A validated batch: each leaf contiguous ``[num, *shape]`` on the storage's device, each non-tensor field a list
    of ``num`` values that belong to the storage.
    """

    num: int
    values: list[Tensor]
    objects: list[list[Any]]


class Structure(Protocol):
    """What a storage asks of a structure. Keys are tuples inside, ``"a"`` or ``("a", "b")`` outside."""

    leaves: list[LeafSpec]
    object_keys: list[tuple]
    cells: torch.Size  # the shape of the cells that a record of several dimensions is made of; see `storages.cells`

    def flatten(self, batch: Any, device: torch.device, call: str) -> Rows:
        """Validate a batch and take it apart. KeyError for missing or extra fields, ValueError for a shape or dtype."""

    def build(self, values: Sequence[Tensor], objects: Sequence[list[Any]], shape: torch.Size) -> Any:
        """The inverse: records of the given index shape."""


def numbers_of(structure: Structure) -> dict[tuple, int]:
    """The number of each tensor field, and ``~number`` of each non-tensor one."""
    leaves = {leaf.key: i for i, leaf in enumerate(structure.leaves)}
    return leaves | {key: ~i for i, key in enumerate(structure.object_keys)}


def parts_of(key: Any, value: Any, stored: Mapping[tuple, int]) -> dict[Any, Any]:
    """The values of the fields that lie below a key in a pytree; none where the key is that of a field, or unknown."""
    if not isinstance(value, list | tuple | Mapping) or as_path(key) in stored:
        return {}
    path = as_path(key)
    if not any(known[: len(path)] == path for known in stored):
        return {}
    leaves = pytree.tree_flatten_with_path(value, is_leaf=is_tensor_collection)[0]
    return {(*path, *_place(below)): leaf for below, leaf in leaves}


def as_path(key: Any) -> tuple:
    """A key as the tuple of its parts."""
    if not isinstance(key, tuple):
        return (key,)
    return tuple(part for item in key for part in (as_path(item) if isinstance(item, tuple) else (item,)))


def shown(path: tuple) -> Any:
    """A path as its user writes it."""
    return path[0] if len(path) == 1 else path


def paths_in(record: Any, path: tuple = ()) -> Iterator[tuple]:
    """The fields of a tensordict, or of a dict, however nested."""
    if (is_tensor_collection(record) or isinstance(record, Mapping)) and not is_non_tensor(record):
        for name, value in record.items():
            yield from paths_in(value, (*path, name))
    elif path:
        yield path


def check_value(leaf: LeafSpec, value: Any, num: int, device: torch.device, call: str) -> Tensor:
    """``value`` as ``[num, *leaf.shape]`` of the leaf's dtype: detached, contiguous, on ``device``."""
    if not isinstance(value, Tensor):
        value = as_tensor(value, f"{call}: {_field(leaf)}")
    sparse = value.is_nested or value.is_meta or value.layout != torch.strided
    if sparse or value.dtype != leaf.dtype or value.shape != (num, *leaf.shape):
        _explain_value(leaf, value, num, call)
    if value.requires_grad:
        value = value.detach()
    if value.device != device:
        value = moved(value, device)
    if value.is_neg() or (leaf.dtype.is_complex and value.is_conj()):
        value = value.resolve_conj().resolve_neg()
    if value._is_zerotensor():
        value = value.clone()
    return value.contiguous()


def _field(leaf: LeafSpec) -> str:
    return "data" if leaf.key == () else f"field {shown(leaf.key)!r}"


def _explain_value(leaf: LeafSpec, value: Tensor, num: int, call: str) -> None:
    """Raise what is wrong with a value that does not fit its leaf."""
    field = _field(leaf)
    _require_dense(value, f"{call}: {field}")
    if value.dtype != leaf.dtype:
        raise ValueError(
            f"{call}: {field} is stored as {leaf.dtype}, got {value.dtype}. Convert it first: value.to({leaf.dtype})."
        )
    raise ValueError(f"{call}: {field} must have shape {[num, *leaf.shape]}, got {[*value.shape]}.")


def _require_dense(value: Tensor, what: str) -> None:
    if value.is_nested or value.is_meta or value.layout != torch.strided:
        kind = "a nested tensor" if value.is_nested else str(value.layout)
        raise ValueError(f"{what} must be a dense tensor with data, got {kind} on {value.device}.")


def _leaf_of(key: tuple, value: Tensor, call: str) -> LeafSpec:
    """What a field of the first batch says of all later ones. ValueError for what cannot be a row of bytes."""
    what = f"{call}: {'data' if key == () else f'field {shown(key)!r}'}"
    _require_dense(value, what)
    if value.dtype not in STORABLE_DTYPES:
        raise ValueError(f"{what} has {value.dtype}, which cannot be stored. Convert it, or store its bytes as uint8.")
    return LeafSpec(key, value.dtype, value.shape[1:])


def as_batch(data: Any, call: str) -> Any:
    """What `extend` was given, as one batch: a list (or range, or other iterable) is stacked, the rest is a batch."""
    if isinstance(data, TensorDictBase | Tensor | tuple | Mapping) or is_tensor_collection(data):
        return data
    try:
        items = [as_one(item, call) for item in data]
    except TypeError as error:
        raise TypeError(f"{call}: expected a tensordict, tensor, pytree or list of these, got {data!r}.") from error
    if not items:
        return None
    _check_alike(items, call)
    try:
        if is_tensor_collection(items[0]) or isinstance(items[0], Tensor):
            return torch.cat(items)
        return pytree.tree_map(lambda *parts: torch.cat(parts), items[0], *items[1:])
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{call}: the items of the list cannot be stacked into one batch ({error}). "
            "Rows of different shapes go into a LazyStackStorage."
        ) from error


def _check_alike(items: Sequence[Any], call: str) -> None:
    """Items that will be concatenated have the fields and dtypes of the first: `torch.cat` itself would promote."""
    first = _dtypes(items[0])
    for place, item in enumerate(items[1:], 1):
        given = _dtypes(item)
        if given == first:
            continue
        refusal = f"{call}: the items of the list cannot be stacked into one batch"
        if given.keys() != first.keys() or is_tensor_collection(item) != is_tensor_collection(items[0]):
            expected, got = (sorted(str(shown(key)) for key in fields) for fields in (first, given))
            raise ValueError(
                f"{refusal}: expected fields {expected} as in the first, got {got} in item {place}, "
                f"a {type(item).__name__}. Each item is one record; the fields of a batch go into a tuple or a dict."
            )
        key = next(key for key in first if first[key] != given[key])
        raise ValueError(
            f"{refusal}: expected {first[key]} for {shown(key)!r} as in the first, got {given[key]} in item {place}."
        )


def _dtypes(item: Any) -> dict[tuple, Any]:
    """The dtype of each field of a record; for one that is not a tensor, what it is."""
    leaves: dict[tuple, Any] = {}
    if is_tensor_collection(item):
        objects: dict[tuple, list] = {}
        _walk(item, (), leaves, objects)
        return {key: leaf.dtype for key, leaf in leaves.items()} | dict.fromkeys(objects, "not a tensor")
    for path, leaf in pytree.tree_flatten_with_path(item, is_leaf=is_tensor_collection)[0]:
        leaves[_place(path)] = getattr(leaf, "dtype", "not a tensor")
    return leaves


def as_one(data: Any, call: str) -> Any:
    """What `add` was given, as a batch of one."""
    if is_tensor_collection(data) or isinstance(data, Tensor):
        return data.unsqueeze(0)
    if isinstance(data, str | None):
        raise TypeError(
            f"{call}: this storage keeps tensors, got {data!r}. Put it into a tensordict, or use ListStorage."
        )
    return pytree.tree_map(lambda leaf: as_tensor(leaf, f"{call}: a record").unsqueeze(0), data)


def as_tensor(value: Any, what: str) -> Tensor:
    """A tensor, or what can become one; TypeError for anything else."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} must hold tensors or numbers, got {value!r}, a {type(value).__name__}.") from error


def device_of(batch: Any) -> torch.device:
    """Where the first tensor of a batch lies."""
    for leaf in batch.values(True, True) if is_tensor_collection(batch) else pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            return leaf.device
    return torch.device("cpu")


def structure_of(batch: Any, device: torch.device, call: str) -> Structure:
    """Learn the structure of a batch."""
    if is_tensor_collection(batch):
        return TensorDictStructure(batch, device, call)
    return PytreeStructure(batch, call)


class _Node(NamedTuple):
    """A (nested) tensordict: its tensorclass, if it is one, the batch dimensions it has beyond the record's, and its
    entries in order.
    """

    wrapper: Any
    tail: torch.Size
    entries: list[tuple[str, Any]]  # name -> leaf number, ~object number, or _Node


class TensorDictStructure:
    """Records of a tensordict or tensorclass with batch size ``[num, *rest]``."""

    cells = torch.Size()

    def __init__(self, batch: Any, device: torch.device, call: str) -> None:
        if not batch.batch_dims:
            raise ValueError(f"{call}: a batch needs a batch size, got batch_size=[]. One record is for add().")
        self.device = device
        self.leaves: list[LeafSpec] = []
        self.object_keys: list[tuple] = []
        self._root = self._learn(batch, (), call)
        self._leaf_keys = {leaf.key for leaf in self.leaves}
        self._object_keys = set(self.object_keys)

    def _learn(self, td: Any, path: tuple, call: str) -> _Node:
        entries: list[tuple[str, Any]] = []
        for name, value in td.items():
            key = (*path, name)
            if isinstance(value, Tensor):
                entries.append((name, len(self.leaves)))
                self.leaves.append(_leaf_of(key, value, call))
            elif is_non_tensor(value):
                entries.append((name, ~len(self.object_keys)))
                self.object_keys.append(key)
            else:
                entries.append((name, self._learn(value, key, call)))
        return _Node(None if isinstance(td, TensorDictBase) else type(td), td.batch_size[1:], entries)

    def flatten(self, batch: Any, device: torch.device, call: str) -> Rows:
        if not isinstance(batch, TensorDictBase) and not is_tensor_collection(batch):
            raise TypeError(f"{call}: the storage holds tensordicts, got {type(batch).__name__}.")
        if batch.batch_size[1:] != self._root.tail or not batch.batch_dims:
            expected, got = [*self._root.tail], [*batch.batch_size]
            if call == "add":  # which was given a record, and made a batch of one of it
                raise ValueError(f"add: a record has batch_size {expected}, got {got[1:]}. A batch is for extend().")
            remedy = "" if batch.batch_dims else " One record is for add()."
            raise ValueError(f"{call}: expected batch_size {['n', *expected]}, got {got}.{remedy}")
        leaves: dict[tuple, Tensor] = {}
        objects: dict[tuple, list] = {}
        _walk(batch, (), leaves, objects)
        if not batch.batch_size[0]:  # a tensordict makes a tensor of an empty list
            for key in self._object_keys & leaves.keys():
                if leaves[key].shape == (0,):
                    objects[key] = leaves.pop(key).tolist()
        if leaves.keys() != self._leaf_keys or objects.keys() != self._object_keys:
            self._explain(leaves, objects, call)
        num = batch.batch_size[0]
        return Rows(
            num,
            [check_value(leaf, leaves[leaf.key], num, device, call) for leaf in self.leaves],
            [own_copy(objects[key]) for key in self.object_keys],
        )

    def _explain(self, leaves: Mapping, objects: Mapping, call: str) -> None:
        given, stored = leaves.keys() | objects.keys(), self._leaf_keys | self._object_keys
        missing, extra = stored - given, given - stored
        if missing or extra:
            parts = [f"{word} {sorted(map(str, map(shown, keys)))}" for word, keys in
                     (("missing", missing), ("not stored", extra)) if keys]  # fmt: skip
            stored_keys = sorted(str(shown(key)) for key in stored)
            raise KeyError(f"{call}: fields must be those of the storage, {stored_keys}; {', '.join(parts)}.")
        changed = sorted(
            str(shown(key)) for key in (leaves.keys() & self._object_keys) | (objects.keys() & self._leaf_keys)
        )
        raise ValueError(f"{call}: fields {changed} must stay tensors or stay non-tensors, as first stored.")

    def build(self, values: Sequence[Tensor], objects: Sequence[list[Any]], shape: torch.Size) -> Any:
        if len(shape) != 1:
            values = [v.view((*shape, *leaf.shape)) for v, leaf in zip(values, self.leaves, strict=True)]
        return self._make(self._root, values, objects, shape)

    def _make(self, node: _Node, values: Sequence[Tensor], objects: Sequence[list[Any]], shape: torch.Size) -> Any:
        source: dict[Any, Any] = {}
        for name, entry in node.entries:
            if isinstance(entry, _Node):
                source[name] = self._make(entry, values, objects, shape)
            elif entry >= 0:
                source[name] = values[entry]
            else:
                source[name] = _non_tensor(objects[~entry], shape)
        batch_size = torch.Size((*shape, *node.tail)) if node.tail else shape
        td = TensorDict._new_unsafe(source=source, batch_size=batch_size, device=self.device)
        return td if node.wrapper is None else node.wrapper.from_tensordict(td)

    def redimensioned(self, dropped: int, added: torch.Size) -> TensorDictStructure:
        """The same fields, where records have ``dropped`` dimensions less in front, and then ``added`` ones."""

        def of(node: _Node) -> _Node:
            entries = [(name, of(entry) if isinstance(entry, _Node) else entry) for name, entry in node.entries]
            return _Node(node.wrapper, torch.Size((*added, *node.tail[dropped:])), entries)

        other = copy.copy(self)
        other.leaves, other._root = _redimensioned(self.leaves, dropped, added), of(self._root)
        return other


def _redimensioned(leaves: list[LeafSpec], dropped: int, added: torch.Size) -> list[LeafSpec]:
    return [leaf._replace(shape=torch.Size((*added, *leaf.shape[dropped:]))) for leaf in leaves]


def _walk(td: Any, path: tuple, leaves: dict[tuple, Tensor], objects: dict[tuple, list]) -> None:
    for name, value in td.items():
        if isinstance(value, Tensor):
            leaves[(*path, name)] = value
        elif is_non_tensor(value):
            objects[(*path, name)] = value.tolist()
        else:
            _walk(value, (*path, name), leaves, objects)


def _non_tensor(values: list[Any], shape: torch.Size) -> Any:
    if not shape:
        return NonTensorData(values[0])
    if not values:
        return NonTensorData(None, batch_size=shape)
    if len(shape) == 1:
        return NonTensorStack(*(NonTensorData(value) for value in values))
    step = len(values) // shape[0]
    return NonTensorStack(*(_non_tensor(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])))


def _place(path: Any) -> tuple:
    """Where a leaf of a pytree is, as the keys, numbers and names that lead to it."""
    return tuple(getattr(step, "key", getattr(step, "idx", getattr(step, "name", step))) for step in path)


class PytreeStructure:
    """Records that are nested dicts, lists and tuples of tensors (a single tensor is the smallest of them)."""

    object_keys: list[tuple] = []
    cells = torch.Size()

    def __init__(self, batch: Any, call: str) -> None:
        flat, self._spec = pytree.tree_flatten_with_path(batch, is_leaf=is_tensor_collection)
        self.leaves = []
        for path, value in flat:
            key = _place(path)
            if is_tensor_collection(value) or not isinstance(value, Tensor):
                raise TypeError(f"{call}: a pytree must hold tensors only, got {type(value).__name__} at {key}.")
            if not value.dim():
                raise ValueError(f"{call}: a batch needs a first dimension, got a scalar. One record is for add().")
            self.leaves.append(_leaf_of(key, value, call))
        if not self.leaves:
            raise ValueError(f"{call}: there is no tensor in {batch!r}.")

    def flatten(self, batch: Any, device: torch.device, call: str) -> Rows:
        flat, spec = pytree.tree_flatten(batch, is_leaf=is_tensor_collection)
        if spec != self._spec:
            self._explain(batch, call)
        first = torch.as_tensor(flat[0])
        if not first.dim():
            raise ValueError(f"{call}: a batch needs a first dimension, got a scalar. One record is for add().")
        num = first.size(0)
        return Rows(
            num, [check_value(leaf, v, num, device, call) for leaf, v in zip(self.leaves, flat, strict=True)], []
        )

    def _explain(self, batch: Any, call: str) -> None:
        expected = pytree.tree_unflatten([...] * len(self.leaves), self._spec)
        raise KeyError(
            f"{call}: expected a pytree like {expected}, got {self._skeleton(batch)}. A tuple holds the fields of a "
            "batch (or of a record); a list that is given to extend() holds records."
        )

    @staticmethod
    def _skeleton(tree: Any) -> Any:
        """A pytree with an ellipsis for each leaf."""
        if is_tensor_collection(tree):
            return type(tree).__name__
        return pytree.tree_map(lambda _: ..., tree, is_leaf=is_tensor_collection)

    def build(self, values: Sequence[Tensor], objects: Sequence[list[Any]], shape: torch.Size) -> Any:
        if len(shape) != 1:
            values = [v.view((*shape, *leaf.shape)) for v, leaf in zip(values, self.leaves, strict=True)]
        return pytree.tree_unflatten(values, self._spec)

    def redimensioned(self, dropped: int, added: torch.Size) -> PytreeStructure:
        """As that of a `TensorDictStructure`."""
        other = copy.copy(self)
        other.leaves = _redimensioned(self.leaves, dropped, added)
        return other
