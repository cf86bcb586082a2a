"""Between host and device: what is told later is told once, in order, and acted on by the sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from tests.cases import Rollout, plain
from torchrb.ops.schemas import FEW_GROUPS, NO_GROUP, SHORT_GROUP
from torchrb.samplers import PromptGroupSampler
from torchrb.storages import transfer
from torchrb.storages.transfer import LateNumbers, moved, pinned


class Event:
    """Done when the test says so."""

    made: list[Event] = []

    def __init__(self) -> None:
        self.done = False
        Event.made.append(self)

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.done


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """The host plays the device: its memory is pinned as it is, and events are the test's."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **options: empty(*args, **options))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    Event.made = []


def test_numbers_are_told_once_in_order_when_they_have_arrived():
    late = LateNumbers()
    for number in range(3):
        late.ask(torch.tensor([number]), f"about {number}")
    assert list(late.told()) == []
    Event.made[1].done = True
    assert list(late.told()) == []
    Event.made[0].done = True
    assert list(late.told()) == [(0, "about 0"), (1, "about 1")]
    assert list(late.told()) == []
    Event.made[2].done = True
    assert list(late.told()) == [(2, "about 2")]


def test_a_number_is_the_one_of_the_moment_it_was_asked():
    late, number = LateNumbers(), torch.tensor([7])
    late.ask(number, None)
    number.zero_()
    Event.made[0].done = True
    assert list(late.told()) == [(7, None)]


class OfAGpu(torch.Tensor):
    """Flags that say they are on a GPU."""

    is_cuda = True


def draw(flags: int) -> tuple:
    return torch.zeros(4, 3), torch.tensor([flags]).as_subclass(OfAGpu), 2, None


def test_a_late_flag_warns_once():
    sampler = PromptGroupSampler(num_groups=4)
    sampler.notice(draw(FEW_GROUPS))
    Event.made[0].done = True
    with pytest.warns(UserWarning, match="num_groups=4"):
        sampler.notice(draw(FEW_GROUPS | SHORT_GROUP))
    Event.made[1].done = True
    with pytest.warns(UserWarning, match="samples_per_group=2") as told:
        sampler.notice(draw(FEW_GROUPS))
    assert len(told) == 1
    Event.made[2].done = True
    sampler.notice(draw(0))


def test_a_late_flag_of_an_empty_draw_raises():
    sampler = PromptGroupSampler(num_groups=4)
    sampler.notice(draw(NO_GROUP))
    Event.made[0].done = True
    with pytest.raises(RuntimeError, match="no record was stored"):
        sampler.notice(draw(0))


def test_on_the_host_nothing_moves():
    x = torch.arange(3)
    assert moved(x, torch.device("cpu")) is x


# --- pinned samples

SAMPLES = {
    "tensor": lambda: torch.arange(3.0),
    "pytree": lambda: {"a": torch.arange(3), "b": (torch.ones(2, 2), [torch.zeros(1)], "text", None, 3)},
    "tensordict": lambda: TensorDict({"a": torch.arange(2), "next": {"r": torch.ones(2, 1)}, "text": ["x", "y"]}, [2]),
    "lazy stack": lambda: lazy_stack([TensorDict({"a": torch.arange(n)}) for n in (2, 3)]),
    "tensorclass": lambda: Rollout(tokens=torch.arange(2), reward=torch.ones(2), prompt=["p", "q"], batch_size=[2]),
    "records": lambda: ["a", 1, None],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_all_tensors_of_a_sample_are_pinned_and_nothing_else_changes(monkeypatch, sample):
    done = []
    monkeypatch.setattr(transfer, "_gpu_is_there", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: any(tensor is other for other in done))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: done.append(tensor.clone()) or done[-1])
    data = SAMPLES[sample]()
    first = pinned(data)
    rows = (
        (lambda batch: list(batch.unbind(0))) if sample == "lazy stack" else (lambda batch: batch)
    )  # these are ragged
    assert plain(rows(first)) == plain(rows(SAMPLES[sample]())) and type(first) is type(data)
    num = {"tensor": 1, "pytree": 3, "tensordict": 2, "lazy stack": 2, "tensorclass": 2, "records": 0}[sample]
    assert len(done) == num
    pinned(first)
    assert len(done) == num, "what is pinned already stays"


def test_without_a_gpu_nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(transfer, "_gpu_is_there", lambda: False)
    data = torch.arange(3)
    assert pinned(data) is data
