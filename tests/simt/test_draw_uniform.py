"""The kernel of `draw_uniform` against its twin, bit for bit, in every mode."""

from __future__ import annotations

import torch

from tests.simt.records import EDGES, cases
from torchrb.ops import reference
from torchrb.ops.schemas import CONTROL_LENGTH, CONTROL_SIZE


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("draw_uniform")
    for chance in cases("draw_uniform", mode):
        seed = torch.tensor([chance.choice((0, -1, 2**63 - 1, chance.randint(-(2**63), 2**63 - 1)))])
        control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
        control[CONTROL_LENGTH] = chance.choice((1, 2, 3, 1000, 2**31, 2**32 - 1))
        num = chance.choice((*EDGES, 1000))
        slots = torch.full((num,), -7)
        kernels.draw_uniform(seed, control, slots, num)
        assert slots.tolist() == reference.draw_uniform(seed, control, num).tolist()
