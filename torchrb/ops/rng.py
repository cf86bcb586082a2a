"""Counter-based random numbers: a value is a pure function of (seed, stream, counter), so any number of threads on any
device computes the same one. The C++ and CUDA counterparts are ``csrc/core/rng.h`` and ``csrc/core/permutation.h``.

The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
"""

from __future__ import annotations

import torch
from torch import Tensor

PERMUTATION, EXTRA_GROUPS, EXTRA_ROWS, UNIFORM, PRIORITY = range(5)
FIRST_ROW_STREAM = 16  # + how often the batch drew the same group before

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_HALF_BITS = 31
_ROUNDS = 12
_TABLE_BITS = 12
_MIN_BITS = 6  # a permutation of a tiny set walks inside one of 64 elements, where twelve rounds mix well


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix64(x: Tensor) -> Tensor:
    """A bijection of int64 (seen as 64 bits) that scatters its input."""
    x = (x ^ shift_right(x, 30)) * _MIX_1
    x = (x ^ shift_right(x, 27)) * _MIX_2
    return x ^ shift_right(x, 31)


def random64(seed: Tensor, stream: int | Tensor, counter: Tensor) -> Tensor:
    """64 random bits for each counter; ``seed`` is int64 ``[1]``."""
    key = mix64(seed + _GOLDEN * (torch.as_tensor(stream, device=seed.device) + 1))
    return mix64(key + _GOLDEN * counter)


def below(bits: Tensor, n: Tensor | int) -> Tensor:
    """Map 64 random bits to ``[0, n)``, ``n < 2**32``, using the upper 62 of them as a fraction."""
    high, low = shift_right(bits, 64 - _HALF_BITS), shift_right(bits, 2) & ((1 << _HALF_BITS) - 1)
    return (high * n + ((low * n) >> _HALF_BITS)) >> _HALF_BITS


def permute(seed: Tensor, x: Tensor, n: int) -> Tensor:
    """The images of ``x`` (int64, in ``[0, n)``) under the permutation of ``[0, n)`` that ``seed`` selects.

    A Feistel network of alternating halves on the next power of two, walked until the image falls below ``n``
    (Black, Rogaway: Ciphers with Arbitrary Finite Domains, 2002). O(1) for each image.
    """
    if n == 1:
        return torch.zeros_like(x)
    bits = _bits_of(n)
    if bits <= _TABLE_BITS:  # a long walk in a small set: one step of every element at once, then look-ups
        step = _feistel(seed, torch.arange(1 << bits, device=x.device), bits).tolist()
        images = []
        for image in x.tolist():
            image = step[image]
            while image >= n:
                image = step[image]
            images.append(image)
        return torch.tensor(images, dtype=torch.int64, device=x.device)
    outside = torch.ones_like(x, dtype=torch.bool)
    while bool(outside.any()):
        x = torch.where(outside, _feistel(seed, x, bits), x)
        outside = x >= n
    return x


def permuted(seed: Tensor, first: int, num: int, n: int) -> Tensor:
    """What `permute` gives for the places from ``first`` on: of many places, only those walk on that have to."""
    images = _feistel(seed, torch.arange(first, first + num, device=seed.device), _bits_of(n))
    while (outside := torch.nonzero(images >= n).view(-1)).numel():
        images[outside] = _feistel(seed, images[outside], _bits_of(n))
    return images


def _bits_of(n: int) -> int:
    """The bits of the network for a set of ``n``."""
    return max(_MIN_BITS, (n - 1).bit_length())


def _feistel(seed: Tensor, x: Tensor, bits: int) -> Tensor:
    """A bijection of ``[0, 2**bits)``."""
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    keys = random64(seed, PERMUTATION, torch.arange(_ROUNDS, device=seed.device))
    low, high = x & low_mask, x >> low_bits
    for round_ in range(0, _ROUNDS, 2):
        low = low ^ (mix64(high + keys[round_]) & low_mask)
        high = high ^ (mix64(low + keys[round_ + 1]) & high_mask)
    return (high << low_bits) | low
