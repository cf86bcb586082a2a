"""Storages of several dimensions: what torchrl stores, shows and answers, wherever it does.

Not compared, as torchrl is wrong there: it stores an ``"index"`` of slots with tensordicts and shows that in ``rb[:]``
(here the coordinates of each cell); `write_all` and ``rb[:] =`` fail before the storage is full; an int index of a
buffer with ``dim_extend > 0`` fails; `TensorStorage` of several dimensions cannot be read; B of other sizes is
broadcast where it happens to fit, and so are scalars in `add`; `add` of a `TensorDictReplayBuffer` fails, and so does
`extend` of a single record, or of more than there is room for as the first batch; and its ``max_size`` counts the
elements of plain tensors.
"""

from __future__ import annotations

import random

import pytest
import torch
from tensordict import TensorDict

from tests.parity.peer import both, outcome

CELLS = {2: (3,), 3: (2, 2)}


def made(lib, ndim, size, dim, **kwargs):
    writer = lib.TensorDictRoundRobinWriter(track_generations=True)
    options = {} if dim is None else {"dim_extend": dim}
    return lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(size, ndim=ndim), writer=writer, batch_size=6, **options, **kwargs
    )


def steps(first, num, ndim, dim):
    """Records ``first``, ``first + 1``, ... along ``dim``; every cell tells another number."""
    cells = CELLS[ndim]
    size = torch.Size(cells).numel()
    numbers = torch.arange(first * size, (first + num) * size).view(num, *cells).transpose(0, dim)
    fields = {"x": numbers, "in": {"wide": numbers[..., None].expand(*numbers.shape, 2).float()}}
    return TensorDict(fields, numbers.shape)


def seen(rb):
    kept = rb.storage[:]
    told = {
        "len": len(rb),
        "write_count": rb.write_count,
        "max_size": rb.storage.max_size,
        "size": [rb.stats()[name] for name in ("size", "capacity", "utilization")],
        "generations": rb.writer.generations_of(torch.arange(8)).tolist(),
        "kept": [kept["x"].tolist(), kept["in", "wide"].tolist()],
        "shown": rb[:]["x"].tolist(),
        "shape": tuple(rb[:].batch_size),
    }
    batch, info = rb.sample(return_info=True)
    at = info["index"]
    told["types"] = [type(at), len(at), at[0].dtype, tuple(at[0].shape), tuple(batch["index"].shape)]
    assert torch.equal(kept["x"][at], batch["x"]) and torch.equal(torch.stack(at, -1), batch["index"])
    assert torch.equal(rb.writer.generations_of(batch["index"]), batch["index_generation"])
    assert torch.equal(rb.writer.generations_of(at), batch["index_generation"])
    return told


@pytest.mark.parametrize(("ndim", "dim"), [(2, None), (2, 0), (2, 1), (3, None), (3, 0), (3, 1)])
@pytest.mark.parametrize("size", [10, 12, 17])
def test_histories(ndim, dim, size):
    along = ndim - 1 if dim is None else dim

    def history(lib):
        rng, rb, answers, number = random.Random(size), made(lib, ndim, size, dim), [], 0
        answers.append((rb.dim_extend, rb.storage.max_size))
        for _ in range(12):
            num = rng.randrange(2, 4 if not number else 7)
            answers.append(rb.extend(steps(number, num, ndim, along)).tolist())
            number += num
            answers.append(seen(rb))
        return answers

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("data", [torch.arange(12).view(3, 4), torch.arange(24).view(3, 4, 2)])
def test_the_example_of_the_page(data):
    def history(lib):
        told = []
        for by_add in (True, False):
            rb = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10, ndim=2), dim_extend=1)
            if by_add:
                told.append(torch.cat([rb.add(d) for d in data.unbind(1)]).tolist())
            else:
                told.append(rb.extend(data).tolist())
            told += [rb[:].tolist(), rb.storage[:].tolist(), len(rb), rb.write_count]
        return told

    theirs, ours = both(history)
    assert ours == theirs and ours[:5] == ours[5:]


INDICES = [
    *(slice(0, 2), slice(None), Ellipsis, [0, 1], (0, 1), (slice(None), 1), (1, slice(None)), (slice(None), slice(2))),
    *((-1, -1), torch.tensor([1, 0]), (torch.tensor([1, 0]), torch.tensor([0, 2])), (slice(None), [0, 2]), (1, [0, 2])),
]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices(index, dim):
    def history(lib):
        rb = made(lib, 2, 12, dim)
        rb.extend(steps(0, 4, 2, dim))
        return rb.storage[index]["x"].tolist(), rb[index]["x"].tolist()

    theirs, ours = both(history)
    assert ours == theirs


