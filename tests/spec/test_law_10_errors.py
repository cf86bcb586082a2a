"""Law 10: an error says what to do: the call, the key or argument, expected and got, the remedy.

One table holds every kind of bad input with the exception that is documented for it and the words that its message must
have. Each is raised at the call itself, and nothing has changed (law 1 has more to say about that).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict

from tests.spec.builders import TENSOR_STORAGES, buffer_of, group_sampler, numbered
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    MCAdvantageSelector,
    PromptGroupSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
    group_advantages,
)


class Bad(NamedTuple):
    """A bad call on a buffer of five `numbered` records, its exception, and words of the message."""

    call: Callable[[TensorDictReplayBuffer], Any]
    error: type[Exception]
    words: tuple[str, ...]


def rows(num: int = 2, **changed: Any) -> TensorDict:
    return numbered(range(num)).update(changed)


def draw(rb: TensorDictReplayBuffer, batch_size: int = 4, **sampler: Any) -> Any:
    sampler = {"num_groups": 2, "group_key": "g"} | sampler
    return PromptGroupSampler(**sampler).sample(rb.storage, batch_size, torch.Generator())


def update(
    rb: TensorDictReplayBuffer, index: Any = None, generation: Any = None, patch: Any = None, **more: Any
) -> Any:
    index = torch.arange(2) if index is None else index
    generation = torch.zeros(2).long() if generation is None else generation
    patch = {"byte": torch.zeros(2, dtype=torch.uint8)} if patch is None else patch
    return rb.update_if_present(index=index, generation=generation, patch=patch, **more)


WRITES = {
    "shape": Bad(
        lambda rb: rb.extend(rows(wide=torch.zeros(2, 3))), ValueError, ("extend", "'wide'", "[2, 20]", "[2, 3]")
    ),
    "shape of one": Bad(
        lambda rb: rb.add(rows(wide=torch.zeros(2, 3))[0]), ValueError, ("add", "'wide'", "[1, 20]", "[1, 3]")
    ),
    "dtype": Bad(
        lambda rb: rb.extend(rows(byte=torch.zeros(2).long())),
        ValueError,
        ("extend", "'byte'", "torch.uint8", "torch.int64", ".to("),
    ),
    "nested dtype": Bad(
        lambda rb: rb.extend(rows().set(("next", "reward"), torch.zeros(2, 1))),
        ValueError,
        ("extend", "'next'", "'reward'", "torch.float64", "torch.float32"),
    ),
    "device": Bad(
        lambda rb: rb.extend(rows(n=torch.zeros(2, dtype=torch.int64, device="meta"))),
        ValueError,
        ("extend", "'n'", "meta"),
    ),
    "missing key": Bad(lambda rb: rb.extend(rows().exclude("flag")), KeyError, ("extend", "missing", "flag", "wide")),
    "extra key": Bad(lambda rb: rb.extend(rows(more=torch.zeros(2))), KeyError, ("extend", "more", "wide")),
    "text for a tensor": Bad(
        lambda rb: rb.extend(rows().exclude("g").set("g", ["a", "b"])), ValueError, ("extend", "g", "tensor")
    ),
    "no batch": Bad(lambda rb: rb.extend(rows()[0]), ValueError, ("extend", "batch", "add()")),
    "no tensordict": Bad(lambda rb: rb.extend(torch.zeros(2)), TypeError, ("extend", "tensordict", "Tensor")),
    "no data": Bad(lambda rb: rb.extend("text"), TypeError, ("extend", "text")),
    "unequal items": Bad(
        lambda rb: rb.extend([rows()[0], rows().exclude("flag")[0]]),
        (ValueError, KeyError),
        ("extend", "item 1", "flag"),
    ),
    "unequal dtypes of items": Bad(
        lambda rb: rb.extend([rows()[0], rows(byte=torch.zeros(2).long())[0]]),
        ValueError,
        ("extend", "item 1", "byte", "torch.uint8", "torch.int64"),
    ),
    "too few rows at an index": Bad(lambda rb: rb.__setitem__(torch.arange(3), rows(2)), ValueError, ("3", "2")),
    "too few rows for write_at": Bad(
        lambda rb: rb.writer.write_at(torch.arange(3), rows(2)), ValueError, ("write", "3", "2")
    ),
    "write_at past the end": Bad(
        lambda rb: rb.writer.write_at(torch.tensor([0, 5]), rows(2)), IndexError, ("write_at", "5")
    ),
    "set past the end": Bad(lambda rb: rb.__setitem__(7, rows(1)[0]), IndexError, ("7", "5 records")),
    "write_all to a text": Bad(
        lambda rb: rb.write_all(rows(2), end="x"), TypeError, ("write_all", "end", "int", "'x'")
    ),
    "a slice of texts": Bad(lambda rb: rb.__setitem__(slice("a"), rows(2)), TypeError, ("slice", "integers", "'a'")),
    "a mask of another length": Bad(
        lambda rb: rb.__setitem__(torch.tensor([True, False]), rows(1)), IndexError, ("mask", "[5]", "[2]")
    ),
    "no index": Bad(lambda rb: rb["text"], TypeError, ("index", "'text'")),
    "set_ of an unknown field": Bad(lambda rb: rb.set_("more", torch.zeros(5)), KeyError, ("'more'", "stored", "wide")),
    "set_ of a dotted field": Bad(
        lambda rb: rb.set_("next.reward", torch.zeros(5)), KeyError, ("'next.reward'", "('next', 'reward')")
    ),
    "set_ of some rows": Bad(lambda rb: rb.set_("n", torch.arange(3)), ValueError, ("'n'", "[5]", "[3]")),
    "set_ of another dtype": Bad(
        lambda rb: rb.set_("n", torch.zeros(5)), ValueError, ("'n'", "torch.int64", "torch.float32")
    ),
    "set_at_ out of range": Bad(
        lambda rb: rb.set_at_("n", torch.arange(1), torch.tensor([9])), IndexError, ("set_at_", "9")
    ),
    "update_ with no mapping": Bad(lambda rb: rb.update_(7), TypeError, ("update_", "mapping", "int")),
    "update_ with texts for some": Bad(lambda rb: rb.update_({"text": ["a"]}), ValueError, ("'text'", "5")),
}

CONDITIONAL_UPDATES = {
    "a mask": Bad(lambda rb: update(rb, index=torch.tensor([True, False])), TypeError, ("index", "mask", "nonzero()")),
    "floats": Bad(lambda rb: update(rb, index=torch.zeros(2)), TypeError, ("index", "torch.float32")),
    "a mask of generations": Bad(
        lambda rb: update(rb, generation=torch.tensor([True, False])), TypeError, ("generation",)
    ),
    "unequal shapes": Bad(
        lambda rb: update(rb, generation=torch.zeros(3).long()), ValueError, ("generation", "[2]", "[3]")
    ),
    "an unknown field": Bad(
        lambda rb: update(rb, patch={"more": torch.zeros(2)}), KeyError, ("'more'", "stored", "wide")
    ),
    "a shape": Bad(
        lambda rb: update(rb, patch={"wide": torch.zeros(2, 3)}), ValueError, ("'wide'", "[2, 20]", "[2, 3]")
    ),
    "rows": Bad(
        lambda rb: update(rb, patch={"wide": torch.zeros(3, 20)}), ValueError, ("'wide'", "[2, 20]", "[3, 20]")
    ),
    "a dtype": Bad(
        lambda rb: update(rb, patch={"n": torch.zeros(2)}), ValueError, ("'n'", "torch.int64", "torch.float32")
    ),
    "no mapping": Bad(lambda rb: update(rb, patch=torch.zeros(2)), TypeError, ("mapping", "Tensor")),
    "a version without a key": Bad(lambda rb: update(rb, version=1), ValueError, ("version_key", "version")),
    "a key without a version": Bad(lambda rb: update(rb, version_key="n"), ValueError, ("version_key", "version")),
    "a dotted key": Bad(
        lambda rb: update(rb, version_key="next.reward", version=1),
        ValueError,
        ("'next.reward'", "dotted", "('next', 'reward')"),
    ),
    "a key in the patch": Bad(lambda rb: update(rb, version_key="byte", version=1), ValueError, ("'byte'", "patch")),
    "an unknown key": Bad(lambda rb: update(rb, version_key="more", version=1), KeyError, ("'more'", "stored")),
    "a wide key": Bad(lambda rb: update(rb, version_key="wide", version=1.0), ValueError, ("'wide'", "one", "[20]")),
    "a key of text": Bad(lambda rb: update(rb, version_key="text", version=1), ValueError, ("'text'", "not a tensor")),
    "versions for others": Bad(
        lambda rb: update(rb, version_key="n", version=torch.tensor([1, 2, 3])), ValueError, ("version", "2", "[3]")
    ),
    "a version that does not fit": Bad(
        lambda rb: update(rb, version_key="n", version=0.5), ValueError, ("'n'", "torch.int64")
    ),
    "a version too large": Bad(lambda rb: update(rb, version_key="n", version=2**64), ValueError, ("version",)),
}

DRAWS = {
    "no batch size": Bad(lambda rb: rb.sample(), RuntimeError, ("sample", "batch_size", "constructor")),
    "batch size 0": Bad(lambda rb: rb.sample(0), ValueError, ("batch_size", "positive", "0")),
    "a fraction": Bad(lambda rb: rb.sample(2.0), ValueError, ("batch_size", "2.0")),
    "not divisible by the groups": Bad(
        lambda rb: draw(rb, 10, num_groups=4),
        ValueError,
        ("PromptGroupSampler", "batch_size", "multiple of num_groups", "batch_size=10", "num_groups=4"),
    ),
    "not divisible by the rows": Bad(
        lambda rb: draw(rb, 10, num_groups=None, samples_per_group=4),
        ValueError,
        ("multiple of samples_per_group", "batch_size=10", "samples_per_group=4"),
    ),
    "both counts": Bad(
        lambda rb: draw(rb, samples_per_group=2),
        TypeError,
        ("exactly one", "num_groups=2", "samples_per_group=2"),
    ),
    "neither count": Bad(lambda rb: draw(rb, num_groups=None), TypeError, ("exactly one", "num_groups=None")),
    "no groups": Bad(lambda rb: draw(rb, num_groups=0), ValueError, ("num_groups", "positive", "0")),
    "a strategy": Bad(lambda rb: draw(rb, strategy="best"), ValueError, ("strategy", "'variance'", "'best'")),
    "a group key": Bad(lambda rb: draw(rb, group_key="more"), KeyError, ("group_key", "'more'", "stored", "wide")),
    "a reward key": Bad(
        lambda rb: draw(rb, strategy="reward", reward_key="more"), KeyError, ("reward_key", "'more'", "stored", "wide")
    ),
    "a reward of text": Bad(
        lambda rb: draw(rb, strategy="reward", reward_key="text"), TypeError, ("reward_key", "'text'")
    ),
    "a default reward key that is not there": Bad(
        lambda rb: draw(rb, strategy="variance", reward_key=("next", "r")), KeyError, ("reward_key", "('next', 'r')")
    ),
    "reading past the end": Bad(lambda rb: rb[5], IndexError, ("5 records", "index 5")),
    "reading up to a text": Bad(
        lambda rb: rb.read_all_in_order("x"), TypeError, ("read_all_in_order", "end", "int", "'x'")
    ),
    "reading a slice of fractions": Bad(lambda rb: rb[0.5:], TypeError, ("slice", "integers", "0.5")),
    "iterating without a batch size": Bad(lambda rb: next(iter(rb)), RuntimeError, ("batch size", "constructor")),
}

PARTS = {
    "no storage": Bad(lambda rb: rb.set_storage(7), TypeError, ("storage", "Storage", "int")),
    "no writer": Bad(lambda rb: rb.set_writer("text"), TypeError, ("writer", "Writer", "str")),
    "no sampler": Bad(lambda rb: rb.set_sampler(lambda: 7), TypeError, ("sampler", "Sampler", "int")),
    "a capacity of 0": Bad(lambda rb: LazyTensorStorage(0), ValueError, ("LazyTensorStorage", "max_size", "0")),
    "a capacity of text": Bad(lambda rb: ListStorage("9"), ValueError, ("ListStorage", "max_size", "'9'")),
    "two dimensions": Bad(lambda rb: LazyTensorStorage(9, ndim=0), ValueError, ("ndim", "from 1 on", "0")),
    "a layout": Bad(lambda rb: LazyTensorStorage(9, layout="rows"), ValueError, ("layout", "'packed'", "'rows'")),
    "a stack dimension": Bad(lambda rb: LazyStackStorage(9, stack_dim="1"), ValueError, ("stack_dim", "'1'")),
    "rows of another number": Bad(lambda rb: TensorStorage(rows(3), max_size=4), ValueError, ("max_size", "3", "4")),
    "tensors of unequal length": Bad(
        lambda rb: TensorStorage({"a": torch.zeros(2), "b": torch.zeros(3)}),
        ValueError,
        ("TensorStorage", "'b'", "[2]", "[3]"),
    ),
    "a mask of slots": Bad(
        lambda rb: rb.writer.generations_of(torch.tensor([True])), TypeError, ("generations_of", "bool")
    ),
    "a writer without a storage": Bad(
        lambda rb: TensorDictRoundRobinWriter().extend(rows()),
        RuntimeError,
        ("TensorDictRoundRobinWriter", "ReplayBuffer"),
    ),
}

DRAWS["a batch larger than a pass"] = Bad(
    lambda rb: SamplerWithoutReplacement(drop_last=True).sample(rb.storage, 9, rb.generator),
    ValueError,
    ("SamplerWithoutReplacement", "batch_size=9", "5 stored", "drop_last=False"),
)

CHOICES = {
    "flat rewards": Bad(
        lambda rb: group_advantages(torch.zeros(6)), ValueError, ("group_advantages", "[groups, n]", "[6]")
    ),
    "a kind": Bad(lambda rb: group_advantages(torch.zeros(2, 3), kind="best"), ValueError, ("kind", "'std'", "'best'")),
    "group size 0": Bad(
        lambda rb: MCAdvantageSelector().select(TensorDict({"return": torch.zeros(3)}, [3]), group_size=0),
        ValueError,
        ("group_size", "at least 1", "0"),
    ),
    "too few candidates": Bad(
        lambda rb: MCAdvantageSelector().select(TensorDict({"return": torch.zeros(3)}, [3]), group_size=4),
        ValueError,
        ("group_size=4", "3"),
    ),
    "no returns": Bad(
        lambda rb: MCAdvantageSelector().select(TensorDict({"score": torch.zeros(3)}, [3]), group_size=1),
        KeyError,
        ("'return'", "score"),
    ),
    "bounds the wrong way round": Bad(
        lambda rb: MCAdvantageSelector().select_batch(torch.zeros(1, 3), group_size=1, keep_return_bounds=(0.9, 0.1)),
        ValueError,
        ("keep_return_bounds", "low < high", "(0.9, 0.1)"),
    ),
    "a selector's strategy": Bad(
        lambda rb: MCAdvantageSelector("best"), ValueError, ("strategy", "'balanced'", "'best'")
    ),
}


def check(rb: TensorDictReplayBuffer, bad: Bad) -> str:
    before = snapshot(rb)
    with pytest.raises(bad.error) as raised:
        bad.call(rb)
    message = str(raised.value)
    missing = [word for word in bad.words if word not in message.replace("\\'", "'")]
    assert not missing, f"the message lacks {missing}: {message}"
    assert_unchanged(before, rb)
    return message


def named(table: dict[str, Bad]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bad", [pytest.param(bad, id=name) for name, bad in table.items()])


@named(WRITES)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_a_bad_write_says_what_was_expected(kind, bad):
    check(buffer_of(kind, 8, numbers=range(5)), bad)


@named(CONDITIONAL_UPDATES)
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_a_bad_conditional_update_says_what_was_expected(kind, bad):
    assert "update_if_present" in check(buffer_of(kind, 8, numbers=range(5)), bad)


@named(DRAWS)
@pytest.mark.parametrize("kind", (*TENSOR_STORAGES, "stack"))
def test_a_bad_draw_says_what_was_expected(kind, bad):
    check(buffer_of(kind, 8, numbers=range(5)), bad)


@named(PARTS)
def test_bad_parts_say_what_was_expected(bad):
    check(buffer_of("packed", 8, numbers=range(5)), bad)


@named(CHOICES)
def test_bad_candidates_say_what_was_expected(bad):
    check(buffer_of("packed", 8, numbers=range(5)), bad)


@pytest.mark.parametrize("kind", (*TENSOR_STORAGES, "stack", "list"))
def test_an_empty_buffer_says_so(kind):
    rb = buffer_of(kind, 8)
    empty = Bad(lambda rb: rb.sample(3), RuntimeError, ("sample", "empty", "Write"))
    check(rb, empty)
    rb.extend(numbered(range(3)))
    rb.empty()
    check(rb, empty)
    if kind != "list":
        rb.set_sampler(group_sampler(num_groups=1))
        check(rb, empty)


def test_a_storage_without_fields_says_which_to_use():
    rb = buffer_of("list", 8, numbers=range(5))
    for bad in (
        Bad(lambda rb: draw(rb), TypeError, ("ListStorage", "tensordict")),
        Bad(lambda rb: rb.set_("n", torch.arange(5)), TypeError, ("ListStorage", "LazyTensorStorage")),
        Bad(lambda rb: update(rb), RuntimeError, ("update_if_present", "ListStorage", "LazyTensorStorage")),
        Bad(lambda rb: rb.extend(7), TypeError, ("extend", "ListStorage", "int", "list")),
        Bad(lambda rb: rb.extend("text"), TypeError, ("extend", "ListStorage", "str", "list")),
    ):
        check(rb, bad)


@pytest.mark.parametrize("writer", [RoundRobinWriter, TensorDictRoundRobinWriter])
def test_a_writer_that_does_not_track_says_how_to_make_one_that_does(writer):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(8), writer=writer(), generator=torch.Generator())
    rb.extend(numbered(range(5)))
    check(
        rb, Bad(lambda rb: update(rb), RuntimeError, ("update_if_present", writer.__name__, "track_generations=True"))
    )


def test_an_update_of_nothing_stored_yet_names_the_field():
    rb = buffer_of("packed", 8)
    check(rb, Bad(lambda rb: update(rb), KeyError, ("update_if_present", "'byte'", "stored")))


def test_reading_what_was_never_written_says_so():
    rb = ReplayBuffer(storage=LazyTensorStorage(8), generator=torch.Generator())
    for read in (lambda rb: rb[:], lambda rb: rb.read_all_in_order(), lambda rb: rb.storage[:]):
        check(rb, Bad(read, RuntimeError, ("LazyTensorStorage", "nothing was stored")))
    check(rb, Bad(lambda rb: rb[0], IndexError, ("0 records",)))
