"""Transforms that are composed, and those among them that matter to some fields."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from tests.steps import Shift, Tell, Times, make_shift
from torchrb import (
    Compose,
    LazyTensorStorage,
    ReplayBuffer,
    RoundRobinWriter,
)
from torchrb.transforms import Inverse, affecting


def numbers(**kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, **kwargs)


# --- Compose


def test_compose_is_a_sequence_of_its_transforms():
    a, b, c = Times(2), Shift(), Times(3)
    chain = Compose(a, b)
    chain.append(c)
    assert list(chain) == [a, b, c] and len(chain) == 3 and chain[1] is b and chain[-1] is c
    assert list(chain[:2]) == [a, b] and isinstance(chain[:2], Compose)
    chain.insert(-1, a)
    assert list(chain) == [a, b, a, c]
    assert chain(1.0) == (1.0 * 2 + 1) * 2 * 3
    assert torch.equal(chain.inv(chain(torch.tensor([4.0]))), torch.tensor([4.0]))


def test_an_empty_compose_changes_nothing():
    data = object()
    assert Compose()(data) is data and Compose().inv(data) is data
    assert numbers().transform(data) is data and len(numbers().transform) == 0


def test_compositions_nest_and_are_used_as_they_are():
    log: list = []
    inner = Compose(Tell("a", log), Tell("b", log))
    rb = numbers(transform=inner)
    assert rb.transform is inner
    outer = Compose(Tell("0", log), inner)
    outer.inv(outer(1))
    assert [name for _, name in log] == ["0", "a", "b", "b", "a", "0"]
    inner.append(Tell("c", log))
    log.clear()
    rb.extend(torch.arange(2))
    assert [name for _, name in log] == ["c", "b", "a"]


def test_inverting_twice_is_no_inversion():
    log: list = []
    twice = Inverse(Inverse(Tell("a", log)))
    twice(0)
    twice.inv(0)
    assert log == [("out", "a"), ("in", "a")]


def test_copies_and_representations():
    chain = Compose(Shift(), make_shift)
    again = copy.deepcopy(chain)
    again[0].by.data.fill_(9.0)
    again.append(Times(2))
    assert chain[0].by == 1.0 and len(chain) == 2
    assert repr(Compose(make_shift, nn.Identity())) == "Compose(make_shift, Identity())"
    assert "transform=Compose(make_shift)" in repr(numbers(transform=make_shift))
    assert "transform" not in repr(numbers())
    assert repr(Inverse(make_shift)) == "Inverse(make_shift)"


def test_transforms_may_change_while_other_threads_read():
    """A batch goes through all transforms of one moment: here always an even number of equal steps."""
    rb = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter())
    rb.extend(torch.zeros(4))
    stop, odd = threading.Event(), []

    def read():
        while not stop.is_set():
            odd.extend(value for value in rb.sample(2).tolist() if value != int(value))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        rb.append_transform(Compose(lambda x: x + 0.5, lambda x: x + 0.5))
    stop.set()
    reader.join()
    assert not odd and rb[0] == 30


# --- which of them matter to some fields


class Says:
    """Says what it reads and writes, and does nothing."""

    def __init__(self, reads: Any, writes: Any) -> None:
        self.in_keys, self.out_keys = reads, writes

    def __call__(self, data: Any) -> Any:
        return data


def test_the_transforms_that_can_change_a_field_are_found_backwards():
    a, b, c, d = Says(["x"], ["y"]), Says(["y"], [("next", "r")]), Says(["z"], ["z"]), Says([("next", "r")], ["w"])
    chain = Compose(a, Compose(b, c), d)
    for key, steps, needed in (
        (("next", "r"), [a, b], {("x",), ("y",), ("next", "r")}),
        (("next",), [a, b], {("x",), ("y",), ("next",)}),  # what is in it is changed
        (("z",), [c], {("z",)}),
        (("z", "deeper"), [c], {("z",), ("z", "deeper")}),  # what it is in is written
        (("x",), [], {("x",)}),
    ):
        chosen, fields = affecting(chain, {key})
        assert list(chosen) == steps and fields == needed


@pytest.mark.parametrize("untold", [lambda data: data, nn.Identity(), Says([], []), Says(None, ["x"]), Says("x", "x")])
def test_one_that_does_not_say_counts_as_changing_everything(untold):
    assert affecting(Compose(Says(["x"], ["y"]), untold), {("z",)}) is None
    assert affecting(Compose(Inverse(Says(["x"], ["y"]))), {("z",)}) is None


def test_modules_of_tensordict_say_what_they_read_and_write():
    module = TensorDictModule(lambda x: 2 * x, in_keys=["x"], out_keys=[("a", "b")])
    chosen, fields = affecting(Compose(module), {("a", "b")})
    assert list(chosen) == [module] and fields == {("x",), ("a", "b")}
