"""Law 7: every cost has an owner. What a call costs is counted, never timed: rows that the group index looked at, ops
that a call makes, pages of memory that it touches. None of them depends on how much is stored.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

import torchrb
from tests.spec.builders import STRATEGIES
from tests.spec.touched_pages import pages_of, small_pages, touched, why_not
from torchrb import (
    LazyTensorStorage,
    PromptGroupSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    ops,
)
from torchrb.groups import GroupIndex
from torchrb.samplers.without_replacement import _BLOCK

GROUP = 8  # records of a group
NATIVE = torchrb.backend_of("cpu") == "native"
pytestmark = pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # some groups lose records on the way


def records(first: int, num: int, leaves: int = 3, wide: int = 5) -> TensorDict:
    number = torch.arange(first, first + num)
    more = {f"x{i}": torch.zeros(num, wide) for i in range(leaves - 2)}
    return TensorDict({"g": number // GROUP, "r": number % 7 * 1.0, **more}, [num])


def full_buffer(
    num: int, strategy: str = "reward", layout: str = "packed", leaves: int = 3, wide: int = 5
) -> TensorDictReplayBuffer:
    """A buffer that is full of groups of one size, however many there are; it went round a quarter, and has drawn."""
    if strategy == "uniform":
        sampler: Any = RandomSampler()
    else:
        sampler = PromptGroupSampler(samples_per_group=4, group_key="g", reward_key="r", strategy=strategy)
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(num, layout=layout),
        sampler=sampler,
        writer=TensorDictRoundRobinWriter(track_generations=True),
        generator=torch.Generator().manual_seed(0),
    )
    rb.extend(records(0, num, leaves, wide))
    rb.extend(records(num, num // 4, leaves, wide))
    rb.sample(16)
    return rb


def writes_of(rb: TensorDictReplayBuffer, num: int, leaves: int = 3, wide: int = 5) -> dict[str, Callable[[], Any]]:
    """Every way to write ``num`` records, or parts of them: at the cursor, and at slots far from it."""
    slots = torch.arange(num) * 2 + len(rb) // 2
    new = records(10**6, num, leaves, wide)
    update = functools.partial(
        rb.update_if_present,
        index=slots,
        generation=rb.writer.generations_of(slots),
        patch={key: value for key, value in new.items() if key != "r"},
    )
    return {
        "extend": functools.partial(rb.extend, new),
        "set_at_": functools.partial(rb.set_at_, "g", new["g"], slots),
        "update_if_present": update,
        "update_if_present, versions": functools.partial(update, version_key="r", version=torch.full((num,), 9.0)),
        "rb[...] =": functools.partial(rb.__setitem__, slots, new),
        "write_at": functools.partial(rb.writer.write_at, slots, new),
    }


# --- rows that the index looks at -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [500, 2000])
@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_a_draw_looks_at_the_rows_written_since_the_last_and_at_no_other(layout, stored):
    rb = full_buffer(stored, layout=layout)
    index = GroupIndex(rb.storage, "g")
    index.catch_up()
    assert index.rows_visited == stored
    for num in (1, 7, 40):
        for way, write in writes_of(rb, num).items():
            before = index.rows_visited
            write()
            index.catch_up()
            assert index.rows_visited - before == num, way
            for _ in range(2):  # nothing was written since
                rb[:], rb.stats(), index.catch_up()
            assert index.rows_visited - before == num, way


def test_an_index_that_slept_looks_at_no_row_twice():
    """However much was written meanwhile: at most at every row once, which the writes have paid for."""
    rb = full_buffer(300)
    index = GroupIndex(rb.storage, "g")
    index.catch_up()
    for turns in (1, 2, 9):
        before = index.rows_visited
        for _ in range(turns):
            rb.extend(records(0, 250))
        index.catch_up()
        assert index.rows_visited - before <= min(300, 250 * turns)


# --- what a pass without replacement computes ------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 64, 3000])
def test_a_pass_is_computed_as_it_is_drawn(monkeypatch, batch):
    """At its start too: what is permuted for the first draws is of the batches' size, or a block, however much is
    stored; and what one draw leaves over serves the next.
    """
    permuted, num_permuted, told = ops.draw_permuted, [], []

    def counted(seed, size, first, num):
        num_permuted.append(num)
        return permuted(seed, size, first, num)

    monkeypatch.setattr(ops, "draw_permuted", counted)
    for stored in (20_000, 30_000):
        rb = full_buffer(stored, "uniform")
        rb.set_sampler(SamplerWithoutReplacement())
        num_permuted.clear()
        for _ in range(4):
            rb.sample(batch)
        told.append(sum(num_permuted))
        assert 4 * batch <= told[-1] <= 4 * batch + _BLOCK
        assert batch > 64 or len(num_permuted) == 1


# --- ops that a call makes ------------------------------------------------------------------------------------------


class Ops(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.count: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def ops_of(call: Callable[[], Any]) -> dict[str, int]:
    with Ops() as ops:
        call()
    return dict(ops.count)


def own(ops: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix("torchrb::"): num for name, num in ops.items() if name.startswith("torchrb::")}


def ops_of_calls(strategy: str, layout: str, leaves: int, stored: int, num: int) -> dict[str, dict[str, int]]:
    rb = full_buffer(stored, strategy, layout, leaves)
    counts = {"again": ops_of(lambda: rb.sample(4 * num))}
    for way, write in writes_of(rb, num, leaves).items():
        counts[way] = ops_of(write)
        counts[f"sample after {way}"] = ops_of(lambda: rb.sample(4 * num))
    counts["sample with info"] = ops_of(lambda: rb.sample(4 * num, return_info=True))
    counts["rb[...]"] = ops_of(lambda: rb[torch.arange(num)])
    return counts


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("strategy", ["uniform", *STRATEGIES])
def test_what_a_call_does_depends_neither_on_fields_nor_on_rows(strategy, layout):
    few = ops_of_calls(strategy, layout, leaves=2, stored=200, num=4)
    assert ops_of_calls(strategy, layout, leaves=20, stored=200, num=4) == few
    assert ops_of_calls(strategy, layout, leaves=2, stored=3000, num=4) == few
    assert ops_of_calls(strategy, layout, leaves=2, stored=200, num=40) == few

    draw = {"draw_uniform": 1} if strategy == "uniform" else {"sample_groups": 1}
    catch_up = {} if strategy == "uniform" else {"group_index_update_": 1}
    assert own(few.pop("again")) == own(few.pop("sample with info")) == {**draw, "read_rows": 1}
    assert own(few.pop("rb[...]")) == {"read_rows": 1}
    for way in [way for way in few if not way.startswith("sample after")]:
        assert own(few.pop(f"sample after {way}")) == {**catch_up, **draw, "read_rows": 1}, way
        (op,) = own(few[way]).items()
        assert op[1] == 1, way
    assert own(few["extend"]) == {"append_rows_": 1}
    assert own(few["update_if_present"]) == own(few["update_if_present, versions"]) == {"update_rows_if_": 1}
    assert max(sum(ops.values()) for ops in few.values()) <= 8  # torch's own around ours, none for a field or a row


# --- pages of memory that a call touches ----------------------------------------------------------------------------


# The plain twin of a group draw sorts all keys anew, which is said in its page: there only the records are watched.
NUM_STORED, WIDE = ((40_000, 320_000), 5) if NATIVE else ((700, 2_100), 1000)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("strategy", ["uniform", *(STRATEGIES if NATIVE else STRATEGIES[:1])])
@pytest.mark.parametrize("stored", NUM_STORED)
def test_the_memory_that_a_call_touches_does_not_grow_with_the_buffer(stored, strategy):
    """The bounds are the same for both sizes: a page for a record, and in the index for each row its own links, its
    neighbours', its group's, its bucket's and some counts above.
    """
    num, groups, seen = 6, 4, []
    with small_pages():
        rb = full_buffer(stored, strategy, wide=WIDE)
        parts = [rb.storage.tables[0]]
        if NATIVE and strategy != "uniform":
            parts += [rb.sampler._index.keys, rb.sampler._index.links]
        assert sum(len(pages_of(part)) for part in parts) > 400
        assert touched(parts, lambda: None) == 0
        for way, write in writes_of(rb, num, wide=WIDE).items():
            written = touched(parts, write)
            drawn, again = (touched(parts, functools.partial(rb.sample, 4 * groups)) for _ in range(2))
            assert 0 < written <= 2 * num + 1, way
            assert 0 < again <= 2 * (groups * GROUP + num) + 16 * groups, way
            assert 0 < drawn <= again + 2 * groups * GROUP + 16 * num, way
            seen.append((way, written, drawn, again))
        assert touched(parts, rb.stats) == 0
