"""Cases from the field about keeping records: saved, loaded, killed on the way. Each with relatives."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from tests.spec import dumps
from torchrb import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PromptGroupSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)

TEXTS = ["a", "b", "é", "\ud800", "", None]
WAYS = ["dumps", "state_dict", "storage"]


def carried(way, rb, new, tmp_path):
    """Another buffer that takes up what one has."""
    if way == "dumps":
        rb.dumps(tmp_path)
        new.loads(tmp_path)
    elif way == "storage":
        rb.storage.dumps(tmp_path)
        new.storage.loads(tmp_path)
    else:
        new.load_state_dict(rb.state_dict())
    return new


# --- 19: strings ----------------------------------------------------------------------------------------------------


def grouped(storage):
    return TensorDictReplayBuffer(storage=storage, sampler=PromptGroupSampler(samples_per_group=1, group_key="g"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage, LazyStackStorage])
def test_strings_come_back_and_are_the_groups_they_were(tmp_path, kind, way):
    rb = grouped(kind(10))
    rb.extend(TensorDict({"g": TEXTS, "x": torch.arange(6)}, [6]))
    new = carried(way, rb, grouped(kind(10)), tmp_path)
    assert [row["g"] for row in (new[i] for i in range(len(new)))] == TEXTS
    assert sorted(new.sample(6)["x"].tolist()) == [0, 1, 2, 3, 4, 5]  # six groups of one
    assert new.stats()["num_groups"] == 6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["\0", "line\nbreak", '"quoted\\', "日本語", "🙂" * 1000, "$", "type"])
def test_any_string_comes_back(tmp_path, way, text):
    rb, new = ReplayBuffer(storage=LazyTensorStorage(4)), ReplayBuffer(storage=LazyTensorStorage(4))
    rb.add(TensorDict({"text": text, text: torch.ones(2), "nested": {"text": text}}))
    row = carried(way, rb, new, tmp_path)[0]
    assert row["text"] == text and row["nested", "text"] == text and row[text].tolist() == [1, 1]


@pytest.mark.parametrize("way", WAYS)
def test_other_plain_values_beside_tensors_come_back(tmp_path, way):
    values = [1, 2.5, float("nan"), True, None, [1, ("é", {2: "x"})], {"a": None}, 10**400]
    rb, new = ReplayBuffer(storage=LazyTensorStorage(9)), ReplayBuffer(storage=LazyTensorStorage(9))
    for value in values:
        rb.add(TensorDict({"value": NonTensorData(value), "n": torch.zeros(1)}))
    carried(way, rb, new, tmp_path)
    assert repr([new[i]["value"] for i in range(8)]) == repr([rb[i]["value"] for i in range(8)])


@pytest.mark.parametrize("way", WAYS)
def test_a_string_patched_since_the_last_dump_comes_back(tmp_path, way):
    rb, new = ReplayBuffer(storage=LazyTensorStorage(100)), ReplayBuffer(storage=LazyTensorStorage(100))
    rb.extend(TensorDict({"text": [str(i) for i in range(100)], "x": torch.arange(100)}, [100]))
    carried(way, rb, new, tmp_path)
    rb.set_at_("text", ["é"], torch.tensor([7]))
    carried(way, rb, new, tmp_path)
    assert [new[i]["text"] for i in (6, 7, 8)] == ["6", "é", "8"]


# --- 20: ragged rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_ragged_rows_come_back(tmp_path, way):
    rb, new = (TensorDictReplayBuffer(storage=LazyStackStorage(10)) for _ in range(2))
    rb.extend([TensorDict({"tokens": torch.arange(n), "text": "x" * n}) for n in (1, 2, 3, 4)])
    carried(way, rb, new, tmp_path)
    assert [new[i]["tokens"].tolist() for i in range(4)] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [new[i]["text"] for i in range(4)] == ["x", "xx", "xxx", "xxxx"]


@pytest.mark.parametrize("way", WAYS)
def test_rows_with_other_fields_than_their_neighbours_come_back(tmp_path, way):
    records = [
        TensorDict({"a": torch.zeros(2, 0)}),
        TensorDict({"b": {"c": torch.tensor(True), "d": TensorDict({}, [3])}}),
        TensorDict({"e": torch.ones(3, 2, dtype=torch.complex64)}, [3]),
    ]
    rb, new = (ReplayBuffer(storage=LazyStackStorage(10), collate_fn=lambda rows: rows) for _ in range(2))
    for record in records:
        rb.add(record)
    carried(way, rb, new, tmp_path)
    for i, record in enumerate(records):
        assert new[i].batch_size == record.batch_size and (new[i] == record).all()
        assert set(new[i].keys(True)) == set(record.keys(True))


@pytest.mark.parametrize("way", WAYS)
def test_stacks_within_rows_come_back(tmp_path, way):
    turns = [TensorDict({"tokens": torch.arange(n)}) for n in (1, 3)]
    rb, new = (ReplayBuffer(storage=LazyStackStorage(10), collate_fn=lambda rows: rows) for _ in range(2))
    rb.add(TensorDict({"turns": TensorDict.lazy_stack(turns)}))
    carried(way, rb, new, tmp_path)
    assert [turn["tokens"].tolist() for turn in new[0]["turns"].unbind(0)] == [[0], [0, 1, 2]]


@pytest.mark.parametrize("way", WAYS)
def test_lists_of_anything_plain_come_back(tmp_path, way):
    records = [
        1,
        "é",
        None,
        1.5,
        True,
        2 + 1j,
        (1, [2, {"x": torch.arange(3), (1, 2): ()}]),
        torch.tensor(3, dtype=torch.int8),
    ]
    rb, new = (ReplayBuffer(storage=ListStorage(), collate_fn=lambda rows: rows) for _ in range(2))
    rb.extend(records)
    carried(way, rb, new, tmp_path)
    assert repr(new[:]) == repr(records) and [type(x) for x in new[:]] == [type(x) for x in records]
    new[:][6][1][1]["x"].zero_()
    assert new[6][1][1]["x"].tolist() == [0, 1, 2]


# --- 21: killed half-way: see test_law_8_dumps_cut_off.py -----------------------------------------------------------


def test_length_and_cursor_are_always_of_one_dump(tmp_path):
    rb = dumps.buffer(0, num=3)
    for first in (10, 20, 30):
        rb.dumps(tmp_path)
        new = dumps.buffer(num=0)
        new.loads(tmp_path)
        assert dumps.told(new) == dumps.told(rb)
        rb.extend(dumps.rows(first, 4))


# --- 22: as large as what is stored ---------------------------------------------------------------------------------


def size_of(place):
    return sum(map(len, dumps.files_of(place).values()))


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyStackStorage, LazyMemmapStorage])
def test_ten_rows_are_dumped_as_ten_rows(tmp_path, kind):
    rb = ReplayBuffer(storage=kind(100_000))
    rb.extend(TensorDict({"x": torch.randn(10, 1000)}, [10]))
    rb.dumps(tmp_path)
    assert 40_000 < size_of(tmp_path) < 45_000
    state = rb.state_dict()
    with open(tmp_path / "saved", "wb") as file:
        torch.save(state, file)
    assert (tmp_path / "saved").stat().st_size < 50_000


def test_what_was_emptied_takes_no_room(tmp_path):
    rb = ReplayBuffer(storage=LazyTensorStorage(10_000))
    rb.extend(torch.randn(10_000, 100))
    rb.dumps(tmp_path)
    rb.empty()
    rb.extend(torch.randn(10, 100))
    rb.dumps(tmp_path)
    assert size_of(tmp_path) < 6_000


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_dumped_again_only_what_was_written_since_is_written(tmp_path, kind):
    rb = ReplayBuffer(storage=kind(10_000))
    rb.extend(torch.randn(10_000, 100))
    rb.dumps(tmp_path)
    before, written = dumps.files_of(tmp_path), 0
    for _ in range(30):
        rb.extend(torch.randn(10, 100))
        rb.dumps(tmp_path)
        after = dumps.files_of(tmp_path)
        written += sum(len(text) for name, text in after.items() if name not in before)
        before = after
        assert len(after) < 10
    new = ReplayBuffer(storage=kind(10_000))
    new.loads(tmp_path)
    assert (new[:] == rb[:]).all()
    assert written < 4 * 30 * 10 * 416  # four times what was changed; all rows are 4,160,000 bytes each time
    rb.dumps(tmp_path)
    assert len(dumps.files_of(tmp_path).keys() - before.keys()) == 2  # nothing but what is beside the rows


def test_a_dump_elsewhere_or_of_another_buffer_is_written_whole(tmp_path):
    first, second = (ReplayBuffer(storage=LazyTensorStorage(100)) for _ in range(2))
    first.extend(torch.arange(100))
    second.extend(-torch.arange(100))
    for turn in range(3):
        for rb in (first, second):
            rb[torch.tensor([turn])] = torch.tensor([7])
            for place in ("a", "b"):
                rb.dumps(tmp_path / place)
                new = ReplayBuffer(storage=LazyTensorStorage(100))
                new.loads(tmp_path / place)
                assert (new[:] == rb[:]).all()


def test_what_a_user_wrote_into_adopted_tensors_is_dumped(tmp_path):
    mine = torch.arange(10)
    rb = ReplayBuffer(storage=TensorStorage(mine))
    rb.dumps(tmp_path)
    mine += 1
    rb.dumps(tmp_path)
    new = ReplayBuffer(storage=LazyTensorStorage(10))
    new.loads(tmp_path)
    assert new[:].tolist() == list(range(1, 11))


# --- 23: a snapshot is a snapshot -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_a_snapshot_does_not_move_with_the_buffer(layout):
    rb = ReplayBuffer(storage=LazyTensorStorage(6, layout=layout), writer=RoundRobinWriter(track_generations=True))
    rb.extend(dumps.rows(0, 6))
    generations = rb.writer.generations_of(torch.arange(6))
    state = rb.state_dict()
    rb[:] = dumps.rows(100, 6)
    rb.set_("id", torch.full((6,), -1))
    rb.load_state_dict(state)
    assert rb[:]["id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (rb.writer.generations_of(torch.arange(6)) == generations).all()


def test_nor_does_the_buffer_move_with_the_snapshot():
    rb = ReplayBuffer(storage=LazyTensorStorage(6))
    rb.extend(torch.arange(6))
    state = rb.state_dict()
    rb.load_state_dict(state)
    for rows in state["storage"]["rows"]:
        for table in rows["tables"]:
            table.zero_()
    assert rb[:].tolist() == [0, 1, 2, 3, 4, 5]


def test_it_can_be_loaded_as_often_as_one_likes():
    rb = ReplayBuffer(storage=ListStorage(6), collate_fn=lambda rows: rows)
    rb.extend([torch.tensor([1, 2]), "x"])
    state = rb.state_dict()
    for _ in range(3):
        rb[0][:] = 7
        rb.extend([torch.zeros(1)] * 5)
        rb.load_state_dict(state)
        assert rb[0].tolist() == [1, 2] and rb[1] == "x" and len(rb) == 2


def test_users_tensors_that_were_adopted_hold_the_old_rows_again():
    mine = torch.arange(4)
    rb = ReplayBuffer(storage=TensorStorage(mine))
    state = rb.state_dict()
    rb[:] = torch.zeros(4, dtype=torch.int64)
    assert mine.tolist() == [0, 0, 0, 0]
    rb.load_state_dict(state)
    assert mine.tolist() == rb[:].tolist() == [0, 1, 2, 3]
