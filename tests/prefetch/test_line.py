"""A line draws what its scene would draw next, and hands each batch over once, to whom it belongs."""

from __future__ import annotations

import torch

from torchrb import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrb.prefetch.line import Line


def started(transforms=True, **kwargs):
    rb = ReplayBuffer(
        storage=LazyTensorStorage(9), batch_size=3, generator=torch.Generator().manual_seed(2),
        sampler=SamplerWithoutReplacement(), **kwargs,
    )  # fmt: skip
    rb.extend(torch.arange(9))
    return rb, Line(rb, rb._scene(3), rb.sampler.fork(rb.storage), transforms, False)


def test_batches_come_in_order_and_move_on_what_they_were_drawn_with():
    rb, line = started(transform=lambda x: -x)
    alone, _ = started(transform=lambda x: -x)
    for _ in range(4):
        line.advance()
    assert rb.stats()["pass_drawn"] == 0 and torch.equal(
        rb.generator.get_state(), torch.Generator().manual_seed(2).get_state()
    )
    for _ in range(4):
        batch = line.next_for(rb._scene(3), rb.generator)
        assert batch.ready.is_set() and batch.data.tolist() == alone.sample().tolist()
        assert rb.stats() == alone.stats() and torch.equal(rb.generator.get_state(), alone.generator.get_state())
    assert line.next_for(rb._scene(3), rb.generator) is None


def test_a_batch_that_is_not_wanted_stays_and_moves_nothing():
    rb, line = started()
    line.advance()
    stats, state = rb.stats(), rb.generator.get_state()
    assert line.next_for(rb._scene(2), rb.generator) is None
    assert line.next_for(rb._scene(3), torch.Generator().manual_seed(3)) is None
    assert rb.stats() == stats and torch.equal(rb.generator.get_state(), state) and len(line.batches) == 1
    assert line.next_for(rb._scene(3), rb.generator) is not None


def test_transforms_that_stay_at_the_call_are_left_to_it():
    rb, line = started(transforms=False, transform=lambda x: 1 / 0)
    line.advance()
    batch = line.next_for(rb._scene(3), rb.generator)
    assert batch.ready.is_set() and batch.data is batch.error is None and batch.draw.data.shape == (3,)


def test_nothing_is_drawn_once_it_would_be_of_no_use():
    for end in ("write", "over", "gone"):
        rb, line = started()
        line.advance()
        if end == "write":
            rb.add(torch.tensor(5))
        elif end == "over":
            line.over = True
        else:
            del rb
        line.advance()
        assert len(line.batches) == 1


def test_a_draw_that_fails_ends_the_line_and_tells_nobody():
    rb, _ = started()
    rb.sampler.drop_last = True
    line = Line(rb, rb._scene(30), rb.sampler.fork(rb.storage), True, False)
    line.advance()
    assert line.over and not line.batches
