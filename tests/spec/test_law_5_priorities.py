"""Law 5 for priorities: the same seed and history draw the same rows, on every path and however late it is drawn."""

from __future__ import annotations

import pytest
import torch

from torchrb import LazyTensorStorage, ListStorage, PrioritizedReplayBuffer


def filled(storage=LazyTensorStorage, **settings):
    settings = {"alpha": 0.6, "beta": 0.4} | settings
    rb = PrioritizedReplayBuffer(
        storage=storage(300), batch_size=8, generator=torch.Generator().manual_seed(5), **settings
    )
    rb.extend(torch.arange(280))
    rb.update_priority(torch.arange(280), ((torch.arange(280) * 7919) % 311).float() / 100)
    return rb


def drawn(rb):
    _, info = rb.sample(return_info=True)
    return info["index"].tolist(), info["priority_weight"].tolist()


PINNED = [
    [161, 245, 157, 42, 10, 200, 105, 23],
    [181, 230, 248, 174, 34, 21, 187, 265],
    [106, 113, 233, 82, 273, 77, 42, 58],
]
PINNED_LATER = (
    [116, 34, 3, 231, 28, 140, 66, 296],
    [
        0.2737448513507843,
        0.2708527445793152,
        0.25239068269729614,
        0.2547934055328369,
        0.25438469648361206,
        0.2642545700073242,
        0.2899133861064911,
        0.25239068269729614,
    ],
)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_draws_and_weights_are_the_pinned_ones(storage):
    """Computed once; every path and every processor must give them."""
    rb = filled(storage)
    assert [drawn(rb)[0] for _ in range(3)] == PINNED
    rb.extend(torch.arange(40))
    assert drawn(rb) == PINNED_LATER


def test_a_draw_takes_one_number_from_the_generator_and_no_more():
    first, second = filled(), filled()
    drawn(first)
    first.update_priority([3], [9.0])
    second.generator.manual_seed(5)
    torch.empty(1, dtype=torch.int64).random_(generator=second.generator)
    second.update_priority([3], [9.0])
    assert drawn(first) == drawn(second)


def test_each_write_counts_by_itself_whether_or_not_something_is_drawn_between():
    told = []
    for draws in (True, False):
        rb = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), batch_size=2)
        rb.extend(torch.arange(4))
        rb.update_priority(torch.arange(4), torch.tensor([10.0, 5.0, 2.0, 1.0]))
        for _ in range(2):
            rb.extend(torch.arange(1))
            if draws:
                rb.sample()
        told.append(rb.sampler.priorities(rb.storage).tolist())
    assert told[0] == told[1] == [5.0, 5.0, 2.0, 1.0]


def test_threads_of_torch_do_not_matter():
    told = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            told.append(drawn(filled()))
        finally:
            torch.set_num_threads(before)
    assert told[0] == told[1]
