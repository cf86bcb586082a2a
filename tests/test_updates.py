"""A conditional update lands on the record it was made for, as a whole, or nowhere; and it says which."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import DTYPES, LAYOUTS, RECORDS, buffer, filled, plain
from torchrb import TensorStorage
from torchrb.updates import fields_of

each_layout = pytest.mark.parametrize("kind", LAYOUTS)
ORDERED = [dtype for dtype in DTYPES if dtype not in (torch.bool, torch.complex64)] + [torch.uint16, torch.uint32]


def stored(kind="packed", num=4, capacity=4, version_dtype=torch.int64, **fields):
    rb = buffer(kind, capacity)
    rows = {"x": torch.arange(num), "v": torch.full((num,), 5).to(version_dtype), **fields}
    rb.extend(TensorDict(rows, [num]))
    return rb


def update(rb, index, patch, generation=None, **kwargs):
    index = torch.as_tensor(index)
    generation = rb.writer.generations_of(index) if generation is None else torch.as_tensor(generation)
    return rb.update_if_present(index=index, generation=generation, patch=patch, **kwargs)


def told(result):
    """One letter a row: what the masks say became of it."""
    masks = {"u": result.updated, "s": result.stale, "o": result.superseded}
    if result.version_rejected is not None:
        masks["r"] = result.version_rejected
    rows = zip(*(mask.reshape(-1).tolist() for mask in masks.values()), strict=True)
    letters = ["".join(letter for letter, held in zip(masks, row, strict=True) if held) for row in rows]
    assert all(len(letter) == 1 for letter in letters), "every row met exactly one fate"
    counts = (result.updated_count, result.stale_count, result.superseded_count, result.version_rejected_count)
    assert counts == tuple(letters.count(letter) for letter in "usor")
    return "".join(letters)


@each_layout
@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(-1, 2)), max_size=8))
def test_a_row_is_written_exactly_where_its_handle_is_live(kind, handles):
    rb = stored(kind, 6)  # slots 0 and 1 were written twice
    rb.empty()
    rb.extend(TensorDict({"x": torch.arange(6), "v": torch.zeros(6, dtype=torch.int64)}, [6])[:3])
    index = torch.tensor([slot for slot, _ in handles], dtype=torch.int64)
    now = {0: 3, 1: 3, 2: 2}
    generation = torch.tensor([step + 1 for _, step in handles], dtype=torch.int64)
    result = rb.update_if_present(index=index, generation=generation, patch={"x": torch.arange(len(handles)) + 100})
    rows = list(zip(index.tolist(), generation.tolist(), strict=True))
    winners = {slot: i for i, (slot, step) in enumerate(rows) if now.get(slot) == step}
    fates = [
        "s" if now.get(slot) != step else "u" if winners[slot] == i else "o" for i, (slot, step) in enumerate(rows)
    ]
    assert told(result) == "".join(fates)
    assert rb[:]["x"].tolist() == [winners[slot] + 100 if slot in winners else slot for slot in range(3)]
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [3, 3, 2, 1]


@each_layout
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 20)])
def test_any_dtype_and_shape_can_be_patched(kind, dtype, shape):
    rb = stored(kind, y=filled(range(4), dtype, shape))
    assert told(update(rb, [3, 1], {"y": filled([10, 11], dtype, shape)})) == "uu"
    assert plain(rb[:]["y"]) == plain(filled([0, 11, 2, 10], dtype, shape))
    assert rb[:]["x"].tolist() == [0, 1, 2, 3] and rb[:]["v"].tolist() == [5] * 4


@each_layout
@pytest.mark.parametrize("form", [dict, lambda patch: TensorDict(patch, [2])])
def test_a_patch_of_several_fields_is_one_write(kind, form):
    rb = buffer(kind, 4)
    rb.extend(RECORDS["nested"](range(4)))
    new = RECORDS["nested"]([8, 9])
    patch = {"n": new["n"], "next": {"r": new["next", "r"], "deep": {"b": new["next", "deep", "b"]}}}
    assert told(update(rb, [2, 0], form(patch))) == "uu"
    assert plain(rb[:]) == plain(RECORDS["nested"]([9, 1, 8, 3]))
    assert told(update(rb, [1], {("next", "r"): torch.tensor([[0.25]], dtype=torch.float64)})) == "u"
    assert rb[1]["next", "r"].item() == 0.25


def test_fields_that_are_no_tensors_are_patched_with_the_others():
    rb = buffer(capacity=4)
    rb.extend(RECORDS["texts"](range(4)))
    result = update(rb, [1, 2, 1], {"n": torch.tensor([7, 8, 9]), "prompt": ["a", "b", "c"]}, generation=[0, 5, 0])
    assert told(result) == "osu"
    assert rb[:]["n"].tolist() == [0, 9, 2, 3] and list(rb[:]["prompt"])[1:3] == ["c", "prompt é 2"]


@each_layout
def test_of_rows_for_one_record_the_last_is_written(kind):
    rb = stored(kind)
    assert told(update(rb, [1, 1, 3, 1], {"x": torch.tensor([7, 8, 9, 10])})) == "oouu"
    assert rb[:]["x"].tolist() == [0, 10, 2, 9]
    assert told(update(rb, [1, 1], {"x": torch.tensor([20, 21])}, generation=[0, 9])) == "us"
    assert rb[1]["x"] == 20


@each_layout
@pytest.mark.parametrize("dtype", ORDERED)
@pytest.mark.parametrize("require_newer", [True, False])
def test_the_highest_version_wins_and_the_last_of_equals(kind, dtype, require_newer):
    rb = stored(kind, version_dtype=dtype)
    versions = torch.tensor([4, 5, 6, 6, 4]).to(dtype)
    result = update(
        rb, [0, 1, 2, 2, 2], {"x": torch.arange(5) + 10}, version_key="v", version=versions, require_newer=require_newer
    )
    assert told(result) == ("rrrur" if require_newer else "rurur")
    assert rb[:]["x"].tolist() == [0, 1 if require_newer else 11, 13, 3]
    assert rb[:]["v"].to(torch.int64).tolist() == [5, 5, 6, 5]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 1.0, 2.0, math.inf, math.nan]), min_size=3, max_size=3),
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([-math.inf, -1.0, -0.0, 1.0, math.inf, math.nan])), max_size=6
    ),
    st.booleans(),
)
def test_float_versions_infinities_and_nan(before, rows, require_newer):
    rb = buffer(capacity=3)
    rb.extend(TensorDict({"x": torch.zeros(3), "v": torch.tensor(before)}, [3]))
    version = torch.tensor([version for _, version in rows], dtype=torch.float32)
    index = torch.tensor([slot for slot, _ in rows], dtype=torch.int64)
    result = update(
        rb, index, {"x": torch.arange(len(rows)) + 1.0}, version_key="v", version=version, require_newer=require_newer
    )

    expected = dict(enumerate(before))
    fates = ["r"] * len(rows)
    for slot in range(3):
        stored = before[slot]
        rejected = float.__lt__ if not require_newer else float.__le__
        good = [i for i, (s, v) in enumerate(rows) if s == slot and v == v and not rejected(v, stored)]
        if good:
            winner = max(good, key=lambda i: (rows[i][1], i))
            fates[winner], expected[slot] = "u", rows[winner][1]
    assert told(result) == "".join(fates)
    assert torch.equal(torch.tensor(list(expected.values())).nan_to_num(-7), rb[:]["v"].nan_to_num(-7))


def test_versions_beyond_the_precision_of_a_float_stay_apart():
    rb = buffer(capacity=2)
    rb.extend(TensorDict({"x": torch.zeros(2), "v": torch.tensor([2**62, 2**62])}, [2]))
    result = update(rb, [0, 1], {"x": torch.ones(2)}, version_key="v", version=torch.tensor([2**62 - 1, 2**62 + 1]))
    assert told(result) == "ru" and rb[:]["v"].tolist() == [2**62, 2**62 + 1]


@pytest.mark.parametrize(
    "version", [7, 7.0, torch.tensor(7), torch.tensor([7, 7]), torch.tensor([[7], [7]], dtype=torch.int8)]
)
def test_a_version_is_one_for_all_or_one_a_record(version):
    rb = stored(version_dtype=torch.float32)
    assert told(update(rb, [0, 2], {}, version_key="v", version=version)) == "uu"
    assert rb[:]["v"].tolist() == [7, 5, 7, 5]


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1), (4,)])
def test_masks_have_the_shape_of_the_index(shape):
    rb = stored()
    index = torch.arange(4).view(shape)
    result = update(rb, index, {"x": torch.arange(4) + 9})
    assert result.updated.shape == result.stale.shape == result.superseded.shape == shape
    assert result.updated.dtype == torch.bool and result.version_rejected is None and told(result) == "uuuu"
    assert rb[:]["x"].tolist() == [9, 10, 11, 12]
    single = update(rb, 2, {"x": torch.tensor([50])})
    assert single.updated.shape == () and bool(single.updated) and rb[2]["x"] == 50


@pytest.mark.parametrize("fill", [0, 2])
def test_no_rows_are_no_trouble(fill):
    rb = buffer(capacity=4)
    if fill:
        rb.extend(TensorDict({"x": torch.arange(2)}, [2]))
    empty = torch.empty(0, dtype=torch.int64)
    result = rb.update_if_present(index=empty, generation=empty, patch={"x": empty} if fill else {})
    assert told(result) == "" and result.updated.shape == (0,)
    if not fill:
        assert told(update(rb, [0], {}, generation=[-1])) == "s"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_handles_of_any_integer_dtype(dtype):
    rb = stored()
    assert told(update(rb, torch.tensor([1, 3], dtype=dtype), {"x": torch.tensor([8, 9])})) == "uu"
    assert rb[:]["x"].tolist() == [0, 8, 2, 9]


def test_a_record_keeps_its_handle_through_patches():
    rb = stored()
    handle = {"index": torch.tensor([1]), "generation": torch.tensor([0])}
    for n in range(3):
        assert told(rb.update_if_present(**handle, patch={"x": torch.tensor([n])})) == "u"
    rb[1] = rb[1]
    assert told(rb.update_if_present(**handle, patch={"x": torch.tensor([9])})) == "s"


def test_what_was_handed_in_does_not_change():
    rb = stored()
    index, generation, x = torch.tensor([1, 1]), torch.tensor([0, 0]), torch.tensor([7, 8])
    update(rb, index, {"x": x}, generation, version_key="v", version=x)
    assert index.tolist() == [1, 1] and generation.tolist() == [0, 0] and x.tolist() == [7, 8]
    x.zero_()
    assert rb[1]["x"] == 8 and rb[1]["v"] == 8


def test_adopted_rows_can_be_patched():
    rb = buffer(TensorStorage(TensorDict({"x": torch.arange(3)}, [3])))
    assert told(update(rb, [0, 2], {"x": torch.tensor([8, 9])})) == "uu" and rb[:]["x"].tolist() == [8, 1, 9]


def test_fields_are_the_leaves_by_their_keys():
    nested = {"a": 1, "b": {"c": 2, ("d", "e"): 3}, ("f",): 4}
    assert fields_of(nested, "call") == {"a": 1, ("b", "c"): 2, ("b", "d", "e"): 3, "f": 4}
    td = TensorDict({"s": "text", "in": {"x": torch.ones(1)}}, [1])
    assert set(fields_of(td, "call")) == {"s", ("in", "x")}


@pytest.mark.parametrize(
    ("stored_as", "version"),
    [
        (torch.uint8, torch.tensor([-1], dtype=torch.int8)),
        (torch.int8, torch.tensor([200], dtype=torch.uint8)),
        (torch.uint32, torch.tensor([-1], dtype=torch.int32)),
        (torch.int64, torch.tensor([2**63 + 5], dtype=torch.uint64)),
    ],
)
def test_a_version_that_would_wrap_round_is_refused(stored_as, version):
    rb = stored(version_dtype=stored_as)
    with pytest.raises(ValueError, match="does not fit field 'v'"):
        update(rb, [0], {"x": torch.tensor([9])}, version_key="v", version=version)
    assert rb[0]["v"].item() == 5
    fits = version.to(torch.int64).clamp(6, 7).to(version.dtype)
    assert update(rb, [0], {"x": torch.tensor([9])}, version_key="v", version=fits).updated_count == 1
