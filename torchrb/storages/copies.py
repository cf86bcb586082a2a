"""Copies in, copies out: what a storage of Python objects keeps belongs to nobody else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from tensordict import is_tensor_collection
from torch.overrides import TorchFunctionMode

_IMMUTABLE = frozenset({str, bytes, int, float, complex, bool, type(None)})  # of exactly these types


class _Detached(TorchFunctionMode):
    """Copies the tensors that `copy.deepcopy` meets as `own_copy` does: torch itself refuses those with a graph."""

    def __init__(self, device: torch.device | None) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().to(device=self._device, copy=True)
        return memo[id(tensor)]


def _deep_copy(value: Any, device: torch.device | None) -> Any:
    with torch.no_grad(), _Detached(device):
        return copy.deepcopy(value)


def own_copy(value: Any, device: torch.device | None = None) -> Any:
    """A copy that shares no memory and no graph with ``value``; tensors go to ``device`` when one is given.

    Containers are copied with all they hold; any other object by `copy.deepcopy`, with the tensors in it.
    """
    if type(value) in _IMMUTABLE:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().to(device=device, copy=True)
    if is_tensor_collection(value):
        own = value.detach().clone()
        return own if device is None else own.to(device)
    if isinstance(value, np.ndarray | np.generic):
        return _deep_copy(value, device) if value.dtype.hasobject else value.copy()
    if type(value) in (list, tuple, set):
        return type(value)(own_copy(item, device) for item in value)
    if type(value) is dict:
        return {key: own_copy(item, device) for key, item in value.items()}
    items, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
    if spec.is_leaf():
        return _deep_copy(value, device)
    return pytree.tree_unflatten([own_copy(item, device) for item in items], spec)  # named tuples, ordered dicts
