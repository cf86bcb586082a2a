"""Two group keys have the same words exactly where they are the same key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchrb.storages.keys import DIGEST_WORDS, value_words

quick = settings(deadline=None, max_examples=100)

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers() | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.text() | numbers | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def canonical(value):
    """What `==` compares once types that differ are told apart: 1 is not 1.0, True is 1, -0.0 is 0.0."""
    if isinstance(value, list):
        return ("list", *map(canonical, value))
    return ("int", int(value)) if isinstance(value, int) else (type(value).__name__, value)


@quick
@given(values, values)
def test_python_values_have_equal_words_where_they_are_equal(a, b):
    assert (value_words(a, "g") == value_words(b, "g")) == (canonical(a) == canonical(b))
    assert len(value_words(a, "g")) == DIGEST_WORDS


@quick
@given(st.lists(st.lists(st.text(max_size=2), max_size=3), max_size=3))
def test_where_one_part_ends_and_the_next_begins_counts(parts):
    assume(len(parts) > 1)
    joined = ["".join(part) for part in parts]
    assert value_words(parts, "g") != value_words([[text] for text in joined], "g") or parts == [[t] for t in joined]
    assert value_words(parts, "g") != value_words([sum(parts, [])], "g")


@pytest.mark.parametrize("text", ["", "é", "e\u0301", "\0", "\ud800", "语", b"bytes"])
def test_any_text_is_a_key_and_no_two_of_these_are_one(text):
    others = ["", "é", "e\u0301", "\0", "\ud800", "语", b"bytes", b"", None, 0, []]
    same = [other for other in others if value_words(other, "g") == value_words(text, "g")]
    assert same == [text]


def test_the_two_zeros_are_one_key():
    assert value_words(0.0, "g") == value_words(-0.0, "g")
    assert value_words([1, [-0.0]], "g") == value_words([1, [0.0]], "g")


def test_nan_is_no_key():
    with pytest.raises(ValueError, match="'g' is NaN"):
        value_words([1, math.nan], "g")


def test_tensors_and_arrays_of_one_record_are_their_values():
    assert value_words(torch.tensor([1, 2]), "g") == value_words([1, 2], "g") == value_words(np.array([1, 2]), "g")
    assert value_words(torch.tensor([1, 2]), "g") != value_words(torch.tensor([1, 2, 0]), "g")


@pytest.mark.parametrize("value", [{}, object(), 1j, {1}])
def test_what_is_no_key_is_an_error(value):
    with pytest.raises(TypeError, match="group key 'g' must hold"):
        value_words(value, "g")
