"""Every op lets go of the interpreter's lock while it works, so that other Python threads run beside it.

The interpreter is told to take the lock from nobody (a switch interval of an hour). A bystander counts, and sleeps a
moment after each step. It gets a step in only where the caller lets go by itself, and several only where the lock stays
free for a while: a caller that wants it back gets it while the bystander sleeps.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import torchrb
from tests.ops.cases import Index, Ranked, Records, lay_out, op
from torchrb.ops.schemas import CONTROL_LENGTH, CONTROL_SIZE, SLOT_COUNT_SHIFT, SLOT_LIVE, op_names

NATIVE = torchrb.backend_of("cpu") == "native"
# A kernel lets go for all its work. A plain twin is Python around torch's ops, each of which lets go for itself.
BRIEF = 5  # steps that a bystander does not get in while the lock is free for a moment
STEPS = BRIEF if NATIVE else 1
TRIES = 50
ROWS, WIDE = (2000, 4096) if NATIVE else (500, 4096)


class Bystander:
    """A thread that counts whenever it gets the interpreter's lock."""

    def __init__(self) -> None:
        self.steps, self._stop = 0, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            self.steps += 1
            time.sleep(1e-5)

    def steps_during(self, call: Callable[[], object], enough: int, before_each: Callable[[], object] = int) -> int:
        """The most steps it took within one of several calls; stops as soon as that is enough."""
        most = 0
        for _ in range(TRIES):
            before_each()
            before = self.steps
            call()
            most = max(most, self.steps - before)
            if most >= enough:
                break
            time.sleep(0.001)  # let it come to its next step
        return most

    def close(self) -> None:
        self._stop = True
        self._thread.join()


@pytest.fixture
def bystander() -> Iterator[Bystander]:
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(3600)
    torch.set_num_threads(1)
    other = Bystander()
    yield other
    other.close()
    sys.setswitchinterval(interval)
    torch.set_num_threads(threads)


# --- a long call of every op ----------------------------------------------------------------------------------------


def _records() -> tuple[Records, list[torch.Tensor]]:
    records = lay_out([(torch.uint8, (WIDE,))], ROWS, "packed")
    return records, [torch.ones(ROWS, WIDE, dtype=torch.uint8)]


def _append() -> tuple:
    records, values = _records()
    return records.tables, records.control, records.journal, records.layout, values, ROWS


def _write() -> tuple:
    records, values = _records()
    return records.tables, records.control, records.journal, records.layout, torch.arange(ROWS), values, True


def _read() -> tuple:
    records, _ = _records()
    op("write_rows_")(records.tables, records.control, records.journal, [], torch.arange(ROWS), [], True)
    return records.tables, records.layout, records.templates, torch.arange(ROWS)


def _update() -> tuple:
    records, values = _records()
    slots = torch.arange(ROWS)
    generations = op("write_rows_")(records.tables, records.control, records.journal, [], slots, [], True)
    return (
        records.tables, records.control, records.journal, records.layout, slots, generations, values, [], None, False,
    )  # fmt: skip


def _clear() -> tuple:
    records = lay_out([(torch.int64, ())], 1000 * ROWS, "packed")
    return records.tables, records.control, records.journal, False


def _live_again(tables: list[torch.Tensor], control: torch.Tensor) -> None:
    """What `clear_rows_` retires: every row, as if it had been written once."""
    tables[0][:, :8].view(torch.int64).fill_(1 << SLOT_COUNT_SHIFT | SLOT_LIVE)
    control[CONTROL_LENGTH] = len(tables[0])


def _uniform() -> tuple:
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
    control[CONTROL_LENGTH] = 1000
    return torch.tensor([1]), control, 500 * ROWS


def _permuted() -> tuple:
    return torch.tensor([1]), 2**32 - 1, 0, 50 * ROWS


def _index() -> Index:
    num = (50 if NATIVE else 10) * ROWS
    records = lay_out([(torch.int64, ())], num, "packed")
    groups = torch.arange(num) % (num // 8)
    op("write_rows_")(
        records.tables, records.control, records.journal, records.layout, torch.arange(num), [groups], True
    )
    index = Index(records, 0)
    index.catch_up()
    return index


def _ranked() -> Ranked:
    num = 50 * ROWS if NATIVE else 10 * ROWS
    records = lay_out([(torch.int64, ())], num, "packed")
    op("append_rows_")(records.tables, records.control, records.journal, records.layout, [torch.arange(num)], num)
    ranked = Ranked(records)
    ranked.update()
    return ranked


def _candidates() -> tuple:
    groups, n = (20, 19) if NATIVE else (1, 12)
    return torch.rand(groups, n, dtype=torch.float64), n // 2, 0.4, 0.6, 1_000_000, 1e-9


def _of(name: str, args: Callable[[], tuple]) -> Callable[[], Callable[[], object]]:
    return lambda: functools.partial(op(name), *args())


# What makes a long call of an op, which can be made again and again.
CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "append_rows_": _of("append_rows_", _append),
    "write_rows_": _of("write_rows_", _write),
    "read_rows": _of("read_rows", _read),
    "update_rows_if_": _of("update_rows_if_", _update),
    "clear_rows_": _of("clear_rows_", _clear),
    "draw_uniform": _of("draw_uniform", _uniform),
    "draw_permuted": _of("draw_permuted", _permuted),
    "update_priorities_": lambda: functools.partial(_ranked().update, rebuild=True),
    "draw_priorities": lambda: functools.partial(_ranked().draw, 1, 50 * ROWS),
    "group_index_update_": lambda: functools.partial(_index().catch_up, always=True),
    "sample_groups": lambda: functools.partial(_index().sample, 1, 5 * ROWS if NATIVE else ROWS, 4, "recency"),
    "balanced_subset": _of("balanced_subset", _candidates),
    "group_advantage": _of("group_advantage", lambda: (torch.rand(ROWS, 512), 0, 1e-6)),
}


def test_every_op_is_called():
    assert CALLS.keys() == set(op_names())


@pytest.mark.parametrize("name", CALLS)
def test_an_op_lets_others_run_while_it_works(name, bystander):
    call = CALLS[name]()
    again = functools.partial(_live_again, *call.args[:2]) if name == "clear_rows_" else int
    steps = bystander.steps_during(call, STEPS, again)
    assert steps >= STEPS, f"{name}: another thread took {steps} steps in one call, of {TRIES}, that took the most"


def test_the_bystander_tells_who_holds_the_lock(bystander):
    """The same pause, once without the lock and once with it; a call too short to matter; and Python at work."""
    pause = 5000  # microseconds
    assert bystander.steps_during(lambda: ctypes.CDLL(None).usleep(pause), STEPS) >= STEPS
    assert bystander.steps_during(lambda: ctypes.CDLL(None).getpid(), BRIEF) < BRIEF
    assert bystander.steps_during(lambda: ctypes.PyDLL(None).usleep(pause), 1) == 0
    assert bystander.steps_during(lambda: sum(range(200_000)), 1) == 0
