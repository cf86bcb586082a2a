"""The kernel of `draw_permuted` against its twin, bit for bit, in every mode."""

from __future__ import annotations

import torch

from tests.simt.records import EDGES, cases
from torchrb.ops import reference


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("draw_permuted")
    for chance in cases("draw_permuted", mode):
        seed = torch.tensor([chance.choice((0, -1, 2**63 - 1, chance.randint(-(2**63), 2**63 - 1)))])
        size = chance.choice((1, 2, 63, 64, 65, 1000, 2**31 + 1, 2**32 - 1))
        num = min(size, chance.choice((*EDGES, 1000)))
        first = chance.randint(0, size - num)
        slots = torch.full((num,), -7)
        kernels.draw_permuted(seed, slots, size, first, num)
        assert slots.tolist() == reference.draw_permuted(seed, size, first, num).tolist()
