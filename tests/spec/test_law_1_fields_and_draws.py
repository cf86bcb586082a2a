"""Law 1 for single fields, conditional updates, draws and the parts of a buffer: what raises has changed nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.spec.builders import (
    STORAGES,
    TENSOR_STORAGES,
    TENSORDICT_STORAGES,
    buffer_of,
    group_sampler,
    numbered,
    numbers_of,
)
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import LazyTensorStorage, PromptGroupSampler, ReplayBuffer, SamplerWithoutReplacement


class Uncopyable:
    """Something that cannot be stored: copying it fails."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


# --- parts of records -----------------------------------------------------------------------------------------------


GOOD = numbered([30, 31, 32])
BAD_FIELDS: dict[str, tuple[Any, Any]] = {
    "shape": ("wide", GOOD["wide"][:, :-1]),
    "dtype": ("byte", GOOD["n"]),
    "rows": ("wide", GOOD["wide"][:2]),
    "unknown": ("more", GOOD["n"]),
    "dotted": ("next.reward", GOOD["next", "reward"]),
    "not a tensor": ("wide", "text"),
    "an object": ("wide", object()),
    "too few texts": ("text", ["too", "few"]),
    "no texts": ("text", 7),
    "uncopyable": ("text", [Uncopyable()] * 3),
}


