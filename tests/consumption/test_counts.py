"""Every record at most n times: with every sampler and storage, in every history, against a count of our own."""

from __future__ import annotations

import collections
import gc
import itertools
import random
import threading
import weakref

import pytest
import torch
from tensordict import TensorDict

from tests.cases import STORAGES, buffer
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrb.consumption import Exhausted

pytestmark = pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # groups run short

SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "in order": lambda: SamplerWithoutReplacement(shuffle=False),
    "groups": lambda: PromptGroupSampler(num_groups=2, group_key="g"),
    "prioritized": lambda: PrioritizedSampler(1000, alpha=1.0, beta=1.0),
    "best of groups": lambda: PromptGroupSampler(num_groups=2, group_key="g", strategy="reward", reward_key="r"),
}
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


def rows(*numbers):
    n = torch.tensor(numbers, dtype=torch.int64)
    return TensorDict({"n": n, "g": n % 3, "r": n.double()}, [len(numbers)])


def consuming(sampler="random", limit=1, kind="packed", capacity=10, **kwargs):
    return buffer(kind, capacity, sampler=SAMPLERS[sampler](), consume_after_n_samples=limit, **kwargs)


def numbers_of(batch):
    return [int(row["n"]) for row in (batch if isinstance(batch, list) else batch.unbind(0))]


@each_sampler
@pytest.mark.parametrize("kind, limit", [("packed", 1), ("packed", 3), ("columns", 2), ("stack", 1), ("list", 2)])
def test_no_history_returns_a_record_more_often_and_none_is_lost(sampler, kind, limit):
    if kind == "list" and "groups" in sampler:
        return
    chance, rb = random.Random(limit), consuming(sampler, limit, kind)
    other = TensorDictReplayBuffer(storage=rb.storage)
    times, stored, first = collections.Counter(), {}, 0
    for _ in range(40):
        what = chance.randrange(9)
        if what < 3 or not stored:
            size = chance.choice([1, 2, 4, 13])
            slots = chance.choice([rb, other]).extend(rows(*range(first, first + size))).tolist()
            stored |= dict(zip(slots, range(first, first + size), strict=True))
            first += size
        elif what == 3:
            slot = chance.choice([*stored])
            rb[slot] = rows(first)[0]
            stored[slot], first = first, first + 1
        elif what == 4 and kind != "list":
            slot = chance.choice([*stored])
            rb.set_at_("r", torch.tensor([9.0], dtype=torch.float64), [slot])  # the same record
        elif what == 5 and chance.random() < 0.3:
            rb.empty()
            stored = {}
        left = [number for number in stored.values() if times[number] < limit]
        assert len(rb) == rb.stats()["size"] == len(left)
        if not left:
            with pytest.raises(RuntimeError):
                rb.sample(2)
            continue
        batch, info = rb.sample(chance.choice([2, 4, 8]), return_info=True)
        slots = info["index"].tolist()
        numbers = numbers_of(batch)
        assert numbers and numbers == [stored[slot] for slot in slots]
        times.update(numbers)
        assert all(times[number] <= limit for number in numbers), (numbers, times)
    while len(rb):
        times.update(numbers_of(rb.sample(4)))
    assert all(times[number] == limit for number in stored.values())


@each_sampler
def test_batches_are_full_while_enough_is_left_and_then_hold_what_is(sampler):
    rb = consuming(sampler, 1, batch_size=4)
    rb.extend(rows(0, 1, 3, 4, 6, 7))  # two groups of three
    sizes = [len(batch) for batch in rb]
    assert sum(sizes) == 6 and sizes[0] == 4 and len(rb) == 0
    with pytest.raises(Exhausted, match=r"0 of 6 stored records are left.*consume_after_n_samples=1.*Write new"):
        rb.sample()
    assert len(rb.storage) == 6 and numbers_of(rb[:]) == [0, 1, 3, 4, 6, 7]
    rb.extend(rows(9))
    assert numbers_of(rb.next()) == [9] and rb.stats()["utilization"] == 0


