import pytest
import torch

from torchrb.persistence import StateReader

STATE = {"n": 3, "x": 1.5, "yes": True, "text": "é", "list": [1, 2], "tensor": torch.zeros(2, 3), "in": {"n": 4}}


@pytest.fixture
def reader():
    return StateReader(STATE, "load: Thing")


def test_entries_are_what_they_are(reader):
    assert reader.number("n", 0) == reader.number("n", 3, 3) == 3
    assert reader.real("x") == 1.5 and reader.real("n") == 3 and reader.flag("yes") is True
    assert reader.text("text") == "é" and reader.items("list") == reader.items("list", 2) == [1, 2]
    assert reader.tensor("tensor", torch.float32, None, 3) is STATE["tensor"]
    assert reader.within("in").number("n", 0) == 4 and reader.any("in") is STATE["in"]
    assert "n" in reader and "m" not in reader


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda r: r.number("m", 0), r"has no entry 'm'; it has \['in', 'list', 'n', 'tensor', 'text', 'x', 'yes'\]"),
        (lambda r: r.number("n", 4), "'n' of the saved state must be an int from 4 to .*, got 3"),
        (lambda r: r.number("n", 0, 2), "an int from 0 to 2, got 3"),
        (lambda r: r.number("yes", 0), "an int .* got True"),
        (lambda r: r.number("x", 0), "an int .* got 1.5"),
        (lambda r: r.real("yes"), "a number, got True"),
        (lambda r: r.flag("n"), "True or False, got 3"),
        (lambda r: r.text("n"), "a string, got 3"),
        (lambda r: r.items("n"), "a list, got 3"),
        (lambda r: r.items("list", 3), r"a list of 3, got \[1, 2\]"),
        (lambda r: r.tensor("n", torch.int64), r"a tensor of torch.int64 \[\], got 3"),
        (lambda r: r.tensor("tensor", torch.int64, 2, 3), r"torch.int64 \[2, 3\], got torch.float32 \[2, 3\]"),
        (lambda r: r.tensor("tensor", torch.float32, None), r"a tensor of torch.float32 \['n'\], got torch.float32"),
        (lambda r: r.tensor("tensor", torch.float32, 3, None), r"\[3, 'n'\], got"),
        (lambda r: r.within("in").number("m", 0), r"load: Thing: 'in': the saved state has no entry 'm'"),
        (lambda r: r.within("n"), "load: Thing: 'n': a saved state is a dict, got int"),
        (lambda r: StateReader([], "load"), "load: a saved state is a dict, got list"),
    ],
)
def test_what_they_are_not_is_told(reader, ask, told):
    with pytest.raises(ValueError, match=told):
        ask(reader)
