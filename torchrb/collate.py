"""How a list of records becomes a batch when nobody says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from tensordict import is_tensor_collection

_NUMBERS = (bool, int, float, complex, np.generic)


def stack_records(records: Any) -> Any:
    """Stack a list of records: tensors, arrays, numbers, tensordicts, and pytrees of these leaf by leaf.

    Records that cannot be stacked (strings, None, different shapes or structures) stay a list; anything that is not a
    list is returned as it is.

    >>> stack_records([1, 2])
    tensor([1, 2])
    >>> stack_records([1, "a"])
    [1, 'a']
    """
    if not isinstance(records, list) or not records:
        return records
    try:
        return _stacked(records)
    except (TypeError, ValueError, RuntimeError):
        return records


def _stacked(records: list[Any]) -> Any:
    first = records[0]
    if isinstance(first, torch.Tensor) or is_tensor_collection(first):
        return torch.stack(records)
    if isinstance(first, np.ndarray):
        return torch.stack([torch.as_tensor(record) for record in records])
    if isinstance(first, _NUMBERS):
        if any(type(record) is not type(first) for record in records):
            raise TypeError("numbers of several types")
        return torch.tensor(records)
    if isinstance(first, dict | list | tuple) and first:
        flat, spec = pytree.tree_flatten(first, is_leaf=is_tensor_collection)
        rows = [flat]
        for record in records[1:]:
            other, other_spec = pytree.tree_flatten(record, is_leaf=is_tensor_collection)
            if other_spec != spec:
                raise ValueError("records of different structures")
            rows.append(other)
        return pytree.tree_unflatten([_stacked(list(leaf)) for leaf in zip(*rows, strict=True)], spec)
    raise TypeError(f"{type(first).__name__} cannot be stacked")
