"""Where what is in a priority tree lies. The C++ counterpart is ``csrc/core/priority_tree.h``."""

from __future__ import annotations

import torch
from torch import Tensor

PRIORITY_FAN = 16  # children of a node


class PriorityTree:
    """Where what is in a priority tree lies: float64, of the size `size`.

    Rows are the entries of level 0; an entry of a higher level is a node, which speaks for `PRIORITY_FAN` entries of
    the level below; the last level has so many entries. Each level is padded to a multiple of that. ``sums[level]``:
    where a level's sums begin; a row's own is its weight, ``(priority + eps) ** alpha``. ``most[level]``: the same of
    the greatest priority, a row's own being its priority and -1 for no row. ``least[level]``: of the smallest positive
    weight, infinity for none; rows have no such entry but their weight.

    A node's sum is that of four sums of four, ``((a + b) + (c + d)) + ...``, in every implementation: so draws are the
    same bits everywhere, and a sum never drifts, as it is always computed from the entries below.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.entries = capacity, [_padded(capacity)]
        while self.entries[-1] > PRIORITY_FAN:
            self.entries.append(_padded(self.entries[-1] // PRIORITY_FAN))
        begins = [0]
        for part in (self.entries, self.entries, self.entries[1:]):
            for num in part:
                begins.append(begins[-1] + num)
        levels = len(self.entries)
        self.sums, self.most = begins[:levels], begins[levels : 2 * levels]
        self.least = [self.sums[0], *begins[2 * levels : -1]]
        self.size = begins[-1]

    def empty(self, device: torch.device) -> Tensor:
        """A tree of no rows."""
        with torch.inference_mode(False):
            tree = torch.zeros(self.size, dtype=torch.float64, device=device)
            end = self.least[1] if len(self.entries) > 1 else self.size
            tree[self.most[0] : end] = -1
            tree[end:] = torch.inf
            return tree


def _padded(num: int) -> int:
    return -(-max(num, 1) // PRIORITY_FAN) * PRIORITY_FAN