def test_uniform_draws_are_of_distinct_records_and_of_all_alike():
    seen = collections.Counter()
    for seed in range(150):
        rb = consuming(limit=2)
        rb.generator.manual_seed(seed)
        rb.extend(rows(*range(6)))
        numbers = numbers_of(rb.sample(4))
        assert len(set(numbers)) == 4
        seen.update(numbers)
    assert all(70 < seen[number] < 130 for number in range(6))  # 100 expected, 6 the deviation


def test_a_group_that_is_spent_is_none_and_one_that_is_short_gives_what_it_has():
    rb = consuming("best of groups", 1)
    rb.extend(rows(0, 3, 6, 9, 1, 4))
    batch, info = rb.sample(4, return_info=True)
    assert sorted(numbers_of(batch)) == [1, 4, 6, 9] and info["num_groups"] == 2
    batch, info = rb.sample(4, return_info=True)
    assert numbers_of(batch) == [3, 0] and info["num_groups"] == 1 and info["index"].tolist() == [1, 0]
    rb.extend(rows(7, 2))
    batch, info = rb.sample(6, return_info=True)
    assert sorted(numbers_of(batch)) == [2, 7] and info["short_group"].all()
    assert rb.stats()["num_groups"] == 0


def test_with_drop_last_the_rest_is_left():
    rb = buffer(sampler=SamplerWithoutReplacement(drop_last=True), consume_after_n_samples=1, batch_size=4)
    rb.extend(rows(*range(6)))
    assert [len(batch) for batch in rb] == [4] and len(rb) == 2
    with pytest.raises(RuntimeError, match="2 of 6 stored records are left, and a batch with drop_last takes 4"):
        rb.sample()


@each_sampler
def test_a_sample_that_fails_has_counted_nothing(sampler):
    rb, broken = consuming(sampler, 2), [True]
    rb.extend(rows(*range(6)))

    def transform(batch):
        if broken[0]:
            raise KeyError("not yet")
        return batch

    rb.append_transform(transform)
    before = rb._consumption.state_dict()
    for _ in range(5):
        with pytest.raises(KeyError, match="not yet"):
            rb.sample(4)
    after = rb._consumption.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in ("slots", "generations", "drawn"))
    broken[0] = False
    times = collections.Counter()
    while len(rb):
        times.update(numbers_of(rb.sample(4)))
    assert set(times.values()) == {2} and len(times) == 6


def test_what_was_overwritten_while_its_sample_failed_is_another_record():
    rb = consuming(limit=1, capacity=2)
    rb.extend(rows(0, 1))

    def transform(batch):
        rb.extend(rows(2))
        raise KeyError("late")

    rb.append_transform(transform)
    with pytest.raises(KeyError):
        rb.sample(2)
    assert len(rb) == 2 and numbers_of(rb.storage[:]) == [2, 1]


@each_sampler
def test_threads_share_what_there_is(sampler):
    rb, seen, errors = consuming(sampler, 2, capacity=200), [], []
    rb.extend(rows(*range(200)))

    def learn():
        try:
            for turn in range(60):
                seen.append(numbers_of(rb.sample(4)))
                if turn % 10 == 0:
                    rb.stats()
        except Exhausted:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=learn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    times = collections.Counter(itertools.chain(*seen))
    while len(rb):
        times.update(numbers_of(rb.sample(50)))
    assert [times[number] for number in range(200)] == [2] * 200


def test_counts_are_kept_and_put_back_whole_or_not_at_all():
    rb = consuming(limit=3, capacity=8)
    rb.extend(rows(*range(8)))
    rb.sample(5)
    rb.sample(5)
    rb[2] = rows(99)[0]
    state, drawn = rb._consumption.state_dict(), collections.Counter()
    assert all(isinstance(state[key], torch.Tensor) for key in ("slots", "generations", "drawn"))
    twin = TensorDictReplayBuffer(storage=rb.storage, consume_after_n_samples=3)
    twin._consumption.load_state_dict(state)
    assert len(twin) == len(rb)
    for buffer_ in (rb, twin):
        while len(buffer_):
            drawn.update(numbers_of(buffer_.sample(3)))
    already = dict(zip(state["slots"].tolist(), state["drawn"].tolist(), strict=True))
    stored = numbers_of(rb.storage[:])
    assert all(drawn[stored[slot]] == 2 * (3 - already.get(slot, 0)) for slot in range(8))
    good = twin._consumption.state_dict()
    for bad in (
        {},
        state | {"slots": state["slots"] + 8},
        state | {"drawn": state["drawn"][1:]},
        state | {"generations": state["generations"].float()},
    ):
        with pytest.raises(ValueError, match="load: consume_after_n_samples: "):
            twin._consumption.load_state_dict(bad)
    assert all(torch.equal(good[key], twin._consumption.state_dict()[key]) for key in ("slots", "drawn"))


