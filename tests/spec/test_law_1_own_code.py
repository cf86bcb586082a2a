"""Law 1 where data brings code of its own, and that code writes to the very buffer that the data is on its way into.

Copying an object (``__deepcopy__``), counting a sequence (``__len__``), reading it (``__getitem__``, ``__iter__``) or
an index (``__index__``) may empty the buffer, refill it or write over it. Whatever the outer call then does, it does to
what is stored then: what was removed stays removed, and records stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrb.generations import words_of
from torchrb.ops.schemas import SLOT_LIVE

CAPACITY = 6


class Acting:
    """Something whose copy is made by code that acts, each time."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __deepcopy__(self, memo: dict) -> str:
        self.act()
        return "copied"


class ActingList(Sequence):
    """A sequence that acts when it is counted and when it is read."""

    def __init__(self, items: list[Any], act: Callable[[], object]) -> None:
        self.items, self.act = items, act

    def __len__(self) -> int:
        self.act()
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        self.act()
        return self.items[index]


class ActingNumber:
    """An index that acts."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number, self.act = number, act

    def __index__(self) -> int:
        self.act()
        return self.number


def rows(numbers: Sequence[int], objects: Sequence[Any] | None = None) -> TensorDict:
    batch = TensorDict({"n": torch.as_tensor(list(numbers), dtype=torch.int64)}, [len(numbers)])
    texts = [f"record {n}" for n in numbers] if objects is None else objects
    return batch.set("text", torch.stack([NonTensorData(text) for text in texts]))


STORAGES = {"tensor": LazyTensorStorage, "stack": LazyStackStorage, "list": ListStorage}


def buffer_of(kind: str) -> ReplayBuffer:
    writer = TensorDictRoundRobinWriter(track_generations=True)
    rb = TensorDictReplayBuffer(storage=STORAGES[kind](CAPACITY), writer=writer, collate_fn=lambda records: records)
    rb.extend(rows(range(4)))
    return rb


ACTS: dict[str, Callable[[ReplayBuffer], object]] = {
    "empties": lambda rb: rb.empty(),
    "empties and starts anew": lambda rb: (rb.empty(), rb.extend(rows([90]))),
    "appends": lambda rb: rb.extend(rows([91, 92, 93])),
    "overwrites": lambda rb: rb.__setitem__(slice(None), rows(range(80, 80 + len(rb)))),
}


def _patch(rb: ReplayBuffer, texts: Any, index: Any = None) -> Any:
    index = torch.tensor([3, 1]) if index is None else index
    return rb.update_if_present(index=index, generation=rb.writer.generations_of(torch.tensor([3, 1])), patch=texts)


Call = Callable[[ReplayBuffer, Callable[[], object]], Any]
CALLS: dict[str, Call] = {
    "add": lambda rb, act: rb.add(rows([20], [Acting(act)])[0]),
    "extend": lambda rb, act: rb.extend(rows([20, 21], ["new", Acting(act)])),
    "extend a list": lambda rb, act: rb.extend([rows([20], ["new"])[0], rows([21], [Acting(act)])[0]]),
    "extend a sequence": lambda rb, act: rb.extend(ActingList(list(rows([20, 21])), act)),
    "set one": lambda rb, act: rb.__setitem__(3, rows([20], [Acting(act)])[0]),
    "set the last": lambda rb, act: rb.__setitem__(-1, rows([20], [Acting(act)])[0]),
    "set items": lambda rb, act: rb.__setitem__(torch.tensor([3, 1]), rows([20, 21], ["new", Acting(act)])),
    "set a mask": lambda rb, act: rb.__setitem__([False, True, False, True], rows([20, 21], ["new", Acting(act)])),
    "set a slice": lambda rb, act: rb.__setitem__(slice(None), rows(range(20, 24), [Acting(act)] * 4)),
    "set at an index that acts": lambda rb, act: rb.__setitem__(ActingList([3, 1], act), rows([20, 21])),
    "set a slice that acts": lambda rb, act: rb.__setitem__(slice(ActingNumber(2, act), None), rows([20, 21])),
    "write_at": lambda rb, act: rb.writer.write_at(torch.tensor([3, 1]), rows([20, 21], ["new", Acting(act)])),
    "write_all": lambda rb, act: rb.write_all(rows([20, 21], ["new", Acting(act)])),
    "storage": lambda rb, act: rb.storage.set([3, 1], rows([20, 21], ["new", Acting(act)])),
    "set_": lambda rb, act: rb.set_("text", [Acting(act)] * 4),
    "set_at_": lambda rb, act: rb.set_at_("text", ["new", Acting(act)], torch.tensor([3, 1])),
    "set_at_ an index that acts": lambda rb, act: rb.set_at_("n", torch.tensor([20, 21]), ActingList([3, 1], act)),
    "set_at_ a sequence": lambda rb, act: rb.set_at_("n", ActingList([20, 21], act), torch.tensor([3, 1])),
    "update_": lambda rb, act: rb.update_({"n": torch.arange(20, 24), "text": [Acting(act)] * 4}),
    "update_if_present": lambda rb, act: _patch(rb, {"text": ["new", Acting(act)]}),
    "update_if_present with a sequence": lambda rb, act: _patch(rb, {"n": ActingList([20, 21], act)}),
    "update_if_present at an index that acts": lambda rb, act: _patch(
        rb, {"n": torch.tensor([20, 21])}, ActingList([3, 1], act)
    ),
    "read": lambda rb, act: rb[ActingList([3, 1], act)],
    "read a slice": lambda rb, act: rb[ActingNumber(0, act) : None],
}


def assert_whole(rb: ReplayBuffer) -> list[int]:
    """The live slots are those below the length, each has its object and no other has one. Returns their numbers."""
    live = torch.nonzero((words_of(rb.storage.tables) & SLOT_LIVE) != 0).view(-1).tolist()
    assert live == list(range(len(rb)))
    columns = rb.storage._objects if isinstance(rb.storage, LazyTensorStorage) else [rb.storage._items]
    for column in columns:
        assert [item is not None for item in column] == [slot < len(rb) for slot in range(CAPACITY)]
    records = [rb[i] for i in live]
    numbers = [int(record["n"]) for record in records]
    for number, record in zip(numbers, records, strict=True):
        text = record["text"]
        if str(text).startswith("record") and number not in (20, 21, 22, 23):
            assert text == f"record {number}"
    return numbers


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", STORAGES)
def test_data_that_writes_leaves_whole_records_and_raises_none_from_the_dead(kind, call, act):
    rb = buffer_of(kind)
    acts = []

    def once() -> None:
        if not acts:
            acts.append(act)
            ACTS[act](rb)

    raised = None
    try:
        CALLS[call](rb, once)
    except (IndexError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raised = error
    numbers = assert_whole(rb)
    if not acts:
        return  # the call was refused before it looked at its data, or does not take such data
    if raised is not None or call.startswith(("update_if_present", "read")):
        alone = buffer_of(kind)
        ACTS[act](alone)
        if raised is not None:
            assert numbers == assert_whole(alone), f"the call raised {raised!r} and has written"
        elif act == "empties":
            assert numbers == []
    elif act == "empties":
        assert call.startswith(("add", "extend")) or not numbers


def test_nothing_of_the_callers_runs_once_a_conditional_update_is_written():
    rb = buffer_of("tensor")
    reads = []

    class Failing(ActingList):
        def __getitem__(self, index: Any) -> Any:
            reads.append(index)
            if rb[3]["n"] == 20:
                raise OSError("the sequence is gone")
            return super().__getitem__(index)

    index = Failing([3, 1], lambda: None)
    generation = rb.writer.generations_of(torch.tensor([3, 1]))
    result = rb.update_if_present(index=index, generation=generation, patch={"n": torch.tensor([20, 21])})
    assert reads and result.updated.tolist() == [True, True] and rb[:]["n"].tolist() == [0, 21, 2, 20]


@pytest.mark.parametrize("kind", STORAGES)
def test_a_record_is_not_written_where_the_buffer_was_emptied_meanwhile(kind):
    for index in (0, -1, [0, 1], torch.tensor([True] * 4)):
        rb = buffer_of(kind)
        handles = rb.writer.generations_of(torch.arange(4))
        data = rows([20, 21, 22, 23][: 4 if isinstance(index, torch.Tensor) else 2 if isinstance(index, list) else 1])
        data["text"] = torch.stack([NonTensorData(Acting(rb.empty))] * len(data))
        with pytest.raises(IndexError, match=r"0 records are stored|a mask must have shape \[0\]"):
            rb[index] = data[0] if isinstance(index, int) else data
        assert len(rb) == 0 and not (rb.writer.generations_of(torch.arange(4)) == handles).any()