def test_writes_in_place():
    def history(lib):
        rb, x = made(lib, 2, 12, 1), []
        rb.extend(steps(0, 4, 2, 1))
        at = (torch.tensor([1, 2]), torch.tensor([0, 1]))
        calls = [
            lambda: rb.set_("x", torch.arange(12).view(4, 3) + 100),
            lambda: rb.set_at_("x", torch.tensor([1, 2]), at),
            lambda: rb.set_at_("x", torch.full((2, 3), 7), [0, 1]),
            lambda: rb.set_at_("x", torch.full((3,), 5), 0),
            lambda: rb.set_at_("x", torch.tensor(8), (1, 2)),
            lambda: rb.update_({"x": torch.zeros(4, 3, dtype=torch.int64)}),
            lambda: rb.__setitem__((torch.tensor([0, 1]), torch.tensor([0, 2])), rb.storage[at].clone()),
            lambda: rb.__setitem__((1, 2), rb.storage[0, 0].apply(lambda value: value * 0 + 6)),
        ]
        for call in calls:
            call()
            x.append((rb.storage[:]["x"].tolist(), rb.writer.generations_of(torch.arange(4)).tolist()))
        return x

    theirs, ours = both(history)
    assert ours == theirs


def test_conditional_updates():
    def history(lib):
        rb = made(lib, 2, 12, 1)
        batch = steps(0, 4, 2, 1)
        rb.extend(batch.set("v", torch.full((3, 4), 5)))
        index, generation = torch.tensor([[0, 0], [0, 1], [1, 2], [3, 2]]), torch.tensor([0, 0, 0, 1])
        told = []
        for options in ({}, {"version_key": "v", "version": torch.tensor([4, 5, 6, 7])}):
            patch = {"x": torch.arange(4) + 100}
            result = rb.update_if_present(index=index, generation=generation, patch=patch, **options)
            told += [result.updated.tolist(), result.updated_count, result.stale_count]
            told.append(None if result.version_rejected is None else result.version_rejected.tolist())
            told.append([rb.storage[:][key].tolist() for key in ("x", "v")])
        whole = rb.update_if_present(
            index=torch.tensor([1, 9]), generation=torch.tensor([0, 0]), patch={"x": torch.full((2, 3), 3)}
        )
        told += [whole.updated.tolist(), rb.storage[:]["x"].tolist()]
        told.append(outcome(lambda: rb.update_if_present(index=index, generation=generation[:2], patch={"x": index})))
        told.append(
            outcome(
                lambda: rb.update_if_present(
                    index=torch.tensor([1]), generation=torch.tensor([0]), patch={"x": torch.tensor([3])}
                )
            )
        )
        return told

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("dim", [1, 2])
def test_storages_of_one_dimension_extended_along_another(dim):
    """What is stored, and drawn: ``rb[...]``, which torchrl turns round, shows records by slot here."""

    def history(lib):
        data, told = torch.arange(24).view(2, 3, 4), []
        for make in (lambda: lib.LazyTensorStorage(9), lambda: lib.ListStorage(9), lambda: lib.LazyStackStorage(9)):
            rb = lib.ReplayBuffer(storage=make(), batch_size=2, dim_extend=dim)
            tensors = isinstance(rb.storage, (lib.LazyTensorStorage, lib.ListStorage))
            tensors = tensors and not isinstance(rb.storage, lib.LazyStackStorage)
            batch = data if tensors else TensorDict({"x": data}, data.shape)
            told.append((rb.extend(batch).tolist(), len(rb), rb.write_count, tuple(rb.sample().shape)))
            kept = rb.storage[:]
            told.append(torch.stack(list(kept if tensors else kept["x"])).tolist())
        return told

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("shuffle", [True, False])
def test_passes_over_cells(shuffle):
    def history(lib):
        rb = made(lib, 2, 12, 1, sampler=lib.SamplerWithoutReplacement(shuffle=shuffle))
        rb.extend(steps(0, 4, 2, 1))
        drawn = torch.cat([rb.sample()["index"] for _ in range(2)]).tolist()
        return sorted(drawn) if shuffle else drawn

    theirs, ours = both(history)
    assert ours == theirs
