"""The same conditional updates end the same way as in torchrl, row by row."""

from __future__ import annotations

import math
import random

import pytest
import torch
from tensordict import TensorDict

from tests.parity.peer import both, buffer, outcome, rows, state

HERE, ALL = torch.arange(4), torch.zeros(4, dtype=torch.int64)


def filled(lib, version=5):
    rb = buffer(lib)
    rb.extend(rows(0, 1, 2, 3))
    rb.set_("v", torch.full((4,), version))
    return rb


def fates(result):
    rejected = result.version_rejected
    return {
        "updated": result.updated.tolist(),
        "updated_count": result.updated_count,
        "stale_count": result.stale_count,
        "version_rejected": None if rejected is None else rejected.tolist(),
        "version_rejected_count": result.version_rejected_count,
    }


def assert_same(history):
    theirs, ours = both(history)
    assert ours == theirs


# --- the same


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_long_race_between_a_ring_and_late_patches(seed, versioned):
    """Handles old and new, live, stale, emptied slots and slots out of range; versions newer, equal and older."""

    def history(lib):
        rng, rb, number, told = random.Random(seed), buffer(lib, 7), 0, []
        handles = [(-1, 0), (7, 0), (6, -1), (2**40, 0)]
        for _ in range(40):
            size = rng.choice([1, 2, 3])
            index = rb.extend(rows(*range(number, number + size)))
            number += size
            handles += zip(index.tolist(), rb.writer.generations_of(index).tolist(), strict=True)
            picked = rng.sample(handles[-12:] + handles[:4], 5)
            if not versioned:  # without versions, several rows for one record are told of differently, see below
                picked = list({slot: (slot, generation) for slot, generation in picked}.values())
            call = {"require_newer": rng.random() < 0.5} if versioned else {}
            if versioned:
                call |= {"version_key": "v", "version": torch.tensor([rng.randrange(4) for _ in picked])}
            values = torch.tensor([rng.randrange(1000, 2000) for _ in picked])
            result = rb.update_if_present(
                index=torch.tensor([slot for slot, _ in picked]),
                generation=torch.tensor([generation for _, generation in picked]),
                patch={"x": values, ("in", "b"): values % 2 == 0},
                **call,
            )
            told += [fates(result), state(rb)]
        return told

    assert_same(history)


@pytest.mark.parametrize("require_newer", [True, False])
@pytest.mark.parametrize("version", [4, 5, 6, torch.tensor(6), torch.tensor([4, 5, 6, 7])])
def test_versions(version, require_newer):
    def history(lib):
        rb = filled(lib)
        call = {"version_key": "v", "version": version, "require_newer": require_newer}
        result = rb.update_if_present(index=HERE, generation=ALL, patch={"x": HERE + 10}, **call)
        return fates(result), state(rb), rb[:]["v"].tolist()

    assert_same(history)


@pytest.mark.parametrize(
    "patch", [{}, {"wide": torch.ones(4, 3)}, TensorDict({"x": HERE + 7, "in": {"b": HERE > 1}}, [4])]
)
@pytest.mark.parametrize("versioned", [True, False])
def test_patches_of_any_form(patch, versioned):
    def history(lib):
        rb = filled(lib)
        call = {"version_key": "v", "version": 9} if versioned else {}
        return fates(rb.update_if_present(index=HERE, generation=ALL, patch=patch, **call)), state(rb)

    assert_same(history)


def test_no_rows():
    def history(lib):
        rb, none = filled(lib), torch.empty(0, dtype=torch.int64)
        return fates(rb.update_if_present(index=none, generation=none, patch={"x": none})), state(rb)

    assert_same(history)


