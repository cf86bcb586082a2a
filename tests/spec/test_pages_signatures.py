"""torchrb has the names, parameters and defaults of the reference pages."""

from __future__ import annotations

import inspect

import pytest
import torch

import torchrb
from tests.spec import seed_pages
from torchrb import ConditionalUpdateResult, LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer


def entries(table: dict[str, dict[str, str]]) -> list:
    return [
        pytest.param(owner, name, parameters, id=f"{owner}.{name}")
        for owner, members in table.items()
        for name, parameters in members.items()
    ]


def parameters_of(text: str) -> list[inspect.Parameter]:
    return list(inspect.signature(eval(f"lambda {text}: None")).parameters.values())


@pytest.mark.parametrize("name", seed_pages.NAMES)
def test_names_are_importable_flat(name):
    assert inspect.isclass(getattr(torchrb, name))


@pytest.mark.parametrize(("owner", "name", "page"), entries(seed_pages.MEMBERS))
def test_members_are_those_of_the_page(owner, name, page):
    member = inspect.getattr_static(getattr(torchrb, owner), name)
    if page == seed_pages.PROPERTY:
        assert isinstance(member, property)
        return
    function = member.__func__ if isinstance(member, classmethod) else member
    ours = list(inspect.signature(function).parameters.values())[1:]
    by_name = {parameter.name: parameter for parameter in ours}
    expected = parameters_of(page)
    for parameter in expected:
        got = by_name.pop(parameter.name)
        assert (got.kind, got.default) == (parameter.kind, parameter.default), parameter.name
    positional = [p.name for p in expected if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    for extra in by_name.values():  # what torchrb adds is optional and cannot be met by accident
        assert extra.kind is extra.KEYWORD_ONLY and extra.default is not extra.empty, extra


@pytest.mark.parametrize(("owner", "name", "page"), entries(seed_pages.MEMBERS))
def test_public_members_say_what_they_do(owner, name, page):
    if not name.startswith("__"):
        assert inspect.getdoc(getattr(getattr(torchrb, owner), name)), f"{owner}.{name} has no docstring"


def test_a_parameter_that_the_page_does_not_have_is_an_error_not_ignored():
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        with pytest.raises(TypeError, match="no_such_parameter"):
            kind(no_such_parameter=None)


def test_the_defaults_that_the_page_states_in_words():
    rb = ReplayBuffer()
    assert isinstance(rb.storage, ListStorage) and rb.storage.max_size == 1000
    assert type(rb.sampler) is torchrb.RandomSampler and type(rb.writer) is torchrb.RoundRobinWriter
    assert not rb.writer.tracks_generations and rb.batch_size is None
    assert type(TensorDictReplayBuffer().writer) is torchrb.TensorDictRoundRobinWriter


def test_parts_are_taken_as_instances_or_as_what_makes_them():
    made = ReplayBuffer(
        storage=lambda: LazyTensorStorage(7), sampler=torchrb.RandomSampler, writer=torchrb.RoundRobinWriter
    )
    assert made.storage.max_size == 7 and type(made.sampler) is torchrb.RandomSampler
    storage = LazyTensorStorage(3)
    assert ReplayBuffer(storage=storage).storage is storage


def test_an_update_result_has_the_attributes_of_the_page():
    for name in seed_pages.RESULT:
        assert hasattr(ConditionalUpdateResult, name)


def test_stats_has_the_entries_of_the_page():
    rb = ReplayBuffer(storage=LazyTensorStorage(10))
    rb.extend(torch.arange(5))
    stats = rb.stats()
    assert {name: type(stats[name]) for name in seed_pages.STATS} == seed_pages.STATS
    assert {name: value for name, value in stats.items() if name in seed_pages.STATS} == {
        "size": 5, "write_count": 5, "prefetch_queue_size": 0, "initialized": True, "capacity": 10, "utilization": 0.5
    }  # fmt: skip
    unbounded = ReplayBuffer(storage=ListStorage())
    assert "capacity" not in unbounded.stats() and "utilization" not in unbounded.stats()


@pytest.mark.parametrize("part", ["sampler", "writer", "storage"])
def test_setters_return_what_was_there(part):
    rb = ReplayBuffer(storage=LazyTensorStorage(4))
    new = {"sampler": torchrb.RandomSampler(), "writer": torchrb.RoundRobinWriter(), "storage": LazyTensorStorage(5)}[
        part
    ]
    before = getattr(rb, part)
    assert getattr(rb, f"set_{part}")(new) is before and getattr(rb, part) is new
    rb.extend(torch.arange(3))
    assert rb[:].tolist() == [0, 1, 2] and len(rb.storage) == 3