@pytest.mark.parametrize("bad", BAD_FIELDS)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_bad_fields_change_nothing(kind, bad):
    rb = buffer_of(kind, 8, numbers=range(3))
    key, value = BAD_FIELDS[bad]
    # A good field goes first, so that an update which wrote as it went would have written.
    first, second = {"flag": ~GOOD["flag"], key: value}, {key: value, "flag": ~GOOD["flag"]}
    before, index = snapshot(rb), torch.arange(3)
    handles = {"index": index, "generation": rb.writer.generations_of(index)}
    for write in (
        lambda: rb.update_(first),
        lambda: rb.update_(second),
        lambda: rb.set_(key, value),
        lambda: rb.set_at_(key, value, index),
        lambda: rb.update_if_present(**handles, patch=first),
        lambda: rb.update_if_present(**handles, patch=second),
        lambda: rb.update_if_present(**handles, patch=first, version_key="n", version=99),
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            write()
        assert_unchanged(before, rb)


VERSIONS: dict[str, dict[str, Any]] = {
    "a key without a version": {"version_key": "n"},
    "a version without a key": {"version": 1},
    "a dotted key": {"version_key": "next.reward", "version": 1},
    "an unknown key": {"version_key": "more", "version": 1},
    "a key of several numbers": {"version_key": "wide", "version": 1.0},
    "a key of text": {"version_key": "text", "version": 1},
    "a key in the patch": {"version_key": "byte", "version": 1},
    "a fraction for integers": {"version_key": "n", "version": 1.5},
    "too few": {"version_key": "n", "version": torch.tensor([1, 2])},
    "too large for its field": {"version_key": "g", "version": 2**64},
    "a mask": {"version_key": "n", "version": torch.tensor([True] * 3)},
}


@pytest.mark.parametrize("bad", VERSIONS)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_bad_versions_change_nothing(kind, bad):
    rb = buffer_of(kind, 8, numbers=range(5))
    before, index = snapshot(rb), torch.arange(3)
    patch = {"byte": torch.zeros(3, dtype=torch.uint8), "text": ["a", "b", "c"]}
    with pytest.raises((ValueError, KeyError)):
        rb.update_if_present(index=index, generation=rb.writer.generations_of(index), patch=patch, **VERSIONS[bad])
    assert_unchanged(before, rb)


HANDLES: dict[str, tuple[Any, Any]] = {
    "a mask": (torch.tensor([True, False, True]), torch.zeros(3).long()),
    "floats": (torch.arange(3.0), torch.zeros(3).long()),
    "shapes": (torch.arange(3), torch.zeros(2).long()),
    "generations": (torch.arange(3), torch.zeros(3)),
    "rows": (torch.arange(2), torch.zeros(2).long()),
}


@pytest.mark.parametrize("bad", HANDLES)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_bad_handles_change_nothing(kind, bad):
    rb = buffer_of(kind, 8, numbers=range(5))
    before, (index, generation) = snapshot(rb), HANDLES[bad]
    with pytest.raises((TypeError, ValueError)):
        rb.update_if_present(index=index, generation=generation, patch={"byte": torch.zeros(3, dtype=torch.uint8)})
    assert_unchanged(before, rb)


@pytest.mark.parametrize("kind", ["stack", "list"])
def test_fields_that_a_list_cannot_set_change_nothing(kind):
    rb = buffer_of(kind, 8, numbers=range(3))
    before, good = snapshot(rb), numbered([30, 31, 32])
    for fields in (
        {"n": good["n"], "wide": good["wide"][:, :-1]},
        {"n": good["n"], "byte": good["n"]},
        {"n": good["n"], "more": good["n"]},
        {"n": good["n"], "wide": good["wide"][:2]},
        {"n": good["n"], "wide": [1, 2, 3]},
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            rb.update_(fields)
        assert_unchanged(before, rb)
    with pytest.raises(RuntimeError, match="conditional"):
        rb.update_if_present(index=torch.arange(3), generation=torch.zeros(3).long(), patch={"n": good["n"]})
    assert_unchanged(before, rb)


# --- draws and parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STORAGES)
def test_a_draw_that_fails_takes_no_random_number(kind):
    empty, full = buffer_of(kind, 8), buffer_of(kind, 8, numbers=range(8))
    draws = [
        (empty, None, dict(batch_size=4)),
        (full, None, {}),
        (full, None, dict(batch_size=0)),
        (full, None, dict(batch_size=True)),
        (full, None, dict(batch_size=2.0)),
        (full, SamplerWithoutReplacement(drop_last=True), dict(batch_size=9)),
        (full, group_sampler(), dict(batch_size=10)),
        (full, PromptGroupSampler(num_groups=2, group_key="more"), dict(batch_size=4)),
        (
            full,
            PromptGroupSampler(num_groups=2, group_key="g", strategy="reward", reward_key="more"),
            dict(batch_size=4),
        ),
        (
            full,
            PromptGroupSampler(num_groups=2, group_key="g", strategy="variance", reward_key="text"),
            dict(batch_size=4),
        ),
    ]
    for rb, sampler, call in draws:
        previous = rb.set_sampler(sampler) if sampler else None
        before = snapshot(rb)
        with pytest.raises((RuntimeError, ValueError, KeyError, TypeError)):
            rb.sample(**call)
        assert_unchanged(before, rb)
        if previous is not None:
            rb.set_sampler(previous)


@pytest.mark.parametrize("kind", TENSORDICT_STORAGES)
def test_a_nan_key_takes_no_random_number_and_keeps_the_sampler_usable(kind):
    rb = buffer_of(kind, 8, numbers=range(8), sampler=PromptGroupSampler(num_groups=2, group_key=("next", "reward")))
    expected = rb.sample(2)["n"].tolist()
    rb.generator.manual_seed(0)
    rb.set_at_(("next", "reward"), torch.full((1, 1), torch.nan, dtype=torch.float64), torch.tensor([3]))
    before = snapshot(rb)
    with pytest.raises(ValueError, match="NaN"):
        rb.sample(2)
    assert_unchanged(before, rb)
    rb.set_at_(("next", "reward"), torch.full((1, 1), 1.5, dtype=torch.float64), torch.tensor([3]))
    assert rb.sample(2)["n"].tolist() == expected


@pytest.mark.parametrize("kind", STORAGES)
def test_parts_that_do_not_fit_are_not_put_in(kind):
    rb = buffer_of(kind, 8, numbers=range(3))
    before = snapshot(rb)
    for put in (rb.set_storage, rb.set_writer, rb.set_sampler):
        for bad in (7, "text", lambda: 7):
            with pytest.raises(TypeError):
                put(bad)
            assert_unchanged(before, rb)
    assert numbers_of(rb[:]) == [0, 1, 2]


def test_a_buffer_that_cannot_be_made_touches_neither_storage_nor_random_numbers():
    storage = LazyTensorStorage(4)
    other = ReplayBuffer(storage=storage, generator=torch.Generator())
    other.extend(torch.arange(3))
    before = snapshot(other)
    for bad in (dict(sampler=7), dict(writer=7), dict(batch_size=0)):
        with pytest.raises((TypeError, ValueError)):
            ReplayBuffer(storage=storage, **bad)
        assert_unchanged(before, other)
