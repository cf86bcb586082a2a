"""What a batch depends on: seen when it changes, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchrb import LazyTensorStorage, RandomSampler, ReplayBuffer, TensorStorage
from torchrb.prefetch.scene import Marks, any_on_gpu, can_be_handed_over, in_modes, modes_of, modules_of


class Equal:
    """Equal to everything, which says nothing about what it does."""

    def __eq__(self, other):
        return True

    __hash__ = None

    def __call__(self, data):
        return data


def scene(**changes):
    rb = ReplayBuffer(storage=LazyTensorStorage(3), transform=Equal())
    return rb._scene(2)._replace(**changes)


def test_a_scene_is_the_same_while_its_parts_are_the_same_objects():
    one = scene()
    assert one.same(one._replace())
    for name, value in {
        "storage": TensorStorage(torch.zeros(3)), "sampler": RandomSampler(), "collate": Equal(), "steps": (Equal(),),
        "num": 3, "tracks_generations": True, "modes": (True,),
    }.items():  # fmt: skip
        assert not one.same(one._replace(**{name: value})), name


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("nothing", None)


def exchange(pair):
    del pair.inner.weight
    pair.inner.weight = nn.Parameter(torch.zeros(1, 2))


def step(pair):
    pair.inner(torch.ones(2)).backward()
    torch.optim.SGD(pair.parameters(), 0.1).step()


CHANGES = {
    "step": step,
    "load": lambda pair: pair.load_state_dict(pair.state_dict()),
    "buffer": lambda pair: pair.count.add_(1),
    "mode": lambda pair: pair.inner.eval(),
    "another parameter": exchange,
    "another module": lambda pair: setattr(pair, "inner", nn.Linear(2, 1)),
    "one more": lambda pair: pair.register_buffer("more", torch.zeros(1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_modules_is_seen(change):
    pair = Pair()
    before = modules_of((print, pair))
    pair.inner(torch.ones(2))
    assert before.same(modules_of((print, pair)))
    CHANGES[change](pair)
    assert not before.same(modules_of((print, pair)))


def test_marks_tell_whether_random_numbers_were_taken():
    rb = ReplayBuffer(storage=LazyTensorStorage(3), generator=torch.Generator())
    before = Marks.of(rb, rb._scene(1))
    assert before.same(Marks.of(rb, rb._scene(1)))
    torch.rand(1)
    behind = Marks.of(rb, rb._scene(1))
    assert not before.same(behind)
    torch.rand(1, generator=rb.generator)
    assert not behind.same(Marks.of(rb, rb._scene(1)))


def test_modes_are_those_of_the_thread_and_some_can_be_handed_over():
    assert modes_of(False) == (False,) and can_be_handed_over(modes_of(False)) and can_be_handed_over(modes_of(True))
    with torch.no_grad():
        modes = modes_of(True)
    assert modes != modes_of(True) and in_modes(modes, lambda: modes_of(True)) == modes
    with torch.inference_mode():
        modes = modes_of(False)
    assert in_modes(modes, lambda: modes_of(False)) == modes == (True,)
    with torch.autocast("cpu"):
        assert not can_be_handed_over(modes_of(True)) and can_be_handed_over(modes_of(False))
    with torch.device("meta"):
        assert not can_be_handed_over(modes_of(True))


def test_tensors_on_a_gpu_are_found_wherever_they_are(monkeypatch):
    assert not any_on_gpu({"a": torch.zeros(1)})
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.numel() == 7))
    assert any_on_gpu({"a": [torch.zeros(1), torch.zeros(7)]}) and not any_on_gpu(["a", torch.zeros(1), None])
