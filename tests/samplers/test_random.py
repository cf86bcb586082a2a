"""Uniform draws: of live records only, each equally likely, the same for the same seed."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import STORAGES, buffer


def numbered(*numbers):
    return TensorDict({"n": torch.tensor(numbers)}, [len(numbers)])


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("stored", [1, 3, 8, 11])
def test_only_what_is_stored_is_drawn_and_all_of_it(kind, stored):
    rb = buffer(kind, 8, batch_size=400)
    rb.extend(numbered(*range(stored)))
    data, info = rb.sample(return_info=True)
    assert set(info["index"].tolist()) == set(range(min(stored, 8)))
    assert torch.equal(data["n"], torch.stack([rb[i]["n"] for i in info["index"].tolist()]))


def test_each_record_is_equally_likely_at_each_place():
    rb = buffer(capacity=5, batch_size=20_000)
    rb.extend(torch.arange(5))
    index = rb.sample(return_info=True)[1]["index"]
    for part in (index, index[::2], index[:5000]):
        share = torch.bincount(part, minlength=5) / len(part)
        assert (share - 0.2).abs().max() < 4 * (0.16 / len(part)) ** 0.5
    pairs = torch.bincount(index[::2] * 5 + index[1::2], minlength=25) / 10_000
    assert (pairs - 0.04).abs().max() < 4 * (0.04 / 10_000) ** 0.5


@pytest.mark.parametrize("size", [1, 7, 4096, 70_000])
def test_a_prefix_of_a_batch_does_not_depend_on_its_size(size):
    drawn = []
    for batch_size in (size, size + 3):
        rb = buffer(capacity=50)
        rb.extend(torch.arange(37))
        drawn.append(rb.sample(batch_size, return_info=True)[1]["index"])
    assert torch.equal(drawn[0], drawn[1][:size])


def test_the_same_seed_draws_the_same_on_every_storage_and_the_next_draw_differs():
    drawn = []
    for kind in STORAGES:
        rb = buffer(kind, 8, batch_size=16)
        rb.extend(numbered(*range(6)))
        drawn.append([rb.sample(return_info=True)[1]["index"].tolist() for _ in range(3)])
    assert all(each == drawn[0] for each in drawn)
    assert drawn[0][0] != drawn[0][1] != drawn[0][2]


def test_after_emptying_only_new_records_are_drawn():
    rb = buffer(capacity=8, batch_size=64)
    rb.extend(torch.arange(8))
    rb.empty()
    rb.extend(torch.arange(100, 102))
    assert set(rb.sample().tolist()) == {100, 101}
