"""Values come back from bytes as what they were; nothing else is taken, and nothing is executed."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrb.storages.values import from_bytes, from_json, to_bytes, to_json

_plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=9) | st.text(max_size=9)
    | st.sampled_from(["", "\ud800", "é", "\0", 2**4000, -(2**63), -0.0, math.inf, math.nan])
)  # fmt: skip
_values = st.recursive(
    _plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(max_size=3) | st.tuples(st.text(max_size=2)), inner, max_size=3)
    ),
    max_leaves=8,
)


def alike(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    return a == b


@settings(max_examples=60, deadline=None)
@given(_values)
def test_a_value_comes_back_as_what_it_was(value):
    assert alike(from_bytes(to_bytes(value, "x")), value)
    assert alike(from_json(json.loads(json.dumps(to_json(value, "x")))), value)


def test_a_string_of_a_class_of_its_own_is_kept_as_a_string():
    class Name(str):
        def encode(self, *_):
            raise AssertionError("code of the value's own")

        __str__ = __repr__ = encode

    for value in (Name("a"), [Name("é")]):
        kept = from_bytes(to_bytes(value, "x"))
        assert alike(kept, "a" if isinstance(value, str) else ["é"])


@pytest.mark.parametrize("value", [object(), {1, 2}, [object()], {"a": (1, {object(): 2})}, 1j, type, range(3)])
def test_what_cannot_be_kept_is_named(value):
    with pytest.raises(TypeError, match=r"field 'g' must be strings, None, .* got a builtins\.\w+\."):
        to_bytes(value, "extend: field 'g'")


def test_endless_values_are_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(TypeError, match="nested deeper"):
        to_bytes(loop, "x")


class _Executed:
    def __reduce__(self):
        return pytest.fail, ("a file was executed",)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80", b"p" + pickle.dumps(1), pickle.dumps(_Executed()), b"s\xff", b"j{", b'j{"a":1,"b":2}', b'j{"a":1}',
        b'j{"float":"00"}', b'j{"float":7}', b'j{"bytes":"0"}', b'j{"int":"x"}', b'j{"dict":[[[],1]]}', b'j{"dict":3}',
        b"j" + b"[" * 100_000,
    ],
)  # fmt: skip
def test_bytes_that_are_no_value_are_a_value_error(data):
    with pytest.raises(ValueError):
        from_bytes(data)
