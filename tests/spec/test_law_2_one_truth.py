"""Law 2: index, generation and content that are returned together belong together, and a row never mixes two writes.

Writers, updaters and readers share a small ring for a while. Every record tells one number in many fields, and carries
a note that updaters patch in two fields at once: the record's number and the patch's, the second time negated.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from tests.spec.builders import STRATEGIES, TENSOR_STORAGES, buffer_of, group_sampler, numbered, numbers_of
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

CAPACITY = 12
PATCHES = 1000  # notes a record can be told apart by
SECONDS = 1.5


def noted(numbers: list[int]) -> TensorDict:
    """Records with an empty note: number times `PATCHES`."""
    records = numbered(numbers)
    records["note"] = records["n"] * PATCHES
    records["echo"] = -records["note"].to(torch.float64)
    return records


def check(batch: TensorDict) -> list[int]:
    """Fails unless each row is one record, patched as a whole or not at all; returns the numbers."""
    numbers = numbers_of(batch)
    assert (batch["note"] // PATCHES).tolist() == numbers, "a patch landed on another record"
    assert torch.equal(batch["echo"], -batch["note"].to(torch.float64)), "a row mixes two patches"
    return numbers


class Crowd:
    """Threads over buffers on one storage, and what they saw: which number each handle named."""

    def __init__(self, buffers: list[TensorDictReplayBuffer]) -> None:
        self.buffers = buffers
        self.numbers = itertools.count()
        self.named: dict[tuple[int, int], int] = {}
        self.seen = {"written": 0, "read": 0, "patched": 0, "stale": 0}
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self.book = threading.Lock()

    def tell(self, index: torch.Tensor, generation: torch.Tensor, numbers: list[int], what: str) -> None:
        """Hold handles and numbers against all that was told before."""
        with self.book:
            for handle in zip(index.tolist(), generation.tolist(), numbers, strict=True):
                before = self.named.setdefault(handle[:2], handle[2])
                assert before == handle[2], f"handle {handle[:2]} named record {before}, now {handle[2]}"
            self.seen[what] += len(numbers)

    def run(
        self, jobs: list[Callable[[TensorDictReplayBuffer, random.Random], None]], seconds: float = SECONDS
    ) -> None:
        def loop(job: Callable, rb: TensorDictReplayBuffer, seed: int) -> None:
            rng = random.Random(seed)
            try:
                while not self.stop.is_set():
                    job(rb, rng)
            except BaseException as error:
                self.failure = self.failure or error
                self.stop.set()

        threads = [
            threading.Thread(target=loop, args=(job, self.buffers[i % len(self.buffers)], i), daemon=True)
            for i, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        if self.failure is not None:
            raise self.failure

    # --- what threads do

    def fresh(self, num: int) -> list[int]:
        return [next(self.numbers) % 2**20 for _ in range(num)]

    def extend(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        numbers = self.fresh(rng.choice([1, 2, 3, 5, 7, CAPACITY + 5]))
        index, generation = rb.extend(noted(numbers), return_generations=True)
        self.tell(index, generation, numbers, "written")

    def overwrite(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        slots = rng.sample(range(CAPACITY), 3)
        try:
            if rng.random() < 0.5:
                rb.writer.write_at(torch.tensor(slots), noted(self.fresh(3)))
            else:
                rb[slots[0]] = noted(self.fresh(1))[0]
        except IndexError:  # emptied just now
            pass

    def patch(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        try:
            batch = rb.sample(6)
        except RuntimeError:
            return
        index, generation, numbers = batch["index"], batch["index_generation"], batch["n"]
        if rng.random() < 0.5:
            time.sleep(0.0005)  # long enough for the ring to turn
        note = numbers * PATCHES + rng.randrange(PATCHES)
        patch = {"note": note, "echo": -note.to(torch.float64)}
        result = rb.update_if_present(index=index, generation=generation, patch=patch)
        with self.book:
            self.seen["patched"] += result.updated_count
            self.seen["stale"] += result.stale_count

    def read(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        try:
            batch = rb.sample(6)
        except RuntimeError:
            return
        self.tell(batch["index"], batch["index_generation"], check(batch), "read")

    def look(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        """Whole reads: the rows are of one moment, so none is there twice."""
        numbers = check(rb[:] if rng.random() < 0.5 else rb.read_all_in_order())
        assert len(set(numbers)) == len(numbers)

    def empty(self, rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        time.sleep(rng.random() * 0.05)
        rb.empty()


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads change places often."""
    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(threads)


