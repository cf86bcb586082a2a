"""Everything that a failed call must have left as it was."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tensordict import is_tensor_collection

from torchrb import ReplayBuffer


def snapshot(rb: ReplayBuffer) -> dict[str, Any]:
    """The whole state of a buffer, by name: bytes of the rows, counters, journal, structure, parts, random numbers."""
    storage = rb.storage
    state: dict[str, Any] = {
        "tables": [table.clone() for table in storage.tables],
        "control": storage.control.clone(),
        "journal": storage.journal.clone(),
        "capacity": storage.max_size,
        "parts": [id(part) for part in (rb.storage, rb.sampler, rb.writer)],
        "batch_size": rb.batch_size,
        "generator": rb.generator.get_state() if rb.generator is not None else None,
        "global generator": torch.get_rng_state(),
        "length": len(rb),
        "write_count": rb.write_count,
        "generations": rb.writer.generations_of(torch.arange(len(rb) + 2)),
    }
    structure = getattr(storage, "structure", None)
    if structure is not None:
        state["structure"] = [list(structure.leaves), list(structure.object_keys)]
    for name in ("_objects", "_items"):
        if hasattr(storage, name):
            state[name] = copy.deepcopy(getattr(storage, name))
    return state


def assert_unchanged(before: dict[str, Any], rb: ReplayBuffer) -> None:
    after = snapshot(rb)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert same(value, after[name]), f"{name} changed: {value} became {after[name]}"


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, shape and every bit of value; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b)
    if is_tensor_collection(a):
        keys = list(a.keys(True, True))
        return keys == list(b.keys(True, True)) and all(same(a[key], b[key]) for key in keys)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b or a is b


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
