"""Where the parts of a priority tree lie."""

import pytest
import torch

from torchrb.ops.priority_tree import PRIORITY_FAN, PriorityTree


@pytest.mark.parametrize("capacity", [0, 1, 15, 16, 17, 256, 257, 1000, 4096, 4097, 10**6, 2**32 - 1])
def test_the_parts_fill_the_tree_and_do_not_overlap(capacity):
    place = PriorityTree(capacity)
    parts = []
    for level, num in enumerate(place.entries):
        parts += [(place.sums[level], num), (place.most[level], num)]
        parts += [(place.least[level], num)] if level else []
    end = 0
    for begin, num in sorted(parts):
        assert begin == end and num % PRIORITY_FAN == 0
        end = begin + num
    assert end == place.size
    assert place.entries[0] >= capacity and place.entries[-1] == PRIORITY_FAN
    for below, above in zip(place.entries, place.entries[1:], strict=False):
        assert above * PRIORITY_FAN >= below


@pytest.mark.parametrize("capacity", [1, 16, 17, 300, 5000])
def test_an_empty_tree_has_no_rows(capacity):
    place = PriorityTree(capacity)
    tree = place.empty(torch.device("cpu"))
    assert tree.shape == (place.size,)
    for level, num in enumerate(place.entries):
        assert (tree[place.sums[level] :][:num] == 0).all()
        assert (tree[place.most[level] :][:num] == -1).all()
        assert level == 0 or (tree[place.least[level] :][:num] == torch.inf).all()


def test_what_it_takes_beside_the_rows_is_a_fifth():
    assert PriorityTree(10**6).size < 2.25 * 10**6
