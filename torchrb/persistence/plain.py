"""Values as trees of dicts (with strings for keys), lists, tensors, numbers, bools, strings and None, and back.

That is what a saved state is made of, in memory and on disk. Tensors, numbers, bools, strings, None and lists stand for
themselves; anything else is a dict with a ``"type"``. Nothing in a tree names code to be run: a tensorclass is found
among those that the process has imported, or refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
    lazy_stack,
)
from torch import Tensor

_THEMSELVES = frozenset({str, int, float, bool, type(None)})  # of exactly these types
_TENSORS = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer, MemoryMappedTensor})
_QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}


def plain(value: Any, where: str) -> Any:
    """The tree of a value: a tensor, tensordict, tensorclass, number, string, None, or dict, list or tuple of these.

    Tensors in it are the value's own, detached. TypeError for anything else, which names it and, after ``where``, its
    place.
    """
    if type(value) in _THEMSELVES:
        return value
    if type(value) in _TENSORS:
        return _plain_tensor(value, where)
    if type(value) is list:
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if type(value) is tuple:
        return {"type": "tuple", "items": [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]}
    if type(value) is dict:
        items = [[plain(key, f"{where} key {key!r}"), plain(item, f"{where}[{key!r}]")] for key, item in value.items()]
        return {"type": "dict", "items": items}
    if type(value) is complex:
        return {"type": "complex", "parts": [value.real, value.imag]}
    if is_non_tensor(value):
        return {"type": "values", "batch_size": [*value.batch_size], "values": plain(value.tolist(), where)}
    if isinstance(value, LazyStackedTensorDict):
        rows = [plain(row, f"{where}[{place}]") for place, row in enumerate(value.tensordicts)]
        return {"type": "stack", "dim": value.stack_dim, "rows": rows}
    if is_tensor_collection(value) and (isinstance(value, TensorDict) or is_tensorclass(value)):
        return _plain_tensordict(value, where)
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved: {_short(value)}. "
        "Only tensors, tensordicts, numbers, strings, None, and dicts, lists and tuples of these can. Convert it."
    )


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # its own code
        text = "..."
    return text if len(text) <= 80 else text[:77] + "..."


def _plain_tensor(value: Tensor, where: str) -> Tensor:
    if value.is_nested or value.is_meta or value.layout != torch.strided or value.dtype in _QUANTIZED:
        kind = "nested" if value.is_nested else str(value.layout)
        raise TypeError(
            f"{where} is a tensor that cannot be saved: {kind}, {value.dtype}, on {value.device}. Make it a dense one."
        )
    value = value.detach()
    return value if type(value) is Tensor else value.as_subclass(Tensor)


def _plain_tensordict(value: Any, where: str) -> dict[str, Any]:
    entries = [[name, plain(entry, f"{where}[{name!r}]")] for name, entry in value.items()]
    kind = None if isinstance(value, TensorDictBase) else f"{type(value).__module__}:{type(value).__qualname__}"
    device = None if value.device is None else value.device.type
    return {
        "type": "tensordict", "class": kind, "batch_size": [*value.batch_size], "device": device, "entries": entries
    }  # fmt: skip


def restored(tree: Any, where: str) -> Any:
    """The value of a tree, with its very tensors. ValueError for what is none, which says where."""
    if type(tree) in _THEMSELVES or isinstance(tree, Tensor):
        return tree
    if isinstance(tree, list):
        return [restored(item, f"{where}[{place}]") for place, item in enumerate(tree)]
    try:
        build = _BUILDERS[tree["type"]]
    except (TypeError, KeyError):
        raise _Refused(f"{where} is not a saved value: {_short(tree)}.") from None
    try:
        return build(tree, where)
    except _Refused:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise _Refused(f"{where} is not a saved {tree['type']}: {type(error).__name__}: {error}") from error


class _Refused(ValueError):
    """Says where the tree is wrong."""


def _tuple(tree: dict[str, Any], where: str) -> tuple[Any, ...]:
    return tuple(restored(tree["items"], where))


def _dict(tree: dict[str, Any], where: str) -> dict[Any, Any]:
    return {restored(key, where): restored(item, f"{where}[{key!r}]") for key, item in tree["items"]}


def _complex(tree: dict[str, Any], where: str) -> complex:
    real, imaginary = tree["parts"]
    return complex(real, imaginary)


def _values(tree: dict[str, Any], where: str) -> Any:
    return _non_tensor(restored(tree["values"], where), [*map(int, tree["batch_size"])])


def _non_tensor(values: Any, batch_size: list[int]) -> Any:
    if not batch_size:
        return NonTensorData(values)
    if len(values) != batch_size[0]:
        raise ValueError(f"{len(values)} values for a batch of {batch_size}")
    if not values:
        return NonTensorData(None, batch_size=batch_size)
    return NonTensorStack(*(_non_tensor(value, batch_size[1:]) for value in values))


def _stack(tree: dict[str, Any], where: str) -> Any:
    return lazy_stack(restored(tree["rows"], where), tree["dim"])


def _tensordict(tree: dict[str, Any], where: str) -> Any:
    entries = {}
    for name, entry in tree["entries"]:
        value = restored(entry, f"{where}[{name!r}]")
        if not isinstance(name, str) or not (isinstance(value, Tensor) or is_tensor_collection(value)):
            raise _Refused(f"{where}[{name!r}] is a {type(value).__name__}, and no entry of a tensordict.")
        entries[name] = value
    batch_size = [*map(int, tree["batch_size"])]
    kind = None if tree["class"] is None else _tensorclass(tree["class"], where)
    made = TensorDict(entries, batch_size, device="cpu" if tree["device"] is not None else None)
    return made if kind is None else kind.from_tensordict(made)


def _tensorclass(name: str, where: str) -> Any:
    """A tensorclass that this process knows."""
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if found is not None else None
    if not (isinstance(found, type) and is_tensorclass(found)):
        raise _Refused(
            f"{where} is a tensorclass {name!r}, which this process does not know. A file is never asked for code: "
            f"import {module} before loading."
        )
    return found


_BUILDERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "tuple": _tuple,
    "dict": _dict,
    "complex": _complex,
    "values": _values,
    "stack": _stack,
    "tensordict": _tensordict,
}


def copied(tree: Any) -> Any:
    """The same tree, sharing no memory with it."""
    if isinstance(tree, Tensor):
        return tree.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(tree, list):
        return [copied(item) for item in tree]
    return {key: copied(item) for key, item in tree.items()} if isinstance(tree, dict) else tree
