"""Words of a group key that is not a number: equal exactly where the values are equal.

Strings, None, and rows of any length become two words, a 128-bit BLAKE2b digest of their canonical bytes (RFC 7693):
at that length equal digests mean equal values, and no table of the values has to be kept. (Numbers of a fixed shape
need no digest; the op `group_index_update_` reads them.)
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
from torch import Tensor

DIGEST_WORDS = 2


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
        return b"i" + int(value).to_bytes(max(16, value.bit_length() // 8 + 1), "little", signed=True)
    if isinstance(value, float):
        if value != value:
            raise ValueError(
                f"PromptGroupSampler: group key {key!r} is NaN in a stored record, and NaN is no group. Group by an id."
            )
        return b"f" + struct.pack("<d", value + 0.0)
    if isinstance(value, list | tuple):
        parts = [_canonical(item, key) for item in value]
        return b"l" + b"".join(struct.pack("<q", len(part)) + part for part in parts)
    raise TypeError(
        f"PromptGroupSampler: group key {key!r} must hold numbers, strings, None or sequences of these, "
        f"got {type(value).__name__}."
    )
