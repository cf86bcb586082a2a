"""Laws 2 and 3 among processes: a row never mixes two writes, and a handle names the same record everywhere, also when
processes race and when they are killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
import warnings

import pytest
import torch

from tests.spec import processes
from tests.spec.builders import GROUPS, group_sampler, numbers_of
from tests.spec.processes import PATCHED, STORAGES, call, records, shared_buffer
from torchrb import RandomSampler

pytestmark = pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # small groups run short
ROUNDS = int(os.environ.get("TORCHRB_STRESS_ROUNDS", "200"))


class Witness:
    """Knows what each handle was seen to name."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], int] = {}

    def look(self, batch) -> list[int]:
        numbers = numbers_of(batch)  # fails where a row is torn
        handles = zip(batch["index"].tolist(), batch["index_generation"].tolist(), strict=True)
        for handle, number in zip(handles, numbers, strict=True):
            record = number % PATCHED  # a patch adds to the number
            assert self.names.setdefault(handle, record) == record, f"{handle} names two records"
        return numbers


@pytest.mark.parametrize("kind", STORAGES)
def test_processes_that_write_patch_and_draw_at_once(kind):
    """Two writers and a patcher elsewhere, draws and writes here, on a ring of 7."""
    rb = shared_buffer(kind, 7, [0])
    started = [processes.SERVER.Event() for _ in range(3)]
    others = [
        processes.start(processes.write_for_ever, rb, started[0], 0, 5),
        processes.start(processes.write_for_ever, rb, started[1], 1000, 9),
        processes.start(processes.patch_for_ever, rb, started[2], 3),
    ]
    assert all(event.wait(processes.PATIENCE) for event in started)
    witness, sampler = Witness(), group_sampler("reward", num_groups=2)
    patched = 0
    for turn in range(ROUNDS):
        rb.set_sampler(RandomSampler() if turn % 2 else sampler)
        numbers = witness.look(rb.sample(6))
        patched += any(number >= PATCHED for number in numbers)
        if turn % 2 == 0:  # the rows of a group are of one group when they are read, not only when they are drawn
            first, second = numbers[:3], numbers[3:]
            assert len({n % GROUPS for n in first}) == len({n % GROUPS for n in second}) == 1
        if turn % 10 == 0:
            rb.extend(records([2000 + turn]))
    for process in others:
        processes.kill_and_join(process)
    assert patched, "the patcher's work was never seen"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one of them may have been writing
        assert len(processes.contents(rb)) == len(rb)


@pytest.mark.parametrize("kind", STORAGES)
def test_handles_that_go_to_another_process_and_come_back_late(kind):
    rb = shared_buffer(kind, 6)
    slots, generations = processes.extend(rb, range(6))
    assert call(processes.patch, rb, slots[:4], generations[:4], [10, 11, 12, 13]) == (4, 0)
    assert processes.contents(rb) == [10, 11, 12, 13, 4, 5]
    theirs = call(processes.extend, rb, [20, 21])
    assert theirs == ([0, 1], [generations[0] + 1] * 2)
    assert call(processes.patch, rb, slots, generations, [n + 50 for n in range(6)]) == (
        4,
        2,
    )  # 0 and 1 are other records
    assert processes.contents(rb) == [20, 21, 52, 53, 54, 55]
    assert processes.patch(rb, *theirs, [30, 31]) == (2, 0)
    call(processes.empty, rb)
    assert processes.patch(rb, *theirs, [40, 41]) == (0, 2)
    assert call(processes.patch, rb, slots, generations, list(range(6))) == (0, 6)
    assert processes.extend(rb, [60])[1][0] > theirs[1][0]


@pytest.mark.parametrize("kind", STORAGES)
def test_a_process_killed_in_the_middle_of_a_write_loses_only_what_it_was_writing(kind):
    rb = shared_buffer(kind, 6, range(8))  # 6, 7, 2, 3, 4, 5
    witness, handles = Witness(), {}
    whole = rb.sample(100)
    witness.look(whole)
    for slot, generation, number in zip(*(whole[k].tolist() for k in ("index", "index_generation", "n")), strict=True):
        handles[number] = (slot, generation)
    victim = processes.start(processes.die_holding, rb, [1, 4])
    victim.join(processes.PATIENCE)
    assert victim.exitcode == -signal.SIGKILL
    with pytest.warns(RuntimeWarning, match=f"process {victim.pid} ended while it was writing; 2 records"):
        assert len(rb) == 6 and sorted(processes.contents(rb)) == [2, 3, 5, 6]
    assert len(rb) == 4 and set(witness.look(rb.sample(100))) == {2, 3, 5, 6}
    for number in (2, 3, 6):  # those that did not move to fill a gap are still named by their handles
        slot, generation = handles[number]
        assert processes.patch(rb, [slot], [generation], [number + PATCHED]) == (1, 0)
    for number in (4, 5, 7):
        slot, generation = handles[number]
        assert processes.patch(rb, [slot], [generation], [99]) == (0, 1)
    assert call(processes.extend, rb, [30, 31, 32])[0] == [4, 5, 0]
    assert len(rb) == 6 and {30, 31, 32} <= set(witness.look(rb.sample(100)))
    rb.set_sampler(group_sampler("recency"))
    witness.look(rb.sample(6))


def test_processes_killed_at_any_moment_leave_a_storage_that_works():
    for kind, rounds in (("packed", 8), ("columns", 4)):
        rb, rng = shared_buffer(kind, 64, [0]), random.Random(kind)
        for turn in range(rounds):
            started, witness = processes.SERVER.Event(), Witness()
            victim = processes.start(processes.write_for_ever, rb, started, 1000 * turn, 40)
            assert started.wait(processes.PATIENCE)
            time.sleep(rng.random() / 50)
            processes.kill_and_join(victim)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # whether it was writing is up to chance
                held = processes.contents(rb)
            assert len(held) == len(rb) and rb.storage.cursor <= len(rb)
            witness.look(rb.sample(200))
            (slot,), _ = processes.extend(rb, [500_000 % PATCHED])
            assert processes.contents(rb)[slot] == 500_000 % PATCHED
            rb.set_sampler(group_sampler("recency", num_groups=1))
            witness.look(rb.sample(4))
            rb.set_sampler(RandomSampler())


def test_a_process_killed_while_idle_is_not_missed():
    rb = shared_buffer("packed", 6, range(4))
    requests = processes.SERVER.Queue()
    idle = processes.start(_wait_with, rb, requests)
    requests.put("ready?")
    while not requests.empty():
        time.sleep(0.01)
    processes.kill_and_join(idle)
    assert processes.contents(rb) == [0, 1, 2, 3]
    assert call(processes.extend, rb, [4]) == ([4], [0])


def _wait_with(rb, requests):
    len(rb[:])
    requests.get()
    signal.pause()


def test_a_lock_dies_with_its_holder_even_where_a_fork_of_it_lives_on():
    rb = shared_buffer("packed", 6, range(4))
    here, there = processes.SERVER.Pipe(duplex=False)
    holder = processes.start(processes.die_leaving_a_fork, rb, there)
    assert here.poll(processes.PATIENCE)
    survivor = here.recv()
    holder.join(processes.PATIENCE)
    try:
        assert call(processes.contents, rb) == [0, 1, 2, 3]
    finally:
        os.kill(survivor, signal.SIGKILL)
    assert torch.equal(rb[:]["n"], torch.arange(4))