def crowd_over(kind: str, samplers: list) -> Crowd:
    if kind == "adopted":
        storage = TensorStorage(noted([0] * CAPACITY))
        storage.clear()
    else:
        storage = buffer_of(kind, CAPACITY).storage
    buffers = [
        TensorDictReplayBuffer(
            storage=storage, sampler=sampler, writer=TensorDictRoundRobinWriter(track_generations=True),
            generator=torch.Generator(),
        )
        for sampler in samplers
    ]  # fmt: skip
    crowd = Crowd(buffers)
    crowd.extend(buffers[0], random.Random(0))
    return crowd


@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_writers_updaters_and_readers_on_one_buffer(kind):
    crowd = crowd_over(kind, [None])
    crowd.run([crowd.extend, crowd.read, crowd.patch, crowd.overwrite, crowd.look])
    assert min(crowd.seen.values()) > 0, f"nothing was tried: {crowd.seen}"
    check(crowd.buffers[0][:])


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # groups run short while others write
@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_several_buffers_on_one_storage_while_it_is_emptied(kind):
    crowd = crowd_over(kind, [None, group_sampler("recency", samples_per_group=2), None])
    jobs = [crowd.extend, crowd.read, crowd.patch, crowd.read, crowd.extend, crowd.patch, crowd.empty]
    crowd.run(jobs)
    assert min(crowd.seen.values()) > 0, f"nothing was tried: {crowd.seen}"


@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_are_drawn_while_the_ring_turns(strategy):
    crowd = crowd_over("packed", [group_sampler(strategy, samples_per_group=2)])

    def draw(rb: TensorDictReplayBuffer, rng: random.Random) -> None:
        batch = rb.sample(6)
        numbers = check(batch)
        groups = batch["g"].view(-1, 2)
        assert (groups[:, 0] == groups[:, 1]).all(), f"a group mixes prompts: {numbers}"
        crowd.tell(batch["index"], batch["index_generation"], numbers, "read")

    crowd.run([crowd.extend, draw, crowd.patch, draw], seconds=1.0)
    assert crowd.seen["read"] > 0


@pytest.mark.parametrize("kind", ["list", "stack"])
def test_lists_of_records_keep_them_whole(kind):
    crowd = crowd_over(kind, [None])
    crowd.run([crowd.extend, crowd.read, crowd.overwrite, crowd.read], seconds=1.0)
    assert crowd.seen["read"] > 0 and crowd.seen["written"] > 0


@pytest.mark.parametrize("kind", TENSOR_STORAGES)
def test_counters_agree_with_the_writers(kind):
    crowd = crowd_over(kind, [None])
    start = crowd.buffers[0].write_count
    crowd.seen["written"] = 0
    crowd.run([crowd.extend] * 4, seconds=0.5)
    rb = crowd.buffers[0]
    assert rb.write_count - start == crowd.seen["written"]
    assert rb.storage.cursor == rb.write_count % CAPACITY
    last = {index: generation for index, generation in sorted(crowd.named)}
    assert rb.writer.generations_of(torch.arange(CAPACITY)).tolist() == [last[slot] for slot in range(CAPACITY)]


# --- code of the records' own, run in the middle of a call -----------------------------------------------------------


