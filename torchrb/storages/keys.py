"""Canonical words of a group key: equal exactly where the values are equal, on every backend.

Numbers become one int64 word an element: integers and bools sign-extended, floats as the bits of their float64 with
-0.0 as 0.0. Strings, None, and ragged tensors become two words of a 128-bit BLAKE2b digest of their canonical bytes
(RFC 7693): at that length equal digests mean equal values, and no table of the values has to be kept.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

DIGEST_WORDS = 2


def number_words(values: Tensor, key: Any) -> Tensor:
    """``[n, ...]`` to int64 ``[n, w]``. ValueError when a float key is NaN, which equals nothing, itself included."""
    flat = values.reshape(values.shape[0], -1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten(1)
    if flat.is_floating_point():
        wide = flat.to(torch.float64)
        if bool(wide.isnan().any()):
            row = int(torch.nonzero(wide.isnan().any(dim=1))[0])
            raise ValueError(f"PromptGroupSampler: group key {key!r} is NaN in row {row} of those stored; NaN is no group.")
        return torch.where(wide == 0, 0.0, wide).view(torch.int64)
    return flat.view(torch.int64) if flat.dtype == torch.uint64 else flat.to(torch.int64)


def value_words(value: Any, key: Any) -> tuple[int, int]:
    """Two words of one Python value or one ragged row: str, bytes, None, numbers, tensors, and sequences of these."""
    digest = hashlib.blake2b(_canonical(value, key), digest_size=8 * DIGEST_WORDS).digest()
    return struct.unpack(f"<{DIGEST_WORDS}q", digest)  # type: ignore[return-value]


def _canonical(value: Any, key: Any) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, int):
        return b"i" + int(value).to_bytes(16, "little", signed=True)
    if isinstance(value, float):
        if value != value:
            raise ValueError(f"PromptGroupSampler: group key {key!r} is NaN in a stored record; NaN is no group.")
        return b"f" + struct.pack("<d", value + 0.0)
    if isinstance(value, list | tuple):
        parts = [_canonical(item, key) for item in value]
        return b"l" + b"".join(struct.pack("<q", len(part)) + part for part in parts)
    raise TypeError(
        f"PromptGroupSampler: group key {key!r} must hold numbers, strings, None or sequences of these, "
        f"got {type(value).__name__}."
    )
