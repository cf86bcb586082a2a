"""Transforms: which calls they see, in which order, in which direction, and that they change nothing else."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.utils._pytree import tree_map

from tests.cases import RECORDS, STORAGES, TENSORDICTS, buffer
from tests.steps import Shift, Tell, Times, make_shift
from torchrb import (
    Compose,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def rows(*numbers: float) -> TensorDict:
    return TensorDict({"x": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def tracked(**kwargs: Any) -> TensorDictReplayBuffer:
    writer = TensorDictRoundRobinWriter(track_generations=True)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(8), writer=writer, batch_size=4, **kwargs)


def numbers(**kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, **kwargs)


# --- in which order


def test_reading_goes_through_in_order_and_writing_in_reverse():
    log: list = []
    rb = numbers(transform=Compose(Tell("a", log), Tell("b", log)))
    rb.append_transform(Tell("d", log)).insert_transform(2, Tell("c", log))
    rb.insert_transform(-4, Tell("first", log))
    rb.extend(torch.arange(3.0))
    assert log == [("in", name) for name in ("d", "c", "b", "a", "first")]
    log.clear()
    rb.sample()
    assert log == [("out", name) for name in ("first", "a", "b", "c", "d")]


def test_what_is_stored_is_the_inverse_of_what_is_read():
    rb = numbers(transform=Times(10)).append_transform(Shift(3.0))
    rb.extend(torch.tensor([13.0, 23.0]))
    assert rb.storage[:].tolist() == [1.0, 2.0] and rb[:].tolist() == [13.0, 23.0]
    rb[0] = torch.tensor(33.0)
    assert rb.storage[:].tolist() == [3.0, 2.0] and set(rb.sample(50).tolist()) == {33.0, 23.0}


def test_inverted_transforms_are_applied_the_other_way_round():
    log: list = []
    rb = numbers().append_transform(Tell("a", log)).append_transform(Tell("b", log), invert=True)
    rb.insert_transform(0, Tell("c", log), invert=True)
    rb.extend(torch.arange(3.0))
    assert log == [("out", "b"), ("in", "a"), ("out", "c")]
    log.clear()
    rb.sample()
    assert log == [("in", "c"), ("out", "a"), ("in", "b")]


def test_an_inverted_callable_without_an_inverse_leaves_what_is_read_alone():
    rb = numbers().append_transform(lambda x: x + 1, invert=True)
    rb.extend(torch.zeros(3))
    assert rb.storage[:].tolist() == rb[:].tolist() == [1.0] * 3


def test_a_callable_without_an_inverse_leaves_what_is_written_alone():
    rb = numbers(transform=lambda x: x + 1)
    rb.extend(torch.zeros(3))
    assert rb.storage[:].tolist() == [0.0] * 3 and rb[:].tolist() == [1.0] * 3


# --- which calls


INWARD = {
    "add": lambda rb: rb.add(rows(1.0)[0]),
    "extend": lambda rb: rb.extend(rows(1.0, 2.0)),
    "set items": lambda rb: rb.__setitem__(slice(0, 2), rows(1.0, 2.0)),
    "set one": lambda rb: rb.__setitem__(0, rows(1.0)[0]),
    "write_all": lambda rb: rb.write_all(rows(1.0, 2.0)),
}
OUTWARD = {
    "sample": lambda rb: rb.sample(),
    "sample with info": lambda rb: rb.sample(2, return_info=True),
    "next": lambda rb: rb.next(),
    "iterate": lambda rb: next(iter(rb)),
    "get items": lambda rb: rb[:2],
    "get one": lambda rb: rb[0],
    "read_all_in_order": lambda rb: rb.read_all_in_order(),
}
NEITHER = {
    "set_": lambda rb: rb.set_("x", torch.zeros(4, dtype=torch.float64)),
    "set_at_": lambda rb: rb.set_at_("x", torch.zeros(1, dtype=torch.float64), torch.tensor([0])),
    "update_": lambda rb: rb.update_(rows(1.0, 2.0, 3.0, 4.0)),
    "update_if_present": lambda rb: rb.update_if_present(
        index=torch.tensor([0]), generation=torch.tensor([0]), patch=rows(5.0)
    ),
    "write_at": lambda rb: rb.writer.write_at(torch.tensor([0]), rows(1.0)),
    "the writer's extend": lambda rb: rb.writer.extend(rows(1.0)),
    "the storage": lambda rb: (rb.storage[:], rb.storage.__setitem__(0, rows(1.0)[0])),
    "stats": lambda rb: (rb.stats(), len(rb), repr(rb)),
    "empty": lambda rb: rb.empty(),
}


@pytest.mark.parametrize("call", [*INWARD, *OUTWARD, *NEITHER])
def test_each_call_goes_through_the_transforms_once_one_way_or_not_at_all(call):
    log: list = []
    rb = tracked()
    rb.extend(rows(1.0, 2.0, 3.0, 4.0))
    rb.append_transform(Tell("a", log))
    (INWARD | OUTWARD | NEITHER)[call](rb)
    assert log == ([("in", "a")] if call in INWARD else [("out", "a")] if call in OUTWARD else [])


@pytest.mark.parametrize(
    ("kind", "record"),
    [(kind, record) for kind in STORAGES for record in RECORDS if kind != "stack" or record in TENSORDICTS],
)
def test_transforms_see_any_record_as_it_was_handed_in_and_collated_as_it_is_read(kind, record):
    seen: list = []
    rb, batch = buffer(kind, 8, tensordicts=False), RECORDS[record](range(3))
    if kind == "list" and record in ("pytree", "tuple"):
        batch = [tree_map(lambda leaf, i=i: leaf[i], batch) for i in range(3)]
    expected = rb.extend(batch) is not None and rb[:]
    rb.append_transform(lambda data: (seen.append(data), data)[1])
    rb.append_transform(lambda data: (seen.append(data), data)[1], invert=True)
    rb.extend(batch)
    read = rb[:3]
    assert len(seen) == 2 and seen[0] is batch
    assert type(read) is type(expected) and (read is seen[1] or record in TENSORDICTS)


def test_a_list_storage_transforms_single_objects_and_merged_batches():
    rb = ReplayBuffer(storage=ListStorage(4), transform=lambda x: x * 2, batch_size=3)
    rb.extend([1, 2, 3])
    assert rb[0] == 2 and rb[:].tolist() == [2, 4, 6] and rb.sample().shape == (3,)


def test_the_collate_function_comes_first():
    rb = ReplayBuffer(storage=ListStorage(4), collate_fn=tuple, transform=lambda x: ("transformed", x), batch_size=1)
    rb.extend(["only"])
    assert rb.sample() == ("transformed", ("only",))


def test_a_tensordict_module_adds_its_fields():
    double = TensorDictModule(lambda x: 2 * x, in_keys=["x"], out_keys=[("next", "x")])
    rb = tracked(transform=double)
    rb.extend(rows(1.0, 2.0))
    batch = rb.sample()
    assert torch.equal(batch["next", "x"], 2 * batch["x"]) and "index" in batch.keys()
    assert "next" not in rb.storage[:].keys()


def encoded(texts: dict[str, list[str]]) -> dict[str, torch.Tensor]:
    return {"length": torch.tensor([len(text) for text in texts["text"]])}


def test_what_only_an_inverse_makes_storable_is_written_by_every_call():
    rb = numbers().append_transform(encoded, invert=True)
    rb.extend({"text": ["a", "bc", "def", "ghij"]})
    rb[1:3] = {"text": ["five!", "sixsix"]}
    assert rb[:]["length"].tolist() == [1, 5, 6, 4]
    rb.write_all({"text": ["", "a much longer text", "ab"]})  # as many records as the inverse makes
    assert rb[:]["length"].tolist() == [0, 18, 2, 4]


def test_none_is_a_record_like_any_other():
    rb = ReplayBuffer(storage=ListStorage(4), collate_fn=list, transform=Compose(Tell("a", [])))
    rb.add(None)
    assert rb[0] is None and rb[:] == [None]


# --- handles


@pytest.mark.parametrize(
    "transform",
    [
        lambda td: td.apply(torch.zeros_like),
        lambda td: td.zero_(),
        lambda td: td.select(),
        lambda td: td.set("index", torch.full(td.batch_size, -7)),
        lambda td: td.clone().lock_(),
        lambda td: TensorDict({}, td.batch_size),
    ],
    ids=["new", "in place", "nothing left", "a field of that name", "locked", "another"],
)
def test_handles_name_the_records_whatever_a_transform_does(transform):
    torch.manual_seed(0)
    rb = tracked()
    rb.extend(rows(*range(8)))
    rb.extend(rows(8.0, 9.0))
    rb.append_transform(transform)
    batch, info = rb.sample(return_info=True)
    assert torch.equal(batch["index"], info["index"]) and torch.equal(
        batch["index_generation"], info["index_generation"]
    )
    assert torch.equal(rb.writer.generations_of(info["index"]), batch["index_generation"])
    patch = {"x": torch.full((4,), 50.0, dtype=torch.float64)}
    rb.update_if_present(index=batch["index"], generation=batch["index_generation"], patch=patch)
    at = torch.zeros(8, dtype=torch.bool).index_fill(0, info["index"], True)
    assert torch.equal(rb.storage[:]["x"] == 50.0, at)
    assert rb[torch.tensor([[1, 3]])]["index"].tolist() == [[1, 3]]


def test_a_transform_does_not_meet_the_handles():
    keys: list = []
    rb = tracked(transform=lambda td: (keys.append(set(td.keys())), td)[1])
    rb.extend(rows(1.0))
    rb.sample()
    assert keys == [{"x"}]


def test_what_a_transform_keeps_gets_no_handles():
    kept = rows(*range(4))
    rb = tracked(transform=lambda td: kept)
    rb.extend(rows(*range(8)))
    assert set(rb.sample().keys()) == {"x", "index", "index_generation"} and set(kept.keys()) == {"x"}


def test_rows_that_handles_no_longer_fit_are_an_error():
    rb = tracked(transform=lambda td: td[:3])
    rb.extend(rows(1.0, 2.0))
    with pytest.raises(RuntimeError, match=r"slots of \[4\] records .* batch of \[3\] that a transform returned"):
        rb.sample()
    plain = numbers(transform=lambda x: x[:3])
    plain.extend(torch.arange(5))
    assert plain.sample().shape == (3,)


def test_what_is_no_tensordict_any_more_carries_no_handles():
    rb = tracked(transform=lambda td: td["x"])
    rb.extend(rows(1.0, 2.0))
    batch, info = rb.sample(return_info=True)
    assert torch.equal(batch, info["index"] + 1.0)


def test_a_sampled_batch_can_be_written_back_through_the_transforms():
    rb = tracked()
    rb.append_transform(lambda td: td + 1, invert=True)
    rb.extend(rows(1.0, 2.0))
    rb.extend(rb[:])
    assert rb.storage[:]["x"].tolist() == [2.0, 3.0, 3.0, 4.0]


def test_transforms_draw_nothing_from_the_generator():
    drawn = []
    for transform in (None, lambda x: x + torch.rand(())):
        rb = numbers(generator=torch.Generator().manual_seed(3), transform=transform)
        rb.extend(torch.arange(8.0))
        drawn.append([rb.sample(return_info=True)[1]["index"].tolist() for _ in range(3)])
    assert drawn[0] == drawn[1]


# --- modules


def test_gradients_reach_a_module_on_the_way_out_and_stop_at_the_storage():
    rb = numbers(transform=Shift())
    rb.extend(torch.zeros(4))
    rb.sample().sum().backward()
    assert rb.transform[0].by.grad == 4.0
    assert not rb.storage[:].requires_grad


def test_parameters_are_reachable_whichever_way_the_module_points():
    shift, other = Shift(), Shift(2.0)
    rb = numbers(transform=shift).append_transform(lambda x: x).append_transform(other, invert=True)
    assert [id(p) for p in rb.transform.parameters()] == [id(shift.by), id(other.by)]
    assert list(rb.transform.state_dict()) == ["0.by", "2.transform.by"]
    rb.transform.to(torch.float64)
    assert shift.by.dtype == other.by.dtype == torch.float64
    shift.eval()
    rb.extend(torch.zeros(1))
    assert not shift.training and other.training


# --- factories


def test_a_factory_is_called_once_and_when_it_is_needed():
    made = []

    def factory():
        made.append(Times(10))
        return made[-1]

    rb = numbers(transform_factory=factory)
    assert "transform_factory=" in repr(rb) and not made and len(rb) == 0 and rb.stats()["size"] == 0
    rb.extend(torch.tensor([10.0]))
    rb.sample()
    assert len(made) == 1 and list(rb.transform) == made and rb.storage[:].tolist() == [1.0]


@pytest.mark.parametrize(
    "use",
    [
        lambda rb: rb.transform,
        lambda rb: rb.append_transform(Shift()),
        lambda rb: rb.insert_transform(1, Shift()),
        lambda rb: rb.add(torch.tensor(1.0)),
    ],
)
def test_the_first_use_makes_the_transform(use):
    rb = numbers(transform_factory=lambda: Compose(Times(10)))
    use(rb)
    assert isinstance(rb._transform._steps[0], Times)


def test_several_threads_get_one_transform():
    made, start = [], threading.Barrier(4)

    def factory():
        made.append(Times(2))
        return made[-1]

    rb = numbers(transform_factory=factory)

    def write():
        start.wait()
        rb.add(torch.tensor(2.0))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and rb.storage[:].tolist() == [1.0] * 4


def test_a_factory_that_raises_has_changed_nothing_and_is_called_again():
    results = [AttributeError("no model yet"), Times(10)]

    def factory():
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    rb = numbers(transform_factory=factory)
    with pytest.raises(AttributeError, match="no model yet"):
        rb.extend(torch.tensor([10.0]))
    assert len(rb) == rb.write_count == 0
    rb.extend(torch.tensor([10.0]))
    assert rb.storage[:].tolist() == [1.0]


def test_a_factory_that_uses_its_buffer_is_told_so():
    def factory():
        rb.add(torch.zeros(()))
        return Times(2)

    rb = numbers(transform_factory=factory)
    with pytest.raises(RuntimeError, match="transform_factory: it uses the buffer"):
        rb.extend(torch.zeros(1))
    assert len(rb) == 0


def test_a_buffer_is_pickled_with_its_transforms_or_with_what_makes_them():
    rb = numbers(transform_factory=make_shift)
    assert len(rb) == 0  # the other parts are made
    rb._storage = None  # which is not pickled in one process
    rb._writer = rb._read_from = None
    again = pickle.loads(pickle.dumps(rb))
    assert again._transform.pending and rb._transform.pending
    assert again.transform[0].by == 5.0 and again.append_transform(Times(2)) is again
    rb.transform.append(functools.partial(torch.add, other=1))
    copied = pickle.loads(pickle.dumps(rb)).transform
    assert not copied.pending and copied(torch.tensor(1.0)) == 7.0 and len(list(copied.parameters())) == 1


def write_and_tell(rb: ReplayBuffer, told: Any) -> None:
    pending = rb._transform.pending
    rb.extend(torch.tensor([5.0, 6.0]))
    told.put((pending, rb[:].tolist()))


def test_another_process_makes_the_transform_for_itself():
    context = mp.get_context("spawn")
    rb, told = numbers(transform_factory=make_shift, shared=True), context.Queue()
    process = context.Process(target=write_and_tell, args=(rb, told))
    process.start()
    pending, read = told.get(timeout=120)
    process.join()
    assert pending and read == [5.0, 6.0] and process.exitcode == 0
    assert rb._transform.pending and rb.storage[:].tolist() == [0.0, 1.0] and rb[:].tolist() == read


# --- what is no transform


@pytest.mark.parametrize("make", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_transform_and_a_factory_exclude_each_other(make):
    with pytest.raises(TypeError, match=f"{make.__name__}: transform and transform_factory exclude each other"):
        make(transform=Times(2), transform_factory=make_shift)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ReplayBuffer(transform=3), "ReplayBuffer: a transform must be callable with the data, got int"),
        (lambda: ReplayBuffer(transform=[Times(2)]), r"got list. Chain several by Compose\(\*transforms\)"),
        (lambda: ReplayBuffer(transform=Shift), "got the class Shift. Pass an instance of it, or .* transform_factory"),
        (lambda: ReplayBuffer(transform=Times), "got the class Times"),
        (lambda: ReplayBuffer(transform_factory=3), "transform_factory must be callable without arguments, got int"),
        (lambda: ReplayBuffer(transform_factory=lambda: None).add(1), "transform_factory: a transform .* got NoneType"),
        (lambda: ReplayBuffer(transform_factory=lambda: 3).transform, "transform_factory: a transform .* got int"),
        (lambda: ReplayBuffer().append_transform("a"), "append_transform: a transform .* got str"),
        (lambda: ReplayBuffer().insert_transform(0, None), "insert_transform: a transform .* got NoneType"),
        (lambda: Compose(Times(2), 3), "Compose: a transform must be callable"),
    ],
)
def test_what_is_no_transform_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_transform_that_returns_nothing_is_named():
    rb = numbers(transform=lambda x: None)
    rb.extend(torch.zeros(2))
    with pytest.raises(TypeError, match=r"transform .*lambda.* returned None. Return the data"):
        rb.sample()
    rb = numbers().append_transform(lambda x: None, invert=True)
    with pytest.raises(TypeError, match=r"transform Inverse\(.* returned None"):
        rb.extend(torch.zeros(2))
    assert len(rb) == 0


@pytest.mark.parametrize("index", [-2, 2, 9])
def test_a_transform_is_inserted_within_the_row(index):
    rb = numbers(transform=Times(2))
    with pytest.raises(ValueError, match=f"index must be from -1 to 1, got {index}"):
        rb.insert_transform(index, Times(3))
    assert len(rb.transform) == 1