def test_parts_may_be_exchanged_and_counts_go_with_the_storage():
    rb = consuming(limit=1, batch_size=2)
    rb.extend(rows(*range(6)))
    first = numbers_of(rb.sample())
    rb.set_sampler(SamplerWithoutReplacement())
    second = numbers_of(rb.sample())
    rb.set_sampler(RandomSampler())
    assert sorted(first + second + numbers_of(rb.sample())) == [*range(6)]
    previous = rb.set_storage(STORAGES["stack"](5))
    rb.extend(rows(1, 2))
    assert len(rb) == 2 and len(numbers_of(rb.sample(9))) == 2
    rb.set_storage(previous)
    assert len(rb) == 6


def test_an_unbounded_storage_grows_under_its_counts():
    rb = ReplayBuffer(storage=ListStorage(), consume_after_n_samples=1)
    rb.extend(range(1000))
    seen = rb.sample(600).tolist()
    rb.extend(range(1000, 5000))
    assert len(rb) == 4400
    assert sorted(seen + rb.sample(5000).tolist()) == [*range(5000)]


def test_a_sampler_that_does_not_look_gets_what_is_allowed_or_an_error():
    class First(Sampler):
        def sample(self, storage, batch_size, generator=None):
            return torch.arange(batch_size) % len(storage), {"order": torch.arange(batch_size), "all": batch_size}

    rb = consuming(limit=2)
    rb.set_sampler(First())
    rb.extend(rows(*range(4)))
    _, info = rb.sample(3, return_info=True)
    assert (info["index"].tolist(), info["order"].tolist(), info["all"]) == ([0, 1, 2], [0, 1, 2], 3)
    _, info = rb.sample(6, return_info=True)
    assert (info["index"].tolist(), info["order"].tolist(), info["all"]) == ([0, 1, 2, 3], [0, 1, 2, 3], 6)
    with pytest.raises(RuntimeError, match="chose none of the 1 records that are left"):
        rb.sample(3)


@pytest.mark.parametrize("limit, error", [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError)])
def test_the_number_is_checked(limit, error):
    with pytest.raises(error, match="ReplayBuffer: consume_after_n_samples must be a positive int or None"):
        ReplayBuffer(consume_after_n_samples=limit)


def test_an_empty_buffer_says_so_and_a_buffer_that_does_not_ask_counts_nothing():
    rb = consuming()
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample(2)
    plain = buffer()
    assert plain._consumption is None and plain._drawn_from is plain.storage


