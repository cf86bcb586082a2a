"""Between host and device: what is told later is told once, in order, and acted on by the sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrb.ops.schemas import FEW_GROUPS, NO_GROUP, SHORT_GROUP
from torchrb.samplers import PromptGroupSampler
from torchrb.storages.transfer import LateNumbers, moved


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
