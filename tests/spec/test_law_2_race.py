"""Law 2 under load: two writers, two updaters, two readers, and one who empties, on a small ring that several buffers
share, for ``TORCHRB_STRESS_SECONDS`` each. No row is torn, no handle names another record, no update that was reported
as done is lost, and when all is quiet the counts and the journal tell what was done. The ledger of `race` decides.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.spec.builders import STRATEGIES, group_sampler
from tests.spec.race import GROUPS, Ledger, answer_of, note_of, records_of
from torchrb import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter

SECONDS = float(os.environ.get("TORCHRB_STRESS_SECONDS", "1"))
PATIENCE = 60.0  # for a machine so busy that not everything was tried in that time
CAPACITY = 12
DRAW = 6

# What must have happened for a run to mean anything.
TRIED = (
    "appended",
    "overwritten",
    "touched",
    "patched",
    "versioned",
    "stale",
    "superseded",
    "rejected",
    "emptied",
    "looked",
)
TRIED += ("uniform", *STRATEGIES)  # fmt: skip


class Race:
    """Buffers on one storage, one for each way to draw, and what threads do to them."""

    def __init__(self, layout: str, texts: bool) -> None:
        self.storage = LazyTensorStorage(CAPACITY, layout=layout)
        self.texts = texts
        samplers = {"uniform": RandomSampler()}
        samplers |= {strategy: group_sampler(strategy, samples_per_group=DRAW // GROUPS) for strategy in STRATEGIES}
        self.buffers = {name: self.buffer(sampler) for name, sampler in samplers.items()}
        self.ledger = Ledger()
        self.version = itertools.count(2)
        self.extend(self.any(random.Random(0)), random.Random(0))

    def buffer(self, sampler: object) -> TensorDictReplayBuffer:
        writer = TensorDictRoundRobinWriter(track_generations=True)
        return TensorDictReplayBuffer(
            storage=self.storage, sampler=sampler, writer=writer, generator=torch.Generator().manual_seed(0)
        )

    def any(self, rng: random.Random) -> TensorDictReplayBuffer:
        return self.buffers[rng.choice(list(self.buffers))]

    # --- writers

    def extend(self, rb: TensorDictReplayBuffer, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        ids = self.ledger.fresh(rng.choice([1, 2, 3, 5, 7, CAPACITY + 5]))
        index, generation = rb.extend(records_of(ids, self.texts), return_generations=True)
        self.ledger.name(index, generation, ids)
        self.ledger.add("appended", len(ids))
        return index, generation, ids

    def write(self, rng: random.Random) -> None:
        rb, (number,) = self.any(rng), self.ledger.fresh(1)
        try:
            match rng.randrange(6):
                case 0:
                    rb.add(records_of([number], self.texts)[0])
                    self.ledger.add("appended")
                case 1:
                    rb[rng.randrange(CAPACITY)] = records_of([number], self.texts)[0]
                    self.ledger.add("overwritten")
                case 2:
                    slots = torch.tensor(rng.sample(range(CAPACITY), 3))
                    rb.writer.write_at(slots, records_of(self.ledger.fresh(3), self.texts))
                    self.ledger.add("overwritten", 3)
                case 3:
                    slots = torch.tensor(rng.sample(range(CAPACITY), 2))
                    rb.set_at_("touch", torch.full((2, 4), rng.randrange(1000), dtype=torch.int32), slots)
                    self.ledger.add("touched", 2)
                case _:
                    self.extend(rb, rng)
        except IndexError:  # emptied just now, nothing was written
            pass

    def empty(self, rng: random.Random) -> None:
        time.sleep(rng.random() * 0.05)
        self.any(rng).empty(empty_write_count=False)
        self.ledger.add("emptied")

    # --- updaters

    def update(self, rng: random.Random) -> None:
        rb = self.any(rng)
        if rng.random() < 0.4:
            index, generation, ids = self.extend(rb, rng)
        else:
            drawn = self.sample(rng)
            if drawn is None:
                return
            index, generation, ids = drawn
        if rng.random() < 0.5:
            time.sleep(0.0005)  # long enough for the ring to turn
        number, ledger = torch.tensor(ids), self.ledger
        if rng.random() < 0.5:
            tokens = ledger.tokens(len(ids))
            began = ledger.tick()
            result = rb.update_if_present(
                index=index, generation=generation, patch=note_of(number, torch.tensor(tokens))
            )
            ledger.updated(ids, result, began, tokens, None)
        else:
            version = torch.tensor([max(1, next(self.version) - rng.randrange(40)) for _ in ids])
            ledger.try_versions(ids, version.tolist())
            began = ledger.tick()
            result = rb.update_if_present(
                index=index, generation=generation, patch=answer_of(number, version), version_key="version",
                version=version, require_newer=rng.random() < 0.5,
            )  # fmt: skip
            ledger.updated(ids, result, began, None, version.tolist())

    # --- readers

    def sample(self, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor, list[int]] | None:
        name = rng.choice(list(self.buffers))
        began = self.ledger.tick()
        try:
            batch, info = self.buffers[name].sample(DRAW, return_info=True)
        except RuntimeError:  # nothing is stored
            return None
        ids = self.ledger.saw(batch, began)
        assert torch.equal(info["index"], batch["index"])
        assert torch.equal(info["index_generation"], batch["index_generation"])
        self.ledger.name(batch["index"], batch["index_generation"], ids)
        self.ledger.add(name)
        if name in STRATEGIES:
            groups = batch["g"].view(GROUPS, -1)
            assert (groups == groups[:, :1]).all(), f"a group mixes prompts: {ids}"
            if name in ("reward", "variance") and not info["short_group"].any():
                first, second = batch["next", "reward"].view(GROUPS, -1).unbind(1)
                assert ((first >= second) if name == "reward" else (first <= second)).all(), (
                    f"rewards in disorder: {ids}"
                )
        return batch["index"], batch["index_generation"], ids

    def read(self, rng: random.Random) -> None:
        if rng.random() < 0.7:
            self.sample(rng)
            return
        began, rb = self.ledger.tick(), self.any(rng)
        try:
            index = slice(None) if rng.random() < 0.5 else torch.tensor(rng.sample(range(CAPACITY), 4))
            ids = self.ledger.saw(rb[index], began)
        except IndexError:  # emptied just now
            return
        assert len(set(ids)) == len(ids), f"one call reads a record at two slots: {ids}"
        self.ledger.add("looked", len(ids))

    # --- all together

    def run(self) -> None:
        failures: list[BaseException] = []
        stop = threading.Event()

        def loop(job: Callable[[random.Random], object], seed: int) -> None:
            rng = random.Random(seed)
            try:
                while not stop.is_set():
                    job(rng)
            except BaseException as error:
                failures.append(error)
                stop.set()

        jobs = [self.write, self.write, self.update, self.update, self.read, self.read, self.empty]
        threads = [threading.Thread(target=loop, args=(job, seed), daemon=True) for seed, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        stop.wait(SECONDS)
        deadline = time.monotonic() + PATIENCE
        while not stop.wait(0.05) and self.untried() and time.monotonic() < deadline:
            pass
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        if failures:
            raise failures[0]

    def untried(self) -> list[str]:
        return [what for what in TRIED if not self.ledger.count[what]]

    def check_quiet(self) -> None:
        """Nobody writes any more: everything that was reported is there, and the counters tell what was done."""
        ledger, count, rb = self.ledger, self.ledger.count, self.buffers["uniform"]
        self.extend(rb, random.Random(1))
        ids = ledger.saw(rb[:], ledger.tick())
        slots = torch.arange(CAPACITY)
        generations = rb.writer.generations_of(slots)
        assert len(set(ids)) == len(ids) == len(rb)
        ledger.name(slots[: len(rb)], generations[: len(rb)], ids)
        for slot, generation in ledger.ids:
            assert generation <= int(generations[slot]), "a handle was given out that is newer than its slot"

        assert {len(other) for other in self.buffers.values()} == {len(rb)}
        assert {other.write_count for other in self.buffers.values()} == {count["appended"]}
        # Each whole-record write and each clearing steps a slot's count by one, and is noted once.
        steps = int((generations + 1).sum())
        assert steps >= count["appended"] + count["overwritten"]
        assert self.storage.journal_position == steps + count["touched"] + count["patched"]
        # What samplers learned on the way is what one finds now that looks for the first time.
        for strategy in STRATEGIES:
            drawn = []
            for sampler in (self.buffers[strategy].sampler, group_sampler(strategy, samples_per_group=DRAW // GROUPS)):
                batch, info = self.buffer(sampler).sample(DRAW, return_info=True)
                ledger.saw(batch, ledger.tick())
                drawn.append((info["index"].tolist(), info["group_size"].tolist(), info["num_groups"]))
            assert drawn[0] == drawn[1], f"the index of {strategy!r} is not that of the storage"


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads change places often."""
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-6)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # groups run short while others write
@pytest.mark.parametrize("texts", [False, True], ids=["tensors", "with texts"])
@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_nothing_is_torn_lost_or_mistaken(layout, texts):
    race = Race(layout, texts)
    race.run()
    assert not race.untried(), f"these were not tried: {race.untried()}, {dict(race.ledger.count)}"
    race.check_quiet()