REFUSED = {
    "unknown field": {"patch": {"zz": HERE}},
    "dtype": {"patch": {"x": HERE.float()}},
    "shape": {"patch": {"wide": torch.ones(4, 2)}},
    "no batch": {"patch": {"x": torch.tensor(1)}},
    "rows": {"patch": {"x": HERE[:3]}},
    "version without key": {"version": 1},
    "key without version": {"version_key": "v"},
    "version in patch": {"version_key": "v", "version": 1, "patch": {"v": HERE}},
    "dotted key": {"version_key": "in.v", "version": 1},
    "unknown version": {"version_key": "zz", "version": 1},
    "version of many": {"version_key": "wide", "version": 1},
    "float version": {"version_key": "v", "version": torch.full((4,), 6.5)},
    "lengths": {"generation": ALL[:3]},
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_same_calls_are_refused_with_the_same_exception(case):
    def history(lib):
        rb = filled(lib)
        call = {"index": HERE, "generation": ALL, "patch": {"x": HERE + 9}, **REFUSED[case]}
        return outcome(lambda: rb.update_if_present(**call)), state(rb)

    theirs, ours = both(history)
    assert isinstance(ours[0], type), "the call must be refused"
    assert ours == theirs


def test_writers_and_storages_that_cannot():
    def history(lib):
        told = []
        for storage, track in (("LazyTensorStorage", False), ("ListStorage", True), ("LazyStackStorage", True)):
            writer = lib.TensorDictRoundRobinWriter(track_generations=track)
            rb = lib.TensorDictReplayBuffer(storage=getattr(lib, storage)(4), writer=writer)
            rb.extend(rows(0, 1, 2, 3))
            told.append(outcome(lambda rb=rb: rb.update_if_present(index=HERE, generation=ALL, patch={"x": HERE})))
        return told

    assert both(history) == ([RuntimeError] * 3, [RuntimeError] * 3)


# --- different on purpose


def test_law_2_of_rows_for_one_record_only_the_one_that_is_stored_is_updated():
    """Without versions the last row wins in both. torchrl tells the others that they were stored."""

    def history(lib):
        rb = filled(lib)
        index = torch.tensor([1, 1, 1])
        result = rb.update_if_present(index=index, generation=ALL[:3], patch={"x": torch.tensor([7, 8, 9])})
        return result.updated.tolist(), result.stale_count, rb[1]["x"].item()

    assert both(history) == (([True, True, True], 0, 9), ([False, False, True], 0, 9))


def test_law_10_a_mask_is_no_index():
    """torchrl takes False and True as slots 0 and 1."""

    def history(lib):
        rb, mask = filled(lib), torch.tensor([False, True, False, False])
        return outcome(lambda: fates(rb.update_if_present(index=mask, generation=ALL, patch={"x": HERE + 9}))), state(
            rb
        )

    theirs, ours = both(history)
    assert theirs[0]["updated"] == [True] * 4 and theirs[1]["content"]["x"] != [0, 1, 2, 3]
    assert ours[0] is TypeError and ours[1]["content"]["x"] == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 1)])
def test_law_10_a_patch_has_the_shape_of_what_is_stored(shape):
    """torchrl takes as many numbers in another shape."""

    def history(lib):
        rb = filled(lib)
        patch = {"x": (HERE + 9).view(shape)}
        return outcome(lambda: rb.update_if_present(index=HERE, generation=ALL, patch=patch).updated_count)

    assert both(history) == (4, ValueError)


def test_law_10_floats_are_no_index():
    def history(lib):
        rb = filled(lib)
        return outcome(
            lambda: rb.update_if_present(index=HERE.float(), generation=ALL, patch={"x": HERE}).updated_count
        )

    assert both(history) == (4, TypeError)


def test_law_3_an_emptied_slot_holds_no_record():
    """Its generation is known, but nothing is there to be updated."""

    def history(lib):
        rb = filled(lib)
        rb.empty()
        now = rb.writer.generations_of(HERE)
        return rb.update_if_present(index=HERE, generation=now, patch={"x": HERE + 9}).updated_count

    assert both(history) == (4, 0)


def test_law_6_nan_versions_lose():
    """An incoming NaN is rejected and a stored NaN gives way. In torchrl a stored NaN stays for ever."""

    def history(lib):
        rb = buffer(lib)
        rb.extend(TensorDict({"x": torch.zeros(3), "v": torch.tensor([math.nan, 1.0, math.nan])}, [3]))
        versions = torch.tensor([2.0, math.nan, math.nan])
        result = rb.update_if_present(
            index=HERE[:3], generation=ALL[:3], patch={"x": torch.ones(3)}, version_key="v", version=versions
        )
        return result.updated.tolist(), rb[:]["x"].tolist()

    theirs, ours = both(history)
    assert ours == ([True, False, False], [1.0, 0.0, 0.0])
    assert theirs != ours


def test_an_index_of_several_dimensions_is_taken():
    """Masks have its shape. torchrl fails, with a message about lengths."""

    def history(lib):
        rb, index = filled(lib), HERE.view(2, 2)
        return outcome(
            lambda: rb.update_if_present(index=index, generation=ALL.view(2, 2), patch={"x": HERE + 5}).updated.tolist()
        )

    assert both(history) == (ValueError, [[True, True], [True, True]])
