"""What a record is, in JSON: a file that keeps rows says so by it, and nothing that it says is executed.

`describe` takes a structure, `structure_from` makes one of what is read back. Classes (tensorclasses, named tuples) are
named only: whoever reads must have imported them, as a file that imports is a file that runs code.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, is_non_tensor, is_tensor_collection, is_tensorclass
from torch import Tensor

from torchrb.storages.cells import structure_with
from torchrb.storages.records import STORABLE_DTYPES
from torchrb.storages.structure import Structure
from torchrb.storages.values import from_json, to_json

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STORABLE_DTYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DEEPEST = 200  # levels of nesting; Python itself gives up at some more


def example_of(structure: Structure) -> Any:
    """A batch of no records."""
    with torch.inference_mode(False):
        values = [torch.empty((0, *leaf.shape), dtype=leaf.dtype) for leaf in structure.leaves]
        return structure.build(values, [[] for _ in structure.object_keys], torch.Size([0]))


def describe(structure: Structure, call: str) -> Any:
    """JSON of a structure. TypeError when its classes cannot be found again by their names."""
    told = _described(example_of(structure), call)
    return {"cells": [*structure.cells], "cell": told} if structure.cells else told


def structure_from(description: Any, device: torch.device, call: str) -> Structure:
    """The structure that was described. ValueError for what is no description, TypeError for an unknown class."""
    try:
        cells = cells_in(description, call)
        example = _example(description["cell"] if cells else description, call, 0)
        if is_non_tensor(example):
            raise ValueError(f"{call}: what a record is cannot be read from the file.")
        return structure_with(cells, example, device, call)
    except (KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{call}: what a record is cannot be read from the file ({error!r}).") from error


def cells_in(description: Any, call: str) -> torch.Size:
    """The cells of a record that was described."""
    cells = description.get("cells", []) if isinstance(description, dict) else []
    return torch.Size(_shape(cells, call))


def _described(part: Any, call: str) -> Any:
    if isinstance(part, Tensor):
        return {"tensor": _NAMES[part.dtype], "shape": [*part.shape[1:]]}
    if is_non_tensor(part):
        return {"object": True}
    if is_tensor_collection(part):
        kind = {} if isinstance(part, TensorDict) else {"class": _name_of(type(part), call)}
        entries = [[name, _described(value, call)] for name, value in part.items()]
        return {"tensordict": entries, "tail": [*part.batch_size[1:]], **kind}
    if type(part) in (dict, OrderedDict):
        entries = [[to_json(key, f"{call}: a key"), _described(value, call)] for key, value in part.items()]
        return {"dict": entries, "ordered": type(part) is OrderedDict}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return {"named": [_described(item, call) for item in part], "class": _name_of(type(part), call)}
    if type(part) in (list, tuple):
        return {type(part).__name__: [_described(item, call) for item in part]}
    raise TypeError(
        f"{call}: a record on disk is made of tensordicts, tensorclasses, dicts, lists, tuples and tensors, got a "
        f"{type(part).__name__}."
    )


def _example(told: Any, call: str, depth: int) -> Any:
    if not isinstance(told, dict) or depth > _DEEPEST:
        raise ValueError(f"{call}: what a record is cannot be read from the file.")
    if "tensor" in told:
        return torch.empty((0, *_shape(told["shape"], call)), dtype=_DTYPES[told["tensor"]])
    if "object" in told:
        return NonTensorData(None, batch_size=[0])
    if "tensordict" in told:
        source = {name: _example(value, call, depth + 1) for name, value in told["tensordict"]}
        td = TensorDict(source, [0, *_shape(told["tail"], call)])
        return _class_of(told["class"], is_tensorclass, call).from_tensordict(td) if "class" in told else td
    if "dict" in told:
        entries = [(from_json(key), _example(value, call, depth + 1)) for key, value in told["dict"]]
        return OrderedDict(entries) if told["ordered"] else dict(entries)
    if "named" in told:
        items = [_example(item, call, depth + 1) for item in told["named"]]
        return _class_of(told["class"], _is_named_tuple, call)._make(items)
    items = [_example(item, call, depth + 1) for item in told["list" if "list" in told else "tuple"]]
    return items if "list" in told else tuple(items)


def _shape(sizes: Any, call: str) -> list[int]:
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size < 2**48 for size in sizes):
        raise ValueError(f"{call}: {sizes!r} in the file is no shape.")
    return sizes


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _name_of(kind: type, call: str) -> list[str]:
    name = [kind.__module__, kind.__qualname__]
    if _found(name) is not kind:
        raise TypeError(
            f"{call}: records on disk cannot be of {kind.__qualname__}, as nobody would find that class again. "
            "Define it at the top of a module."
        )
    return name


def _class_of(name: Any, is_right: Any, call: str) -> Any:
    if not isinstance(name, list) or len(name) != 2 or not all(isinstance(part, str) for part in name):
        raise ValueError(f"{call}: {name!r} in the file names no class.")
    kind = _found(name)
    if kind is None or not is_right(kind):
        raise TypeError(
            f"{call}: the records are of {name[1]} in the module {name[0]}, and nothing is imported for a file. "
            "Import that module first."
        )
    return kind


def _found(name: list[str]) -> Any:
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
