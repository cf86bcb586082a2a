"""Random histories of everything a buffer can do, held step by step against a plain Python ring."""

from __future__ import annotations

import math
import random
import warnings

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, STORAGES, buffer
from tests.model import Ring, same_number
from tests.oracle import assert_group
from torchrb import PromptGroupSampler, RandomSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter

STRATEGIES = ("random", "recency", "reward", "variance")
CAPACITY = 13
STEPS = 250
DTYPES = {"n": torch.int64, "g": torch.int32, "r": torch.float64, "v": torch.float32}
REWARDS = (-1.5, -0.5, 0.0, 0.0, 0.25, 1.0, 1.0, 4.0, math.nan, math.inf, -math.inf)
VERSIONS = (0.0, 1.0, 2.0, 3.0, math.nan)


class History:
    """A buffer, its model, and one random step after another on both."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rng, self.kind = random.Random(seed), kind
        self.rb, self.ring = buffer(kind, CAPACITY), Ring(CAPACITY)
        self.writers = [self.rb, buffer(self.rb.storage)]  # two buffers on one storage write into one ring
        self.readers = {strategy: self.reader(strategy) for strategy in STRATEGIES}
        self.handles = [(-1, 0), (CAPACITY, 0), (0, -1), (CAPACITY - 1, -1)]
        self.number = 0

    def reader(self, strategy: str) -> TensorDictReplayBuffer:
        sampler = PromptGroupSampler(num_groups=2, group_key="g", reward_key="r", strategy=strategy)
        return buffer(self.rb.storage, sampler=sampler)

    def records(self, num: int) -> list[dict]:
        made = []
        for _ in range(num):
            self.number += 1
            made.append(
                {
                    "n": self.number,
                    "g": self.rng.randrange(5),
                    "r": self.rng.choice(REWARDS),
                    "v": self.rng.choice(VERSIONS),
                }
            )
        return made

    def slots(self, num: int) -> list[int]:
        return [self.rng.randrange(self.ring.length) for _ in range(num)]

    # --- the steps

    def extend(self) -> None:
        records = self.records(self.rng.choice([1, 2, 3, 5, CAPACITY, 2 * CAPACITY + 3]))
        slots, generations = self.rng.choice(self.writers).extend(batch(records), return_generations=True)
        handles = self.ring.extend(records)
        assert list(zip(slots.tolist(), generations.tolist(), strict=True)) == handles
        self.handles += handles

    def add(self) -> None:
        (record,) = self.records(1)
        ((slot, generation),) = self.ring.extend([record])
        assert self.rng.choice(self.writers).add(batch([record])[0]) == slot
        self.handles.append((slot, generation))

    def assign(self) -> None:
        num = self.rng.randint(1, 4)
        slots, records = self.slots(num), self.records(num)
        if num == 1:
            self.rb[slots[0]] = batch(records)[0]
        elif self.rng.random() < 0.5:
            self.rb[torch.tensor(slots)] = batch(records)
        else:
            self.rb.writer.write_at(torch.tensor(slots), batch(records))
        self.handles += [(slot, self.ring.put(slot, record)) for slot, record in zip(slots, records, strict=True)]

    def write_all(self) -> None:
        records = self.records(self.rng.randint(1, self.ring.length))
        self.rb.write_all(batch(records))
        self.handles += [(slot, self.ring.put(slot, record)) for slot, record in enumerate(records)]

    def set_field(self) -> None:
        key = self.rng.choice(["g", "r", "v"])
        slots = list(range(self.ring.length)) if self.rng.random() < 0.3 else self.slots(self.rng.randint(1, 4))
        values = [record[key] for record in self.records(len(slots))]
        tensor = torch.tensor(values, dtype=DTYPES[key])
        if len(slots) == self.ring.length and slots == sorted(set(slots)):
            self.rb.set_(key, tensor) if self.rng.random() < 0.5 else self.rb.update_({key: tensor})
        else:
            self.rb.set_at_(key, tensor, torch.tensor(slots))
        self.ring.set_field(key, values, slots)

    def update(self) -> None:
        handles = [self.rng.choice(self.handles[-30:] + self.handles[:4]) for _ in range(self.rng.randint(0, 6))]
        records = self.records(len(handles))
        keys = self.rng.sample(["n", "g", "r"], self.rng.randint(0, 3))
        version, newer = None, self.rng.random() < 0.5
        call = {}
        if self.rng.random() < 0.6:
            version = [record["v"] for record in records]
            call = {"version_key": "v", "version": torch.tensor(version, dtype=torch.float32), "require_newer": newer}
        result = self.rb.update_if_present(
            index=torch.tensor([slot for slot, _ in handles], dtype=torch.int64),
            generation=torch.tensor([generation for _, generation in handles], dtype=torch.int64),
            patch={key: torch.tensor([record[key] for record in records], dtype=DTYPES[key]) for key in keys},
            **call,
        )
        fates = self.ring.update(handles, {key: [record[key] for record in records] for key in keys}, version, newer)
        masks = {"updated": result.updated, "stale": result.stale, "superseded": result.superseded}
        masks |= {} if version is None else {"rejected": result.version_rejected}
        for fate, mask in masks.items():
            assert mask.tolist() == [told == fate for told in fates], fate

    def empty(self) -> None:
        reset = self.rng.random() < 0.5
        self.rb.empty(reset)
        self.ring.empty(reset)

    def sample(self) -> None:
        strategy = self.rng.choice(STRATEGIES)
        k = self.rng.randint(1, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows, info = self.readers[strategy].sample(2 * k, return_info=True)
        slots = info["index"].tolist()
        self.check_rows(rows, slots, info["index_generation"].tolist())
        groups, used = self.ring.groups(), {}
        for place in range(2):
            drawn = slots[place * k : (place + 1) * k]
            key = self.ring.rows[drawn[0]]["g"]
            assert_group(strategy, groups[key], drawn, used.get(key, ()))
            used.setdefault(key, []).extend(drawn)
        assert len(used) == min(2, len(groups))
        assert info["num_groups"] == len(groups)

    def sample_rows(self) -> None:
        rows, info = self.rb.sample(9, return_info=True)
        self.check_rows(rows, info["index"].tolist(), info["index_generation"].tolist())

    # --- what must hold after each

    def check_rows(self, rows: TensorDict, slots: list[int], generations: list[int]) -> None:
        for i, slot in enumerate(slots):
            record = self.ring.rows[slot]
            assert record is not None and self.ring.generations[slot] == generations[i]
            assert all(same_number(rows[key][i].item(), value) for key, value in record.items()), (
                slot,
                record,
                rows[i],
            )

    def check(self) -> None:
        rb, ring = self.rb, self.ring
        assert (len(rb), rb.storage.cursor, rb.write_count) == (ring.length, ring.cursor, ring.writes)
        generations = rb.writer.generations_of(torch.arange(CAPACITY))
        assert generations.tolist() == ring.generations
        if ring.length:
            self.check_rows(rb[:], list(range(ring.length)), ring.generations)

    def step(self) -> None:
        steps = [self.extend, self.add, self.add]
        if self.ring.length:
            steps += [
                self.extend,
                self.assign,
                self.set_field,
                self.write_all,
                self.sample,
                self.sample,
                self.sample_rows,
            ]
            steps += [self.update, self.update] if self.kind in LAYOUTS else []
            steps += [self.empty] if self.rng.random() < 0.15 else []
        self.rng.choice(steps)()
        self.check()


def batch(records: list[dict]) -> TensorDict:
    fields = {key: torch.tensor([record[key] for record in records], dtype=dtype) for key, dtype in DTYPES.items()}
    return TensorDict(fields, [len(records)])


@pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_goes_as_the_model_says(kind, seed):
    history = History(kind, seed)
    for _ in range(STEPS):
        history.step()


def test_the_same_history_draws_the_same_on_both_layouts():
    drawn = []
    for kind in LAYOUTS:
        history = History(kind, 7)
        for _ in range(40):
            history.step()
        history.extend()
        drawn.append([])
        for reader in [*history.readers.values(), history.rb]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                drawn[-1].append(reader.sample(6)["index"].tolist())
    assert drawn[0] == drawn[1]


def test_the_model_sees_a_planted_bug(monkeypatch):
    """A ring that forgets to step one generation must not pass, or the model is no test at all."""
    put = Ring.put

    def forgetful(self, slot, record):
        generation = put(self, slot, record)
        if self.writes == 20:
            self.generations[slot] -= 1
        return generation

    monkeypatch.setattr(Ring, "put", forgetful)
    with pytest.raises(AssertionError):
        test_a_random_history_goes_as_the_model_says("packed", 0)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_batches_that_are_worth_several_threads(kind):
    capacity, rng = 6000, torch.Generator().manual_seed(0)
    rb, number = buffer(kind, capacity), torch.full((capacity,), -1)
    generation, total = torch.full((capacity,), -1), 0
    wide = torch.arange(70)
    for size in (5000, 4000, 13_001):
        n = torch.arange(total, total + size)
        slots = rb.extend(TensorDict({"n": n, "wide": n[:, None] + wide, "v": torch.zeros(size)}, [size]))
        assert torch.equal(slots, n % capacity)
        total += size
        number[slots[-capacity:]] = n[-capacity:]
        generation += torch.bincount(slots, minlength=capacity)
        assert torch.equal(rb[:]["n"], number[: len(rb)]) and torch.equal(
            rb.writer.generations_of(torch.arange(capacity)), generation
        )
        assert torch.equal(rb[:]["wide"], number[: len(rb), None] + wide)

    slots = torch.randint(capacity, (9000,), generator=rng)
    versions = torch.randint(-3, 4, (9000,), generator=rng).float()
    handles = generation[slots] - (torch.arange(9000) % 3 == 0).long()
    patch = {"wide": torch.arange(9000)[:, None] + wide}
    result = rb.update_if_present(index=slots, generation=handles, patch=patch, version_key="v", version=versions)
    winner: dict[int, int] = {}
    for i, (slot, version) in enumerate(zip(slots.tolist(), versions.tolist(), strict=True)):
        if i % 3 and version >= 0 and (slot not in winner or version >= versions[winner[slot]]):
            winner[slot] = i
    assert torch.nonzero(result.updated).view(-1).tolist() == sorted(winner.values())
    assert torch.equal(result.stale, torch.arange(9000) % 3 == 0)
    number[list(winner)] = torch.tensor(list(winner.values()))
    assert torch.equal(rb[:]["wide"], number[:, None] + wide)


def test_a_list_of_any_objects_is_a_ring_too():
    rng, rb, ring = random.Random(0), buffer("list", CAPACITY, sampler=RandomSampler()), Ring(CAPACITY)
    assert isinstance(rb.writer, TensorDictRoundRobinWriter) and STORAGES["list"]
    for n in range(120):
        records = [{"n": n, "i": i} for i in range(rng.choice([1, 2, 30]))]
        match rng.randrange(4):
            case 0 | 1:
                rb.extend(records), ring.extend(records)
            case 2 if ring.length:
                slot = rng.randrange(ring.length)
                rb[slot] = records[0]
                ring.put(slot, records[0])
            case 3 if rng.random() < 0.3:
                rb.empty(), ring.empty(True)
        assert [rb[i] for i in range(len(rb))] == [row for row in ring.rows if row is not None]
        assert (rb.storage.cursor, rb.write_count) == (ring.cursor, ring.writes)
        assert rb.writer.generations_of(torch.arange(CAPACITY)).tolist() == ring.generations
