"""The kernel of `draw_priorities` against its twin, bit for bit, in every mode."""

from __future__ import annotations

import torch

from tests.ops.cases import as_bytes
from tests.ops.test_draw_priorities import edge_masses, random_priorities, ranked_by
from tests.simt.records import cases
from torchrb.ops import reference


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("draw_priorities")
    for chance in cases("draw_priorities", mode):
        ranked = ranked_by(random_priorities(chance, chance.choice((1, 3, 16, 17, 257))), chance.choice((1.0, 0.6)))
        num, wide = chance.choice((0, 1, 40)), chance.random() < 0.5
        masses = None if chance.random() < 0.5 else edge_masses(chance, ranked, num)
        args = ranked.draw_args(chance.randrange(2**63), num, 0.7, masses, wide)
        slots = torch.full((num,), -7)
        weights = torch.full((num,), -7.0, dtype=torch.float64 if wide else torch.float32)
        draw = kernels.float64 if wide else kernels.float32
        draw(ranked.tree, ranked.records.capacity, args[0], masses, slots, weights, num, 0.7)
        assert as_bytes((slots, weights)) == as_bytes(list(reference.draw_priorities(*args)))