@pytest.mark.parametrize("stored", [1_000, 20_000])
def test_a_draw_looks_at_its_batch_and_what_was_written(stored, monkeypatch):
    rb = consuming(capacity=stored)
    rb.extend(rows(*range(stored)))
    rb.sample(8)
    settled, settle = [], rb._consumption._settle
    monkeypatch.setattr(rb._consumption, "_settle", lambda slots: (settled.append(len(slots)), settle(slots)))
    for _ in range(3):
        rb.extend(rows(1, 2))
        rb.sample(8)
    assert settled == [2, 8] * 3


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_slices_are_of_records_that_are_left_and_say_where_they_were_cut(kind):
    """Used records end a trajectory, as if they had not been written; of slices that overlap, the first has both's."""
    times = collections.Counter()
    sampler = kind(slice_len=3, traj_key="g", strict_length=False)
    rb = TensorDictReplayBuffer(
        storage=STORAGES["packed"](40),
        sampler=sampler,
        consume_after_n_samples=1,
        generator=torch.Generator().manual_seed(0),
    )
    n = torch.arange(40)
    rb.extend(TensorDict({"n": n, "g": n // 8}, [40]))
    while len(rb):
        left = len(rb)
        batch = rb.sample(12)
        times.update(batch["n"].tolist())
        assert 0 < len(batch) == left - len(rb)
        ends = batch["next", "truncated"].view(-1)
        follows = (batch["n"].diff() == 1) & (batch["g"].diff() == 0)
        assert ends[-1] and bool((follows | ends[:-1]).all())  # a step that does not follow is marked
    assert times == collections.Counter(range(40))


def test_a_sequence_is_counted_by_its_anchor():
    rb = TensorDictReplayBuffer(
        storage=STORAGES["packed"](8), sample_unit=Sequence(2, done_key=None), consume_after_n_samples=1, batch_size=4
    )
    rb.extend(rows(*range(8)))
    anchors = [slot for batch in rb for slot in batch["anchor_index"].view(-1, 2)[:, 0].tolist()]
    assert sorted(anchors) == [*range(8)] and len(rb) == 0


def test_a_draw_from_before_a_load_is_not_given_back():
    """What was loaded does not count that draw, so there is nothing to take off."""
    saved = {}

    def fails(batch):
        if saved:
            rb.load_state_dict(saved)
            raise RuntimeError("a transform's own")
        return batch

    rb = buffer(consume_after_n_samples=2, transform=fails, batch_size=4)
    rb.extend(rows(*range(4)))
    rb.sample()
    state = rb.state_dict()
    saved.update(state)
    with pytest.raises(RuntimeError, match="own"):
        rb.sample()
    saved.clear()
    assert rb.state_dict()["buffer"]["consumption"]["drawn"].tolist() == [1] * 4
    assert [len(batch) for batch in rb] == [4]


def test_records_go_with_the_buffer_that_counted_them():
    gc.disable()
    try:
        rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, consume_after_n_samples=1)
        rb.extend(torch.arange(4))
        rb.sample()
        storage = weakref.ref(rb.storage)
        del rb
        assert storage() is None
    finally:
        gc.enable()


RESTS = {  # what is left when no batch can be made of it: slices of two are drawn from four records, and so on
    "slices": (lambda: SliceSampler(slice_len=2, traj_key="g"), 2),
    "slices in passes": (lambda: SliceSamplerWithoutReplacement(slice_len=2, traj_key="g"), 2),
    "full batches of slices in passes": (
        lambda: SliceSamplerWithoutReplacement(slice_len=2, traj_key="g", drop_last=True),
        4,
    ),
    "whole groups": (lambda: PromptGroupSampler(samples_per_group=2, group_key="g", incomplete="skip"), 2),
    "none of priority 0": (lambda: PrioritizedSampler(1000, alpha=1.0, beta=1.0, eps=0.0), 4),
}


@pytest.mark.parametrize("rest", RESTS)
def test_iterating_ends_where_no_batch_can_be_made_of_what_is_left(rest):
    make, batch_size = RESTS[rest]
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), sampler=make(), batch_size=batch_size, consume_after_n_samples=1
    )
    rb.extend(TensorDict({"n": torch.arange(15), "g": torch.arange(15) // 3}, [15]))
    if rest == "none of priority 0":
        rb.update_priority(torch.arange(9), torch.zeros(9))
    seen = [number for batch in rb for number in numbers_of(batch)]
    assert seen and len(seen) == len(set(seen)) and len(rb) == 15 - len(seen) > 0
    with pytest.raises(Exhausted, match=rf"sample: {len(rb)} of 15 stored records are left, .*Sampler\w*: "):
        rb.sample()
    rb.extend(TensorDict({"n": torch.arange(15, 39), "g": 9 + torch.arange(24) // 3}, [24]))
    if rest == "none of priority 0":  # new ones have the greatest priority of those that are left
        rb.update_priority(torch.arange(39), torch.ones(39))
    assert len(rb.sample())


def test_a_sampler_that_never_could_make_a_batch_says_so_and_iterating_does_not_hide_it():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=9, traj_key="g"), batch_size=9,
        consume_after_n_samples=1,
    )  # fmt: skip
    rb.extend(rows(0, 1, 2))
    with pytest.raises(RuntimeError, match="no trajectory has the 9 records") as raised:
        list(rb)
    assert not isinstance(raised.value, Exhausted)
