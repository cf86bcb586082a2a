"""Priorities and importance weights are those of torchrl's `PrioritizedSampler`.

Its compiled trees do not load with every torch. A plain one in their place does as well here: what is compared is what
torchrl puts in, and what it makes of it, which is its own either way.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from tensordict import TensorDict

import torchrb
from tests.parity.peer import PEER, data

prioritized = pytest.importorskip(
    "torchrl.data.replay_buffers.samplers.prioritized", reason="this torchrl has its samplers in another place"
)


class PlainTree:
    """What torchrl asks of a tree."""

    nothing = 0.0

    def __init__(self, size: int) -> None:
        self.values = torch.full((size,), self.nothing, dtype=torch.float64)

    def __setitem__(self, index, value) -> None:
        self.values[index] = torch.as_tensor(value, dtype=torch.float64)

    def __getitem__(self, index):
        return self.values[index].float()

    def query(self, begin: int, end: int) -> float:
        return float(self.values[begin:end].sum())

    def scan_lower_bound(self, mass):
        return torch.searchsorted(self.values.cumsum(0), torch.as_tensor(mass, dtype=torch.float64), right=True)


class PlainMinTree(PlainTree):
    nothing = float("inf")

    def query(self, begin: int, end: int) -> float:
        return float(self.values[begin:end].min())


@pytest.fixture(autouse=True)
def trees(monkeypatch):
    for bits in (32, 64):
        monkeypatch.setattr(prioritized, f"SumSegmentTreeFp{bits}", PlainTree)
        monkeypatch.setattr(prioritized, f"MinSegmentTreeFp{bits}", PlainMinTree)


def buffers(capacity=12, *settings, **options):
    theirs = PEER.TensorDictReplayBuffer(
        storage=PEER.LazyTensorStorage(capacity), batch_size=64,
        sampler=prioritized.PrioritizedSampler(capacity, *settings, **options),
    )  # fmt: skip
    ours = torchrb.TensorDictReplayBuffer(
        storage=torchrb.LazyTensorStorage(capacity), batch_size=64,
        sampler=torchrb.PrioritizedSampler(capacity, *settings, **options),
    )  # fmt: skip
    return theirs, ours


def weight_by_slot(rb):
    """What draws tell: the importance weight of each slot, from as many draws as show every one."""
    found = {}
    for _ in range(20):
        batch = rb.sample()
        assert (
            batch["priority_weight"].dtype == torch.float32 and batch["priority_weight"].shape == batch["index"].shape
        )
        found |= dict(zip(batch["index"].tolist(), batch["priority_weight"].tolist(), strict=True))
    return dict(sorted(found.items()))


def assert_same(theirs, ours):
    expected, got = weight_by_slot(theirs), weight_by_slot(ours)
    assert got.keys() == expected.keys()
    assert list(got.values()) == pytest.approx(list(expected.values()), rel=1e-4)


def rows(num, **fields):
    return TensorDict({"x": torch.arange(num), **fields}, [num])


SETTINGS = [(0.7, 0.9), (1.1, 1.0), (0.0, 0.5), (1.0, 0.0), (0.5, 0.4, 0.1)]


@pytest.mark.parametrize("settings", SETTINGS)
def test_weights_after_updates(settings):
    both = buffers(8, *settings)
    torch.manual_seed(3)
    for turn in range(3):
        given, index = torch.rand(6) + 0.1, torch.arange(turn, turn + 6) % 7
        for rb in both:
            if not turn:
                rb.extend(rows(7))
            rb.update_priority(index, given)
        assert_same(*both)


def test_a_new_record_has_the_greatest_priority():
    both = buffers(8, 0.7, 1.0)
    for rb in both:
        rb.extend(rows(4))
        rb.update_priority(torch.tensor([0, 1, 2, 3]), torch.tensor([4.0, 1.0, 2.0, 0.5]))
        rb.extend(rows(2))
    assert_same(*both)
    assert float(both[0].sampler.default_priority) == both[1].sampler.default_priority == 4.0


@pytest.mark.parametrize("reduction", ["max", "min", "median", "mean"])
def test_errors_of_several_numbers(reduction):
    both = buffers(8, 1.0, 1.0, reduction=reduction)
    torch.manual_seed(4)
    errors = torch.rand(6, 4) + 0.1
    for rb in both:
        rb.extend(rows(6))
        batch = TensorDict({"index": torch.arange(6), "td_error": errors}, [6])
        rb.update_tensordict_priority(batch)
    assert_same(*both)
    for rb in both:
        batch = TensorDict({"index": torch.tensor([3, 1]), "td_error": errors[:2] * 3}, [2])
        rb.update_tensordict_priority(batch)
    assert_same(*both)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_data_with_and_without_the_key():
    for update_priority in (None, True, False):
        both = buffers(8, 1.0, 1.0)
        for rb in both:
            rb.extend(rows(3, td_error=torch.tensor([1.0, 2.0, 3.0])), update_priority=update_priority)
            rb.extend(rows(2, td_error=torch.tensor([5.0, 0.5])), update_priority=update_priority)
        assert_same(*both)
    both = buffers(8, 1.0, 1.0)
    for rb in both:
        rb.extend(rows(4))
        rb.update_priority(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
        rb.update_tensordict_priority(TensorDict({"index": torch.tensor([0, 2])}, [2]))  # no key: as new ones
    assert_same(*both)


@pytest.mark.parametrize("name", ["PrioritizedSampler", "PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"])
def test_the_constructors_take_what_torchrl_s_take(name):
    """Parameters that both have are of one kind and default; those of the sampler are all there, in order."""
    peer = prioritized.PrioritizedSampler if name == "PrioritizedSampler" else getattr(data, name)
    theirs = {p.name: p for p in inspect.signature(peer.__init__).parameters.values()}
    ours = [p for p in inspect.signature(getattr(torchrb, name).__init__).parameters.values() if p.name in theirs]
    for parameter in ours:
        assert (parameter.kind, parameter.default) == (theirs[parameter.name].kind, theirs[parameter.name].default)
    if name == "PrioritizedSampler":
        assert [p.name for p in ours] == list(theirs)


def test_it_says_what_it_is_as_torchrl_does():
    theirs, ours = buffers(8, 0.7, 0.9)
    assert repr(ours.sampler) == repr(theirs.sampler)
