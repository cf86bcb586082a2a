"""Law 1 under exceptions from outside: a signal handler that raises finds a write whole or not begun, never half.

Ctrl-C, and any other signal whose handler raises, can strike between any two lines of Python. Here an exception strikes
at every line of every call that writes, and what is left is held against the state before the call and that after it,
bit by bit.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import torchrb
from tests.spec.builders import (
    STORAGES,
    TENSOR_STORAGES,
    TENSORDICT_STORAGES,
    buffer_of,
    group_sampler,
    numbered,
    numbers_of,
)
from tests.spec.snapshot import same, snapshot
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrb.ops.schemas import CONTROL_JOURNAL

PACKAGE = str(Path(torchrb.__file__).parent)


class Struck(BaseException):
    """What comes from outside."""


@contextmanager
def strike_at(line: int) -> Iterator[list[tuple[str, int]]]:
    """Raise `Struck` when the package is about to run its ``line``-th line; yields the lines that it ran before."""
    lines: list[tuple[str, int]] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            if len(lines) == line:
                raise Struck
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def moments(make: Callable[[], Any], write: Callable[[Any], Any]) -> list[int]:
    """When to strike a call: before the last run of every line of the package that it runs."""
    rb = make()
    with strike_at(-1) as lines:
        write(rb)
    return sorted({line: i for i, line in enumerate(lines)}.values())


def struck(make: Callable[[], Any], write: Callable[[Any], Any]) -> Iterator[Any]:
    """What a call leaves that is struck, moment by moment."""
    for moment in moments(make, write):
        made = make()
        with pytest.raises(Struck), strike_at(moment):
            write(made)
        yield made


Write = Callable[[TensorDictReplayBuffer], Any]


def _patch(rb: TensorDictReplayBuffer, **versions: Any) -> Any:
    index, told = torch.tensor([2, 0, 2, 1]), numbered([40, 41, 42, 43])
    patch = {key: told[key] for key in ("wide", "flag", "text") if not isinstance(told[key], str)}
    patch["text"] = [f"patched {i}" for i in range(4)]
    generation = rb.writer.generations_of(index) - torch.tensor([0, 0, 0, 1])
    return rb.update_if_present(index=index, generation=generation, patch=patch, **versions)


WRITES: dict[str, Write] = {
    "extend": lambda rb: rb.extend(numbered([20, 21, 22])),
    "extend past the end": lambda rb: rb.extend(numbered(range(20, 39))),
    "add": lambda rb: rb.add(numbered([20])[0]),
    "set items": lambda rb: rb.__setitem__(torch.tensor([2, 0, 2]), numbered([30, 31, 32])),
    "set one": lambda rb: rb.__setitem__(-1, numbered([30])[0]),
    "write_at": lambda rb: rb.writer.write_at(torch.tensor([2, 0]), numbered([30, 31])),
    "write_all": lambda rb: rb.write_all(numbered([30, 31, 32]), end=3),
    "set_": lambda rb: rb.set_("text", [f"text {i}" for i in range(len(rb))]),
    "set_at_": lambda rb: rb.set_at_("flag", torch.tensor([True, False]), torch.tensor([2, 1])),
    "update_": lambda rb: rb.update_(numbered(range(50, 50 + len(rb))).select("wide", "flag", "text")),
    "update_if_present": _patch,
    "update_if_present by version": lambda rb: _patch(rb, version_key="n", version=torch.tensor([9, 9, 9, 9])),
    "update_if_present by versions": lambda rb: _patch(rb, version_key="n", version=torch.tensor([9, 1, 11, 9])),
    "empty": lambda rb: rb.empty(),
}


def supports(kind: str, write: str) -> bool:
    if write.startswith("update_if_present"):
        return kind in TENSOR_STORAGES
    return kind in TENSORDICT_STORAGES or not write.startswith(("set_", "update_"))


def state_of(rb: TensorDictReplayBuffer) -> dict[str, Any]:
    """Everything, as whoever looks next finds it."""
    try:
        rb[:]
    except RuntimeError:
        pass  # there is nothing to look at
    state = snapshot(rb)
    state["journal"] = state["journal"][: state["control"][CONTROL_JOURNAL]]  # beyond it nothing is told yet
    return {key: state[key] for key in state if key not in ("parts", "global generator")}


def assert_usable(rb: TensorDictReplayBuffer) -> None:
    """Another write lands, whole and alone."""
    rb.extend(numbered([70, 71]))
    at = [(rb.storage.cursor - 2) % 8, (rb.storage.cursor - 1) % 8]
    read = rb[at]
    assert numbers_of(read if isinstance(read, TensorDict) else torch.stack(read)) == [70, 71]


@pytest.mark.parametrize("numbers", [range(11), ()], ids=["wrapped", "empty"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["packed", "stack", "list"])
def test_a_write_that_is_struck_is_whole_or_not_begun(kind, write, numbers):
    if not supports(kind, write) or (not len(numbers) and write != "extend"):
        return
    make = lambda: buffer_of(kind, 8, numbers=numbers)  # noqa: E731
    untouched, written = make(), make()
    WRITES[write](written)
    before, after = state_of(untouched), state_of(written)
    whole, begun = 0, 0
    for rb in struck(make, WRITES[write]):
        found = state_of(rb)
        if same(found, before):
            begun += 1
        else:
            assert same(found, after), f"half is written: {found}"
            whole += 1
        assert_usable(rb)
    assert begun > 5 and whole


@pytest.mark.parametrize("write", ["extend", "add"])
@pytest.mark.parametrize("numbers", [range(2), range(11), ()], ids=["room", "full", "empty"])
@pytest.mark.parametrize("kind", ["packed", "stack", "list"])
def test_a_write_of_the_best_that_is_struck_is_whole_or_not_begun(kind, numbers, write):
    def make() -> TensorDictReplayBuffer:
        rb = buffer_of(kind, 4)
        rb.set_writer(TensorDictMaxValueWriter(rank_key="n", track_generations=True))
        if numbers:
            rb.extend(numbered(numbers))
        return rb

    def put(rb: TensorDictReplayBuffer) -> Any:
        return rb.extend(numbered([20, 1, 22, 21])) if write == "extend" else rb.add(numbered([20])[0])

    untouched, written = make(), make()
    put(written)
    before, after = state_of(untouched), state_of(written)
    found = [(state_of(rb), rb) for rb in struck(make, put)]
    assert all(same(state, before) or same(state, after) for state, _ in found)
    assert 5 < sum(same(state, before) for state, _ in found) < len(found)
    for _, rb in found:  # none has forgotten which record makes way
        put(rb)
        rb.extend(numbered([50, 51, 52, 53]))
        read = rb[:]
        assert sorted(numbers_of(read if isinstance(read, TensorDict) else torch.stack(read))) == [50, 51, 52, 53]


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # in the end groups run short
@pytest.mark.parametrize("sampler", ["random", "groups"])
def test_a_sample_that_is_struck_has_used_nothing_up(sampler):
    """Whatever a draw had counted when it was struck, it gives back: nobody has seen its records."""

    def make() -> TensorDictReplayBuffer:
        storage, chosen = LazyTensorStorage(8), group_sampler() if sampler == "groups" else RandomSampler()
        rb = TensorDictReplayBuffer(
            storage=storage, sampler=chosen, consume_after_n_samples=2, generator=torch.Generator().manual_seed(0)
        )
        rb.extend(numbered(range(8)))
        rb.sample(6)
        rb.extend(numbered([20]))
        return rb

    untouched = make()
    left, expected = len(untouched), 0
    while len(untouched):
        expected += len(untouched.sample(3))
    for rb in struck(make, lambda rb: rb.sample(6)):
        times: Counter[int] = Counter()
        assert len(rb) == left
        while len(rb):
            times.update(rb.sample(3)["n"].tolist())
        assert max(times.values()) == 2 == times[20] and sum(times.values()) == expected


@pytest.mark.parametrize("numbers", [[20, 21], [20, 21, 22, 23, 24], range(20, 29)])
@pytest.mark.parametrize("kind", ["packed", "stack"])
def test_a_write_over_used_records_that_is_struck_is_whole_or_not_begun(kind, numbers):
    def make() -> TensorDictReplayBuffer:
        rb = TensorDictReplayBuffer(
            storage=buffer_of(kind, 8, numbers=range(8)).storage,
            consume_after_n_samples=1,
            generator=torch.Generator().manual_seed(0),
        )
        rb.sample(3)
        return rb

    put = lambda rb: rb.extend(numbered(numbers))  # noqa: E731
    untouched, written = make(), make()
    put(written)
    before, after = state_of(untouched), state_of(written)
    found = [state_of(rb) for rb in struck(make, put)]
    assert all(same(state, before) or same(state, after) for state in found)
    assert 5 < sum(same(state, before) for state in found) < len(found)


@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
def test_after_a_struck_first_batch_any_other_may_be_the_first(kind):
    for rb in struck(lambda: buffer_of(kind, 8), lambda rb: rb.extend(numbered([1, 2]))):
        if not state_of(rb)["length"]:
            rb.extend(TensorDict({"other": torch.arange(3)}, [3]))
            assert rb[:]["other"].tolist() == [0, 1, 2]


def test_growing_without_a_bound_loses_nothing():
    def make() -> ReplayBuffer:
        rb = ReplayBuffer(storage=ListStorage(), collate_fn=lambda records: records)
        rb.extend(range(1020))
        return rb

    for rb in struck(make, lambda rb: rb.extend([-1] * 1500)):
        assert rb[:] in ([*range(1020)], [*range(1020)] + [-1] * 1500)
        rb.extend([-2])
        assert rb[-1] == -2 and len(rb) in (1021, 2521)


@pytest.mark.parametrize("kind", STORAGES)
def test_signals_at_random_moments_leave_whole_records(kind):
    """Not at lines but at whatever moment the interpreter looks for signals."""

    def handler(*_: Any) -> None:
        raise Struck

    rb, chance, strikes = buffer_of(kind, 8, numbers=range(8)), random.Random(0), 0
    gc.disable()  # what other tests had called at each collection would swallow a signal
    previous = signal.signal(signal.SIGALRM, handler)
    try:
        for turn in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-3))
                rb.extend(numbered([turn, turn + 1, turn + 2]))
                rb[torch.tensor([1, 5])] = numbered([turn, turn])
                if kind in TENSOR_STORAGES:
                    index = torch.tensor([3, 4])
                    values = numbered([turn, turn])
                    fields = {key: values[key] for key in ("n", "wide", "flag", "byte", "half", "g")}
                    patch = {**fields, ("next", "reward"): values["next", "reward"], "text": [f"record {turn}"] * 2}
                    rb.update_if_present(index=index, generation=rb.writer.generations_of(index), patch=patch)
            except Struck:
                strikes += 1
            finally:
                while True:  # a signal that is on its way strikes here
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        break
                    except Struck:
                        strikes += 1
            read = rb[:]
            assert len(numbers_of(read if isinstance(read, TensorDict) else torch.stack(read))) == 8
    finally:
        signal.signal(signal.SIGALRM, previous)
        gc.enable()
    assert strikes
