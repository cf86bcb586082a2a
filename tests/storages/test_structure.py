"""A batch falls apart into leaves and comes together again; a batch of another structure is refused by name."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import DTYPES, RECORDS, SHAPES, TENSORDICTS, Rollout, buffer, filled, plain
from torchrb.storages.structure import as_batch, as_one, as_path, shown, structure_of

CPU = torch.device("cpu")


def roundtrip(batch, shape=None):
    structure = structure_of(batch, CPU, "call")
    rows = structure.flatten(batch, CPU, "call")
    return structure.build(
        rows.values, rows.objects, torch.Size([rows.num]) if shape is None else torch.Size(shape)
    ), rows


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("num", [1, 4])
def test_what_was_taken_apart_comes_together(kind, num):
    batch = RECORDS[kind](range(num))
    again, rows = roundtrip(batch)
    assert rows.num == num and all(value.shape[0] == num and value.is_contiguous() for value in rows.values)
    assert type(again) is type(batch)
    assert plain(again) == plain(batch)


@pytest.mark.parametrize("kind", ["packed", "columns", "stack", "list"])
def test_an_empty_list_of_texts_is_an_empty_field_of_texts(kind):
    """A tensordict makes a tensor of it: what it is of is told by what is stored, and where nothing is, by nobody."""
    rb = buffer(kind, collate_fn=lambda records: records)
    nothing = {"n": torch.zeros(0, dtype=torch.int64), "prompt": [], "notes": []}
    assert rb.extend(TensorDict(nothing, [0])).tolist() == []
    rb.extend(RECORDS["texts"]([1, 2]))
    assert rb.extend(TensorDict(nothing, [0])).tolist() == []
    rb[[]] = TensorDict(nothing, [0])
    rb.extend(RECORDS["texts"]([4]))
    assert [rb[i]["prompt"] for i in range(3)] == ["prompt é 1", "prompt é 2", "prompt é 4"]
    if kind in ("packed", "columns"):
        with pytest.raises(KeyError, match="missing"):
            rb.extend(TensorDict({"prompt": []}, [0]))
        with pytest.raises(ValueError, match="must stay"):
            rb.extend(TensorDict({**nothing, "prompt": torch.zeros(0, 3)}, [0]))


@pytest.mark.parametrize("kind", RECORDS)
def test_rows_take_the_shape_of_the_index(kind):
    flat, rows = roundtrip(RECORDS[kind](range(6)))
    square, _ = roundtrip(RECORDS[kind](range(6)), (2, 3))
    single, _ = roundtrip(RECORDS[kind](range(1)), ())
    first, _ = roundtrip(RECORDS[kind](range(1)))
    if kind in TENSORDICTS:
        assert square.batch_size == (2, 3) and single.batch_size == ()
        assert plain(square.reshape(6).to_tensordict()) == plain(flat.to_tensordict())
        assert plain(single.unsqueeze(0).to_tensordict()) == plain(first.to_tensordict())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_dtype_and_shape(dtype, shape):
    batch = filled(range(3), dtype, shape)
    assert plain(roundtrip(batch)[0]) == plain(batch)


def views(dtype):
    whole = filled(range(8), dtype, (4,))
    yield "transposed", whole.t()
    yield "stepped", whole[::3, 1:]
    yield "expanded", whole[:1].expand(3, 4)
    yield "reversed bytes", whole.flip(0)
    if dtype.is_complex:
        yield "conj", whole.conj()
        yield "neg", whole.conj().imag
    if dtype.is_floating_point:
        yield "graph", whole.clone().requires_grad_() * 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_give_their_values_without_their_graph(dtype):
    for name, view in views(dtype):
        _, rows = roundtrip({"x": view})
        assert plain(rows.values[0]) == plain(view.resolve_conj().resolve_neg()), name
        assert not rows.values[0].requires_grad and not rows.values[0].is_neg() and not rows.values[0].is_conj(), name


def test_a_batch_with_more_dimensions_than_the_record_keeps_them():
    batch = TensorDict(
        {"x": torch.arange(6).view(2, 3), "in": TensorDict({"y": torch.ones(2, 3, 1)}, [2, 3, 1])}, [2, 3]
    )
    again, _ = roundtrip(batch)
    assert again.batch_size == (2, 3) and again["in"].batch_size == (2, 3, 1)


WRONG = {
    "missing": (KeyError, lambda b: b.exclude("n"), "missing .*n"),
    "extra": (KeyError, lambda b: b.clone().set("more", torch.ones(2)), "not stored .*more"),
    "nested missing": (KeyError, lambda b: b.exclude(("next", "r")), "missing .*next.*r"),
    "dtype": (
        ValueError,
        lambda b: b.clone().set("n", torch.ones(2)),
        r"field 'n' is stored as torch.int64, got torch.float32",
    ),
    "shape": (
        ValueError,
        lambda b: b.clone().set("n", torch.ones(2, 1).long()),
        r"field 'n' must have shape \[2\], got \[2, 1\]",
    ),
    "nested shape": (ValueError, lambda b: b.clone().set(("next", "r"), torch.ones(2, 3).double()), r"\('next', 'r'\)"),
    "text for a tensor": (ValueError, lambda b: b.clone().set_non_tensor("n", "a"), "must stay tensors"),
    "batch size": (ValueError, lambda b: b.unsqueeze(1), "batch_size"),
    "no batch": (ValueError, lambda b: b[0], "batch_size"),
    "other kind": (TypeError, lambda b: {"n": b["n"]}, "the storage holds tensordicts, got dict"),
    "sparse": (ValueError, lambda b: b.clone().set("n", torch.arange(2).to_sparse()), "dense"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_structure_is_refused_by_name(case):
    error, change, message = WRONG[case]
    batch = RECORDS["nested"](range(2))
    structure = structure_of(batch, CPU, "extend")
    with pytest.raises(error, match=f"extend: .*{message}"):
        structure.flatten(change(batch), CPU, "extend")


@pytest.mark.parametrize("other", [{"a": torch.ones(2)}, {"a": torch.ones(2), "b": [torch.ones(2)]}, torch.ones(2), ()])
def test_another_pytree_is_refused(other):
    structure = structure_of({"a": torch.ones(2), "b": torch.ones(2)}, CPU, "extend")
    with pytest.raises(KeyError, match="extend: expected a pytree like {'a': Ellipsis, 'b': Ellipsis}, got "):
        structure.flatten(other, CPU, "extend")


@pytest.mark.parametrize("batch", [torch.tensor(1.0), {"a": torch.tensor(1)}, TensorDict({"a": torch.tensor(1)}, [])])
def test_a_single_record_is_no_batch(batch):
    with pytest.raises(ValueError, match=r"One record is for add\(\)"):
        structure_of(batch, CPU, "extend")


@pytest.mark.parametrize("batch", [{"a": "text"}, {"a": torch.ones(1), "b": None}, (1, 2), {"a": TensorDict({}, [1])}])
def test_a_pytree_of_other_things_is_refused(batch):
    with pytest.raises(TypeError, match="a pytree must hold tensors only"):
        structure_of(batch, CPU, "extend")


def test_a_pytree_without_tensors_is_refused():
    with pytest.raises(ValueError, match="there is no tensor"):
        structure_of({}, CPU, "extend")


@pytest.mark.parametrize("kind", RECORDS)
def test_a_list_is_its_records_stacked(kind):
    batch = RECORDS[kind](range(3))
    if kind in TENSORDICTS:
        items = [batch[i] for i in range(3)]
    else:
        single = [RECORDS[kind]([i]) for i in range(3)]
        items = [torch.utils._pytree.tree_map(lambda leaf: leaf[0], item) for item in single]
    assert plain(as_batch(items, "extend")) == plain(batch)
    assert plain(as_one(items[1], "add")) == plain(RECORDS[kind]([1]))


def test_numbers_and_their_iterables_are_records():
    assert torch.equal(as_batch(range(3), "extend"), torch.arange(3))
    assert torch.equal(as_batch((n / 2 for n in range(3)), "extend"), torch.tensor([0.0, 0.5, 1.0]))
    assert as_batch([], "extend") is None


@pytest.mark.parametrize("items", [[torch.ones(1), torch.ones(2)], [{"a": 1}, {"b": 1}], [{"a": 1}, [1]]])
def test_records_that_do_not_stack_are_refused(items):
    with pytest.raises(ValueError, match="extend: the items of the list cannot be stacked"):
        as_batch(items, "extend")


@pytest.mark.parametrize("data", ["text", ["a", "b"], [None], None, 3, object()])
def test_what_is_no_batch_is_refused(data):
    with pytest.raises(TypeError, match="extend: "):
        as_batch(data, "extend")


@pytest.mark.parametrize("key", ["a", ("a",), ("a", "b"), ("a", ("b", "c")), (), 30])
def test_a_key_and_its_path(key):
    path = as_path(key)
    assert as_path(path) == path == as_path(shown(path))
    assert not any(isinstance(part, tuple) for part in path)


def test_a_tensorclass_comes_back_as_itself():
    again, _ = roundtrip(RECORDS["tensorclass"](range(2)))
    assert isinstance(again, Rollout) and again.prompt == ["p0", "p1"] and again.tokens.shape == (2, 4)


@pytest.mark.filterwarnings("ignore:.*[qQ]uantiz")
@pytest.mark.parametrize("name", ["int4", "uint1", "bits8", "quint8"])
@pytest.mark.parametrize("wrap", [lambda x: {"x": x}, lambda x: TensorDict({"x": x}, [2])])
def test_a_dtype_that_is_no_row_of_bytes_is_refused(name, wrap):
    value = torch.empty(2, 3, dtype=torch.uint8)
    if name == "quint8":
        value = torch.quantize_per_tensor(torch.zeros(2, 3), 1.0, 0, torch.quint8)
    else:
        value = value.view(getattr(torch, name))
    with pytest.raises(ValueError, match=f"call: field 'x' has torch.{name}, which cannot be stored"):
        structure_of(wrap(value), torch.device("cpu"), "call")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_as_first_and_as_later_batch():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ValueError, match="dense tensor with data, got a nested tensor"):
        structure_of({"x": nested}, torch.device("cpu"), "call")
    known = structure_of({"x": torch.zeros(2, 3)}, torch.device("cpu"), "call")
    with pytest.raises(ValueError, match="dense tensor with data, got a nested tensor"):
        known.flatten({"x": nested}, torch.device("cpu"), "call")


def test_a_tensor_of_zeros_without_memory_is_written_out():
    known = structure_of({"x": torch.ones(2, 3)}, torch.device("cpu"), "call")
    (value,) = known.flatten({"x": torch._efficientzerotensor(2, 3)}, torch.device("cpu"), "call").values
    assert not value._is_zerotensor() and value.tolist() == [[0.0] * 3] * 2
