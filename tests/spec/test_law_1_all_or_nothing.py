"""Law 1: a call that raises has changed nothing.

Every call that writes meets every kind of bad input that it can be given, on every kind of storage, empty, half full
and wrapped; what a buffer is made of is compared bit by bit before and after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from tests.spec.builders import (
    STORAGES,
    TENSOR_STORAGES,
    buffer_of,
    numbered,
)
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import TensorDictReplayBuffer

FILLS = {"half full": range(4), "wrapped": range(11)}


class Uncopyable:
    """Something that cannot be stored: copying it fails."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


# --- bad records ----------------------------------------------------------------------------------------------------


def _shape(rows: TensorDict) -> Any:
    return rows.set("wide", rows["wide"][:, :-1])


def _dtype(rows: TensorDict) -> Any:
    return rows.set("byte", rows["byte"].to(torch.int64))


def _nested_dtype(rows: TensorDict) -> Any:
    return rows.set(("next", "reward"), rows["next", "reward"].float())


def _missing(rows: TensorDict) -> Any:
    return rows.exclude("flag")


def _nested_missing(rows: TensorDict) -> Any:
    return rows.exclude(("next", "reward"))


def _extra(rows: TensorDict) -> Any:
    return rows.set("more", torch.zeros(len(rows)))


def _tensor_became_text(rows: TensorDict) -> Any:
    return rows.exclude("g").set("g", ["text"] * len(rows))


def _text_became_tensor(rows: TensorDict) -> Any:
    return rows.exclude("text").set("text", torch.zeros(len(rows)))


def _without_data(rows: TensorDict) -> Any:
    return rows.set("n", torch.empty(len(rows), dtype=torch.int64, device="meta"))


def _sparse(rows: TensorDict) -> Any:
    return rows.set("wide", rows["wide"].to_sparse())


def _more_batch_dims(rows: TensorDict) -> Any:
    return rows.unsqueeze(-1)


def _uncopyable(rows: TensorDict) -> Any:
    return rows.exclude("text").set("text", torch.stack([NonTensorData(Uncopyable()) for _ in range(len(rows))]))


def _not_records(rows: TensorDict) -> Any:
    return "text"


def _an_object(rows: TensorDict) -> Any:
    return object()


BAD_RECORDS: list[Callable[[TensorDict], Any]] = [
    _shape, _dtype, _nested_dtype, _missing, _nested_missing, _extra, _tensor_became_text, _text_became_tensor,
    _without_data, _sparse, _more_batch_dims, _uncopyable, _not_records, _an_object,
]  # fmt: skip


# --- ways to write whole records ------------------------------------------------------------------------------------


def _extend(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.extend(bad)


def _extend_list(rb: TensorDictReplayBuffer, bad: Any) -> None:
    """Good records first, so that a storage which wrote as it went would have written."""
    rb.extend([*numbered([20, 21]), *(bad if isinstance(bad, TensorDict) else [bad])])


def _extend_generations(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.extend(bad, return_generations=True)


def _add(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.add(bad[0] if isinstance(bad, TensorDict) else bad)


def _set_item(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb[torch.tensor([2, 0, 1])] = bad


def _set_one(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb[1] = bad[0] if isinstance(bad, TensorDict) else bad


def _write_at(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.writer.write_at(torch.tensor([2, 0, 1]), bad)


def _write_all(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.write_all(bad, end=3)


def _storage_set(rb: TensorDictReplayBuffer, bad: Any) -> None:
    rb.storage[:3] = bad


WRITES = [
    _extend, _extend_list, _extend_generations, _add, _set_item, _set_one, _write_at, _write_all, _storage_set,
]  # fmt: skip


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("bad", BAD_RECORDS, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_bad_records_change_nothing(kind, write, bad, fill):
    rb = buffer_of(kind, 8, numbers=FILLS[fill])
    before = snapshot(rb)
    with pytest.raises((KeyError, ValueError, TypeError)):
        write(rb, bad(numbered([30, 31, 32])))
    assert_unchanged(before, rb)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("bad", [_uncopyable, _not_records], ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("kind", ["stack", "list"])
def test_records_that_no_list_can_keep_change_nothing(kind, write, bad, fill):
    if kind == "list" and bad is _not_records and write in (_add, _set_one, _extend_list):
        bad = _uncopyable  # a text is a fine record of a list
    rb = buffer_of(kind, 8, numbers=FILLS[fill])
    before = snapshot(rb)
    with pytest.raises(TypeError):
        write(rb, bad(numbered([30, 31, 32])))
    assert_unchanged(before, rb)


@pytest.mark.parametrize("kind", STORAGES)
def test_an_iterator_that_fails_half_way_changes_nothing(kind):
    def records():
        yield numbered([20])[0]
        yield numbered([21])[0]
        raise OSError("the stream broke")

    rb = buffer_of(kind, 8, numbers=range(4))
    before = snapshot(rb)
    with pytest.raises(OSError, match="the stream broke"):
        rb.extend(records())
    assert_unchanged(before, rb)


@pytest.mark.parametrize("write", [_set_item, _write_at, _write_all, _storage_set], ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("num", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", STORAGES)
def test_a_wrong_number_of_records_changes_nothing(kind, write, num):
    rb = buffer_of(kind, 8, numbers=range(5))
    before = snapshot(rb)
    with pytest.raises(ValueError):
        write(rb, numbered(list(range(num))))
    assert_unchanged(before, rb)


BAD_INDEX = {
    "past the end": torch.tensor([0, 1, 5]),
    "before the start": torch.tensor([0, 1, -6]),
    "floats": torch.tensor([0.0, 1.0, 2.0]),
    "a mask of another length": torch.tensor([True, True, True]),
    "text": "012",
    "nothing": None,
}


@pytest.mark.parametrize("bad", BAD_INDEX)
@pytest.mark.parametrize("kind", STORAGES)
def test_a_bad_index_changes_nothing(kind, bad):
    rb = buffer_of(kind, 8, numbers=range(5))
    before, index, rows = snapshot(rb), BAD_INDEX[bad], numbered([30, 31, 32])
    for write in (
        lambda: rb.__setitem__(index, rows),
        lambda: rb.storage.set(index, rows),
        lambda: rb.writer.write_at(index, rows),
        lambda: rb.set_at_("n", rows["n"], index),
        lambda: rb[index],
    ):
        with pytest.raises((IndexError, TypeError)):
            write()
        assert_unchanged(before, rb)


# --- the first batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [_without_data, _sparse, _uncopyable, _not_records, _an_object], ids=lambda f: f.__name__[1:]
)
@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_a_bad_first_batch_leaves_no_structure(kind, bad):
    rb = buffer_of(kind, 8)
    before = snapshot(rb)
    for write in (_extend, _extend_list, _add):
        with pytest.raises((KeyError, ValueError, TypeError)):
            write(rb, bad(numbered([30, 31, 32])))
        assert_unchanged(before, rb)
    rb.extend(TensorDict({"other": torch.arange(3)}, [3]))
    assert rb[:]["other"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_rows_of_unequal_shapes_leave_no_structure(kind):
    rb = buffer_of(kind, 8)
    before = snapshot(rb)
    for batch in (
        [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}],
        [torch.zeros(2), {"a": torch.zeros(2)}],
        {"a": torch.zeros(())},
        {},
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            rb.extend(batch)
        assert_unchanged(before, rb)
