"""What the pages say of pytrees: nested dicts, lists and tuples of tensors, in each of the storages of tensors, through
every call that reads and writes records.
"""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from torchrb import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, RoundRobinWriter, TensorStorage

Pair = collections.namedtuple("Pair", "tokens score")
STORAGES = {
    "lazy": lambda make: LazyTensorStorage(8),
    "columns": lambda make: LazyTensorStorage(8, layout="columns"),
    "memmap": lambda make: LazyMemmapStorage(8),
    "existing": lambda make: TensorStorage(make(range(8))),
}


def _n(numbers):
    return torch.tensor(list(numbers))


TREES = {
    "the page's": lambda i: {
        "a": _n(i)[:, None].expand(-1, 3) / 2,
        "b": {"c": (_n(i)[:, None], [-_n(i)])},
        30: _n(i) > 3,
    },
    "tuple": lambda i: (_n(i), [_n(i).double()[:, None]]),
    "list": lambda i: [_n(i), (_n(i).half(),)],
    "named tuple": lambda i: Pair(_n(i), {"deep": Pair(_n(i), _n(i)[:, None, None])}),
    "ordered": lambda i: collections.OrderedDict(z=_n(i), a=(_n(i),)),
    "tensor": _n,
}
FIRST = {"the page's": "a", "named tuple": "tokens", "ordered": "z"}
DEEP = {
    "the page's": ("b", "c", 1, 0),
    "tuple": (1, 0),
    "list": (1, 0),
    "named tuple": ("score", "deep", "tokens"),
    "ordered": ("a", 0),
    "tensor": (),
}
each_tree = pytest.mark.parametrize("tree", TREES)
each_storage = pytest.mark.parametrize("storage", STORAGES)


def leaf_at(tree, path):
    for step in path:
        tree = getattr(tree, step) if hasattr(tree, "_fields") else tree[step]
    return tree


def row(batch, at):
    return tree_map(lambda leaf: leaf[at], batch)


def alike(a, b):
    (a_leaves, a_spec), (b_leaves, b_spec) = tree_flatten(a), tree_flatten(b)
    if a_spec != b_spec:
        return False
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a_leaves, b_leaves, strict=True))


def buffer(storage, make, **kwargs):
    rb = ReplayBuffer(storage=STORAGES[storage](make), writer=RoundRobinWriter(track_generations=True), **kwargs)
    if storage == "existing":
        rb.empty()
    return rb


@each_tree
@each_storage
def test_pytrees_go_through_every_call(storage, tree):
    make = TREES[tree]
    rb = buffer(storage, make)
    assert rb.add(row(make([5]), 0)) == 0
    if tree != "list":  # whose root says: records
        assert rb.extend(make([6, 7])).tolist() == [1, 2]
    else:
        rb.extend([row(make([6]), 0), row(make([7]), 0)])
    assert alike(rb[:], make([5, 6, 7])) and alike(rb[1], row(make([6]), 0)) and alike(rb[[2, 0]], make([7, 5]))
    rb.extend([row(make([8]), 0), row(make([9]), 0)])
    assert alike(rb.read_all_in_order(4), make([5, 6, 7, 8]))
    rb[0] = row(make([1]), 0)
    rb[torch.tensor([4, 2])] = tuple(make([2, 3])) if tree == "tuple" else [row(make([2]), 0), row(make([3]), 0)]
    assert alike(rb[:], make([1, 6, 3, 8, 2]))
    rb.write_all([row(make([i]), 0) for i in (4, 5)])
    assert alike(rb[:], make([4, 5, 3, 8, 2]))
    batch, info = rb.sample(20, return_info=True)
    assert alike(batch, rb[info["index"]]) and tree_leaves(batch)[0].shape[0] == 20


@each_tree
@each_storage
def test_fields_of_pytrees_are_set_by_their_path_or_all_at_once(storage, tree):
    make = TREES[tree]
    rb = buffer(storage, make)
    index, generation = rb.extend([row(make([i]), 0) for i in range(4)], return_generations=True)
    if tree not in ("tensor", "list"):
        assert rb.update_(make(range(10, 14))) is rb
        assert alike(rb[:], make(range(10, 14)))
        result = rb.update_if_present(index=index[1:3], generation=generation[1:3] + _n([0, 1]), patch=make([20, 21]))
        assert result.updated.tolist() == [True, False] and alike(rb[:], make([10, 20, 12, 13]))
        rb.set_(FIRST.get(tree, 0), tree_leaves(make([1, 2, 3, 4]))[0])
        assert torch.equal(tree_leaves(rb[:])[0], tree_leaves(make([1, 2, 3, 4]))[0])
    path = DEEP[tree]
    before = leaf_at(rb[:], path)
    rb.set_at_(path, torch.zeros_like(before[:2]), [0, 3])
    after = leaf_at(rb[:], path)
    assert not after[[0, 3]].any() and torch.equal(after[1:3], before[1:3])


@each_storage
def test_all_below_a_key_is_set_together(storage):
    make = TREES["the page's"]
    rb = buffer(storage, make)
    rb.extend(make(range(4)))
    rb.set_("b", make(range(4, 8))["b"]).set_at_(("b", "c"), make([9])["b"]["c"], [1])
    assert alike(rb[:]["b"], make([4, 9, 6, 7])["b"]) and alike(rb[:]["a"], make(range(4))["a"])
    before = rb[:]
    with pytest.raises(KeyError, match=r"no field \('b', 'c', 2\) is stored"):
        rb.set_("b", {"c": (torch.zeros(4, 1, dtype=torch.int64), [_n(range(4))], torch.zeros(4))})
    with pytest.raises(ValueError, match=r"field \('b', 'c', 1, 0\) must have shape \[4\]"):
        rb.set_("b", {"c": (torch.zeros(4, 1, dtype=torch.int64), [_n(range(3))])})
    assert alike(rb[:], before)


@each_storage
def test_a_tuple_is_a_batch_and_a_list_is_records(storage):
    """The page's warning about `extend`."""
    rb = buffer(storage, lambda i: (_n(i), _n(i)))
    rb.extend((_n([1, 2, 3]), _n([4, 5, 6])))
    assert len(rb) == 3
    rb.extend([(torch.tensor(7), torch.tensor(8)), (torch.tensor(9), torch.tensor(10))])
    assert [leaf.tolist() for leaf in rb[:]] == [[1, 2, 3, 7, 9], [4, 5, 6, 8, 10]]
    with pytest.raises(KeyError, match=r"expected a pytree like \(Ellipsis, Ellipsis\), got Ellipsis. A tuple holds"):
        rb.extend([_n([1, 2, 3]), _n([4, 5, 6])])
    with pytest.raises(ValueError, match="Each item is one record; the fields of a batch go into a tuple or a dict"):
        rb.extend([_n([1, 2, 3]), [_n([4, 5, 6])]])
    assert len(rb) == 5


def test_existing_pytrees_are_records_from_the_start():
    for make in TREES.values():
        tree = make(range(5))
        rb = ReplayBuffer(storage=TensorStorage(tree))
        assert len(rb) == 5 and alike(rb[:], tree)
        rb.add(row(make([9]), 0))
        assert alike(rb[:], make([9, 1, 2, 3, 4]))
