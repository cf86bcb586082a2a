"""Writing over what is stored: whole records step their generation, fields leave it, and what fails changes nothing."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, RECORDS, STORAGES, buffer, plain
from torchrb import LazyStackStorage, LazyTensorStorage, ListStorage, ReplayBuffer, RoundRobinWriter

each_storage = pytest.mark.parametrize("kind", STORAGES)
each_layout = pytest.mark.parametrize("kind", LAYOUTS)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def xs(rb):
    return [int(rb[i]["x"]) for i in range(len(rb))]


@each_storage
@pytest.mark.parametrize(
    "index", [0, -1, [0, 2], slice(None, None, -1), torch.tensor([True, False, True]), range(1, 3)]
)
def test_assigning_is_writing_whole_records(kind, index):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1, 2))
    places = torch.tensor(range(3)[index]) if isinstance(index, slice) else torch.arange(3)[torch.as_tensor(index)]
    rb[index] = rows(*range(50, 50 + max(places.numel(), 1)))[0 if not places.dim() else slice(None)]
    expected, generations = [0, 1, 2], [0, 0, 0, -1]
    for n, place in enumerate(places.reshape(-1).tolist()):
        expected[place], generations[place] = 50 + n, 1
    assert xs(rb) == expected and rb.writer.generations_of(torch.arange(4)).tolist() == generations
    assert (rb.write_count, rb.storage.cursor) == (3, 3)


@pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])
def test_setting_fields_keeps_the_records(kind):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1, 2))
    assert rb.set_("x", torch.tensor([5, 6, 7])) is rb and xs(rb) == [5, 6, 7]
    assert rb.set_at_("x", torch.tensor([8, 9]), [2, 0]) is rb and xs(rb) == [9, 6, 8]
    assert xs(rb.set_at_("x", torch.tensor(1), -1)) == [9, 6, 1] and xs(rb.set_at_("x", 3, 1)) == [9, 3, 1]
    assert xs(rb.set_at_("x", torch.tensor([4, 2]), slice(1, None))) == [9, 4, 2]
    assert xs(rb.set_at_("x", torch.tensor([0]), torch.tensor([False, True, False]))) == [9, 0, 2]
    assert rb.update_({"x": torch.tensor([1, 2, 3]), "y": torch.ones(3).double()}) is rb
    assert xs(rb) == [1, 2, 3] and rb[:]["y"].tolist() == [1.0] * 3
    rb.update_(rows(7, 8, 9), keys_to_update=["y"])
    assert xs(rb) == [1, 2, 3] and rb[:]["y"].tolist() == [7, 8, 9]
    rb.update_(rb[:])
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [0, 0, 0, -1] and rb.write_count == 3


@each_layout
def test_nested_fields_and_texts_are_set_by_their_keys(kind):
    rb = buffer(kind, 4)
    rb.extend(RECORDS["nested"](range(3)).set("s", ["a", "b", "c"]))
    rb.set_at_(("next", "r"), torch.tensor([[9.0]], dtype=torch.float64), [1])
    rb.set_at_("s", "x", 0), rb.set_at_("s", ["y", None], [1, 2])
    rb.update_({"next": {"deep": {"b": torch.tensor([True, False, True])}}}, keys_to_update=[("next", ("deep", "b"))])
    assert rb[1]["next", "r"].item() == 9 and rb[:]["next", "deep", "b"].tolist() == [True, False, True]
    assert list(rb[:]["s"]) == ["x", "y", None]


@each_storage
def test_all_records_are_written_and_read_in_slot_order(kind):
    rb = buffer(kind, 4)
    rb.extend(rows(*range(6)))
    rb.write_all(rows(10, 11, 12, 13))
    assert xs(rb) == [10, 11, 12, 13]
    rb.write_all(rows(20, 21)), rb.write_all(rows(30), end=1)
    assert xs(rb) == [30, 21, 12, 13] and rb.read_all_in_order()["x"].tolist() == xs(rb)
    assert rb.read_all_in_order(3)["x"].tolist() == [30, 21, 12]
    for data, end in ((rows(*range(5)), None), (rows(1, 2), 3), (rows(1, 2), 1)):
        with pytest.raises(ValueError, match="records are addressed, got data for"):
            rb.write_all(data, end)
    assert xs(rb) == [30, 21, 12, 13] and rb.write_count == 6


@each_layout
def test_leaves_of_a_pytree_are_fields_too(kind):
    rb = buffer(kind, 4, tensordicts=False)
    rb.extend({"a": torch.arange(3), "b": (torch.zeros(3), [torch.ones(3, 2)])})
    rb.set_at_(("b", 1, 0), torch.tensor([[5.0, 6.0]]), [1]), rb.set_("a", torch.arange(3) + 7)
    patch = {("b", 0): torch.tensor([9.0])}
    assert rb.update_if_present(index=torch.tensor([2]), generation=torch.tensor([0]), patch=patch).updated_count == 1
    got = rb[:]
    assert got["a"].tolist() == [7, 8, 9] and got["b"][0].tolist() == [0, 0, 9]
    assert got["b"][1][0].tolist() == [[1, 1], [5, 6], [1, 1]]


def test_an_index_of_the_user_s_own_is_a_field_like_any_other():
    rb = buffer(capacity=4, tensordicts=False)
    rb.extend(TensorDict({"index": torch.tensor([7, 8])}, [2]))
    rb[0] = rb[1]
    assert rb[:]["index"].tolist() == [8, 8]


@each_layout
def test_all_rows_of_a_pytree_are_written(kind):
    rb = buffer(kind, 4, tensordicts=False)
    rb.extend({"a": torch.arange(3), "b": (torch.zeros(3),)})
    rb.write_all({"a": torch.arange(3) + 5, "b": (torch.ones(3),)})
    assert rb[:]["a"].tolist() == [5, 6, 7] and rb[:]["b"][0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])
@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda rb: rb.set_("z", torch.ones(2)), KeyError, "set_"),
        (lambda rb: rb.set_("x", torch.ones(2)), ValueError, "set_"),
        (lambda rb: rb.set_("x", torch.ones(3).long()), ValueError, "set_"),
        (lambda rb: rb.set_("x", 3), ValueError, "set_"),
        (lambda rb: rb.set_at_("x", torch.tensor([1]), [0, 1]), ValueError, "set_at_"),
        (lambda rb: rb.set_at_("x", torch.tensor([1]), [2]), IndexError, "set_at_"),
        (lambda rb: rb.update_({"x": torch.arange(2) + 5, "y": torch.arange(2)}), ValueError, "update_"),
        (lambda rb: rb.update_([1]), TypeError, "update_"),
        (lambda rb: rb.__setitem__(2, rows(1)[0]), IndexError, r"\w+Storage\[...\] ="),
        (lambda rb: rb.__setitem__(slice(None), rows(1)), ValueError, r"\w+Storage\[...\] ="),
        (lambda rb: rb.writer.write_at([0, 1], rows(1)), ValueError, "write_at"),
        (lambda rb: rb.extend(3), TypeError, "extend"),
    ],
)
def test_a_write_that_is_refused_says_its_name_and_has_changed_nothing(kind, call, error, name):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1))
    control, rest = rb.storage.control.clone(), plain(rb[:].to_tensordict())
    with pytest.raises(error, match=f"^['\"]?{name}: "):
        call(rb)
    assert torch.equal(rb.storage.control, control) and plain(rb[:].to_tensordict()) == rest


@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
def test_a_key_to_update_may_name_all_that_is_nested_in_it(kind):
    def rows(n):
        inner = TensorDict({"r": torch.full((3,), n), "deep": TensorDict({"b": torch.full((3,), n)}, [3])}, [3])
        return TensorDict({"a": torch.full((3,), n), "next": inner, "text": [f"{n}"] * 3}, [3])

    for keys, changed in [
        (["next"], {("next", "r"), ("next", "deep", "b")}),
        ([("next", "deep")], {("next", "deep", "b")}),
        ([("next", ("deep", "b")), "text"], {("next", "deep", "b"), "text"}),
        (["next", ("next", "r")], {("next", "r"), ("next", "deep", "b")}),
    ]:
        for given in (rows(9), rows(9).to_dict()):
            rb = buffer(kind)
            rb.extend(rows(0))
            if isinstance(given, dict):
                given["text"] = ["9"] * 3
            rb.update_(given, keys_to_update=keys)
            for key in ("a", ("next", "r"), ("next", "deep", "b"), "text"):
                assert int(rb[0][key]) == (9 if key in changed else 0)
            for unknown in (["typo"], ["next", ("next", "typo")], [("a", "b")], [("next", "deep", "b", "c")]):
                with pytest.raises(KeyError, match="update_: keys_to_update names"):
                    rb.update_(given, keys_to_update=unknown)


def test_keys_to_update_must_be_among_the_fields_given():
    rb = ReplayBuffer(storage=LazyTensorStorage(4))
    rb.extend({"a": torch.arange(3), "b": torch.arange(3)})
    with pytest.raises(KeyError, match=r"update_: keys_to_update names 'typo'"):
        rb.update_({"a": torch.zeros(3).long(), "b": torch.zeros(3).long()}, keys_to_update=["a", "typo"])
    assert rb[:]["a"].tolist() == [0, 1, 2]
    rb.update_({"a": torch.zeros(3).long(), "b": torch.zeros(3).long()}, keys_to_update=["b"])
    assert (rb[:]["a"].tolist(), rb[:]["b"].tolist()) == ([0, 1, 2], [0, 0, 0])


@each_storage
def test_emptying(kind):
    rb = buffer(kind, 4, batch_size=2)
    rb.extend(rows(*range(6)))
    rb.empty(empty_write_count=False)
    assert (len(rb), rb.write_count) == (0, 6)
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample()
    rb.empty()
    assert rb.write_count == 0 and rb.extend(rows(7)).tolist() == [0] and xs(rb) == [7]


@each_storage
def test_no_graph_is_kept(kind):
    rb, weight = buffer(kind, 4), torch.ones(2, requires_grad=True)
    for _ in range(3):
        rb.extend(TensorDict({"x": weight * 2}, [2]))
        rb.add(TensorDict({"x": (weight * 2)[0]}, []))
        rb[0] = TensorDict({"x": (weight * 3)[0]}, [])
    assert not rb[:]["x"].requires_grad and not rb.sample(2)["x"].requires_grad


# --- along another dimension ----------------------------------------------------------------------------------------


BATCHES = {
    "tensor": (lambda x: x, lambda kept: kept),
    "tensordict": (lambda x: TensorDict({"x": x, "deep": {"y": x[..., None]}}, x.shape), lambda kept: kept["x"]),
    "dict": (lambda x: {"x": x, "y": (x.float(),)}, lambda kept: kept["x"]),
    "tuple": (lambda x: (x, x + 1), lambda kept: kept[0]),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_records_lie_along_dim_extend_whatever_the_batch_is_made_of(kind):
    batch_of, x_of = BATCHES[kind]
    x = torch.arange(24).view(2, 3, 4)
    rb = ReplayBuffer(storage=LazyTensorStorage(9), dim_extend=1)
    assert rb.extend(batch_of(x)).tolist() == [0, 1, 2]
    assert rb.add(batch_of(x[:, 0])) == 3  # on which it has no effect
    rb.extend([batch_of(x[:, 1]), batch_of(x[:, 2])])  # nor on lists of records
    assert torch.equal(x_of(rb.storage[:]), torch.cat([x, x], 1).transpose(0, 1))


@pytest.mark.parametrize("make", [ListStorage, LazyStackStorage])
def test_storages_of_objects_take_records_along_dim_extend(make):
    rb = ReplayBuffer(storage=make(9), dim_extend=1)
    batch = TensorDict({"x": torch.arange(6).view(2, 3)}, [2, 3])
    rb.extend(batch)
    rb.extend([batch[0], batch[1]])
    kept = rb.storage[:]
    told = [record["x"].tolist() for record in (kept if isinstance(kept, list) else kept.unbind(0))]
    assert told == [[0, 3], [1, 4], [2, 5], [0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dim", [-1, 1.0, "1", True])
def test_a_dimension_that_is_none_is_refused(dim):
    with pytest.raises(ValueError, match="dim_extend must be an int from 0 on"):
        ReplayBuffer(dim_extend=dim)


def test_dim_extend_is_that_of_the_storage_unless_it_is_given():
    rb = ReplayBuffer(storage=LazyTensorStorage(9, ndim=3))
    assert rb.dim_extend == 2
    rb.set_storage(LazyTensorStorage(9, ndim=2))
    assert rb.dim_extend == 1 and rb.extend(torch.zeros(3, 2)).tolist()[3] == [1, 0]
    rb.set_storage(LazyTensorStorage(9))
    assert rb.dim_extend == 0 and rb.extend(torch.zeros(3, 2)).tolist() == [0, 1, 2]
    given = ReplayBuffer(storage=LazyTensorStorage(9, ndim=3), dim_extend=1)
    given.set_storage(LazyTensorStorage(9, ndim=2))
    assert given.dim_extend == 1


def test_transforms_see_batches_as_users_do():
    shapes = []

    def note(batch):
        shapes.append(tuple(batch.shape))
        return batch

    note.inv = note
    rb = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), transform=note, batch_size=5)
    rb.extend(torch.zeros(3, 4))
    rb.sample(), rb[:], rb[1]
    assert shapes == [(3, 4), (5,), (3, 4), (4,)]


def test_whole_and_partial_writes_through_the_view_of_the_user():
    rb = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), writer=RoundRobinWriter(track_generations=True))
    data = torch.arange(12).view(3, 4)
    rb.extend(data)
    slots = torch.arange(4)
    rb[1] = data[1] + 100  # a cell of each record
    assert rb.writer.generations_of(slots).tolist() == [0] * 4
    rb.write_all(data + 200)  # all cells of all records
    assert rb.writer.generations_of(slots).tolist() == [1] * 4 and torch.equal(rb[:], data + 200)
    rb[:, 2:] = data[:, :2]
    assert rb.writer.generations_of(slots).tolist() == [1, 1, 2, 2]
    assert torch.equal(rb.read_all_in_order(2), torch.cat([data[:, :2] + 200, data[:, :2]], 1)[:2])
    rb.storage[0, 1] = torch.tensor(-1)
    assert int(rb[1, 0]) == -1 and rb.write_count == 4