class Meddler:
    """A record that does something once: when it is copied, or when it is dropped."""

    def __init__(self, act: Callable[[], object] | None, when: str) -> None:
        self.act, self.when = act, when

    def __deepcopy__(self, memo: dict) -> Meddler:
        if self.when == "copied":
            self._once()
        stored = Meddler(self.act, self.when)
        self.act = None
        return stored

    def __del__(self) -> None:
        if self.when == "dropped":
            self._once()

    def _once(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()


def with_objects(numbers: list[int], objects: list[object]) -> TensorDict:
    rows = TensorDict({"n": torch.tensor(numbers)}, [len(numbers)])
    rows["object"] = NonTensorStack(*(NonTensorData(item) for item in objects))
    return rows


def test_a_dropped_object_that_writes_does_not_tear_records():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(2))
    meddle = Meddler(lambda: rb.extend(with_objects([2, 2], ["inner", "inner"])), "dropped")
    rb.extend(with_objects([0, 0], [meddle, "first"]))
    rb.extend(with_objects([1, 1], ["outer", "outer"]))
    batch = rb[:]
    assert batch["n"].tolist() == [2, 2] and list(batch["object"]) == ["inner", "inner"]


def test_a_dropped_record_that_writes_does_not_tear_a_list():
    rb = ReplayBuffer(storage=ListStorage(2), collate_fn=lambda records: records)
    rb.extend([Meddler(lambda: rb.extend(["inner", "inner"]), "dropped"), "first"])
    rb.extend(["outer", "outer"])
    assert rb[:] == ["inner", "inner"]


def test_a_record_that_writes_while_it_is_read_keeps_its_own_generation():
    writer = RoundRobinWriter(track_generations=True)
    rb = ReplayBuffer(storage=ListStorage(1), writer=writer, collate_fn=lambda records: records, batch_size=1)
    rb.add(Meddler(None, "copied"))
    rb.storage._items[0].act = lambda: rb.add("inner")
    batch, info = rb.sample(return_info=True)
    assert isinstance(batch[0], Meddler) and info["index_generation"].tolist() == [0]


def test_an_object_that_writes_the_first_batch_is_held_against_it():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    inner = TensorDict({"n": torch.tensor([1.5])}, [1])
    inner["object"] = NonTensorStack(NonTensorData("inner"))
    with pytest.raises(ValueError, match=r"'n' is stored as torch.float32"):
        rb.extend(with_objects([1], [Meddler(lambda: rb.extend(inner), "copied")]))
    assert rb[:]["n"].tolist() == [1.5]


@pytest.mark.parametrize("read", [lambda rb: rb[:2], lambda rb: rb.sample(2)])
def test_records_are_collated_as_those_of_the_storage_they_came_from(read):
    rb = ReplayBuffer(storage=ListStorage(4), collate_fn=lambda records: ("first", len(records)))
    rb.extend([1, 2])
    first, second = rb.storage, ListStorage(4)

    class Swapping:
        def __enter__(self) -> None:
            rb.set_storage(second, collate_fn=lambda records: ("second", len(records)))

        def __exit__(self, *_: object) -> None: ...

    first.lock = Swapping()
    assert read(rb) == ("first", 2)
    second.append([3, 4])
    assert read(rb) == ("second", 2)


@pytest.mark.parametrize("read", [lambda rb: rb[-1], lambda rb: rb.set_at_((), torch.tensor([9]), [-1])])
def test_a_call_stays_with_the_storage_it_began_on(read):
    rb = ReplayBuffer(storage=LazyTensorStorage(8))
    rb.extend(torch.arange(8))
    first, second = rb.storage, LazyTensorStorage(2)

    class Swapping:
        def __enter__(self) -> None:
            if rb.storage is first:
                rb.set_storage(second)

        def __exit__(self, *_: object) -> None: ...

    lock, first.lock = first.lock, Swapping()
    read(rb)
    first.lock = lock
    assert int(first[-1]) in (7, 9) and first[2].tolist() == 2
