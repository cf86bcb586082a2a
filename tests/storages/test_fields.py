"""Fields are found by name, planned before anything is written, and written alone."""

from __future__ import annotations

import pytest
import torch

from tests.cases import LAYOUTS, RECORDS, STORAGES, plain
from torchrb import LazyTensorStorage
from torchrb.ops.schemas import STALE, UPDATED
from torchrb.storages.fields import overlap


def rows_of(kind, numbers, layout="packed", capacity=8):
    storage = STORAGES[layout](capacity)
    storage.append(RECORDS[kind](numbers))
    return storage


def slots(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["nested", "texts"])
def test_fields_are_written_alone(kind, layout):
    storage, new = rows_of(kind, [1, 2, 3], layout), RECORDS[kind]([7, 8])
    storage.write_fields(slots(2, 0), {"n": new["n"]})
    assert storage[:]["n"].tolist() == [8, 2, 7]
    rest = [key for key in new.keys() if key != "n"]
    assert plain(storage[:].select(*rest)) == plain(RECORDS[kind]([1, 2, 3]).select(*rest))
    if kind == "texts":
        storage.write_fields(slots(1), {"prompt": ["new"]})
        assert list(storage[:]["prompt"]) == [RECORDS[kind]([1])["prompt"][0], "new", None]
    else:
        storage.write_fields(slots(1), {("next", "deep", "b"): torch.tensor([True])})
        assert storage[1]["next", "deep", "b"].item() is True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"m": torch.tensor([1])}, KeyError),
        ({"n": torch.tensor([1, 2])}, ValueError),
        ({"n": torch.tensor([1.5])}, ValueError),
        ({"prompt": ["a", "b"]}, ValueError),
        ({"prompt": 3}, ValueError),
    ],
)
def test_a_plan_that_does_not_fit_says_so_and_writes_nothing(layout, fields, error):
    storage = rows_of("texts", [1, 2, 3], layout)
    before = plain(storage[:])
    with pytest.raises(error, match="a call: .*'(m|n|prompt)'"):
        storage.plan_fields(fields, 1, "a call")
    assert plain(storage[:]) == before and storage.journal_position == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_is_of_live_records_alone_and_of_all_fields_at_once(layout):
    storage = rows_of("texts", [1, 2, 3], layout)
    planned = storage.plan_fields({"n": torch.tensor([7, 8]), "prompt": ["seven", "eight"]}, 2, "a call")
    status = storage.update_if(slots(0, 2), torch.tensor([0, 5]), planned, None, None, False)
    assert status.tolist() == [UPDATED, STALE]
    assert storage[:]["n"].tolist() == [7, 2, 3] and storage[0]["prompt"] == "seven" and storage[2]["prompt"] != "eight"


def test_nothing_is_live_before_a_first_batch():
    storage = LazyTensorStorage(4)
    planned = storage.plan_fields({}, 2, "a call")
    assert storage.update_if(slots(0, 1), slots(0, 0), planned, None, None, False).tolist() == [STALE] * 2


def test_overlap_is_of_bytes():
    memory = torch.arange(10)
    assert overlap(memory[2:4], [memory[3:6]]) and overlap(memory, [memory[9:]])
    assert not overlap(memory[2:4], [memory[4:6]]) and not overlap(memory[2:4], [memory[3:3]])
