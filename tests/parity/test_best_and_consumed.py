"""The best records kept, and records used up, as in torchrl, up to what is random and what law 6 says of NaN."""

from __future__ import annotations

import random

import pytest
import torch
from tensordict import TensorDict

from tests.parity.peer import both, data, outcome, rows
from torchrb import TensorDictMaxValueWriter

WRITERS = {True: data.TensorDictMaxValueWriter, False: TensorDictMaxValueWriter}


def writer_of(lib, **kwargs):
    return WRITERS[lib.LazyTensorStorage.__module__.startswith("torchrl")](**kwargs)


def nothing_left(rb):
    with pytest.raises(RuntimeError):
        rb.sample()
    return True


def assert_same(history):
    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyStackStorage", "ListStorage"])
@pytest.mark.parametrize("capacity", [1, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_records_are_kept_in_the_same_slots(storage, capacity, seed):
    def history(lib):
        chance, seen = random.Random(seed), []
        scores = iter(chance.sample(range(1000), 400))  # no ties
        rb = lib.TensorDictReplayBuffer(
            storage=getattr(lib, storage)(capacity), writer=writer_of(lib, rank_key="s"), batch_size=1
        )
        for _ in range(20):
            size = chance.choice([1, 2, capacity, 2 * capacity + 1])
            batch = TensorDict({"s": torch.tensor([next(scores) for _ in range(size)]).float()}, [size])
            if chance.random() < 0.3:
                seen.append(rb.add(batch[0]))
            else:
                seen.append(rb.extend(batch).tolist())
            seen.append((len(rb), rb.write_count, rb.stats(), [rb[i]["s"].item() for i in range(len(rb))]))
            if chance.random() < 0.1:
                rb.empty()
        return seen

    assert_same(history)


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "mean", "median"])
def test_the_same_reductions_decide(reduction):
    def history(lib):
        rb = lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(4), writer=writer_of(lib, rank_key="s", reduction=reduction), batch_size=1
        )
        cells = torch.randint(0, 10_000, (40, 5), generator=torch.Generator().manual_seed(3)).double()
        return rb.extend(TensorDict({"s": cells}, [40])).tolist(), rb[:]["s"].tolist()

    assert_same(history)


def test_ties_are_not_kept():
    def history(lib):
        rb = lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(2), writer=writer_of(lib, rank_key="s"), batch_size=1
        )
        rb.extend(TensorDict({"s": torch.tensor([1.0, 2.0])}, [2]))
        return rb.add(TensorDict({"s": torch.tensor(1.0)})), rb.add(TensorDict({"s": torch.tensor(1.5)}))

    assert_same(history)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_as_many_records_are_left(limit):
    """What is drawn is random, how many, and where new records go, is not, when all are drawn alike."""

    def history(lib):
        rb = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(6), batch_size=6, consume_after_n_samples=limit)
        seen = [nothing_left(rb)]
        for num in (4, 2, 5, 6, 3, 1):
            used = range(len(rb.storage))
            seen.append([slot in used for slot in rb.extend(rows(*range(num))).tolist()])
            seen.append((len(rb), len(rb.storage), rb.write_count, rb.stats()))
            drawn = []
            while len(rb):
                batch = rb.sample()  # all that are left
                drawn.append(sorted(batch["x"].tolist()))
                seen.append((len(rb), rb.stats()["utilization"], len(rb[:])))
            seen += [drawn, nothing_left(rb)]
        rb.extend(rows(1, 2))
        rb.empty()
        return [*seen, len(rb), nothing_left(rb), rb.extend(rows(1, 2)).tolist(), len(rb)]

    assert_same(history)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "a"])
def test_the_same_limits_are_refused(limit):
    assert_same(lambda lib: outcome(lambda: lib.ReplayBuffer(consume_after_n_samples=limit)))


def test_iterating_ends_when_nothing_is_left():
    def history(lib):
        rb = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(8), batch_size=4, consume_after_n_samples=1)
        rb.extend(rows(*range(6)))
        return [len(batch) for batch in rb], sorted(rb[:]["x"].tolist())

    assert_same(history)
