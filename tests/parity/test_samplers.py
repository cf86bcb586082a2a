"""Batches have the same shape and obey the same rules as torchrl's; which groups are drawn is no contract."""

from __future__ import annotations

import collections
import inspect
import itertools
import math
import random
import warnings

import pytest
import torch
from tensordict import TensorDict

from tests.oracle import Row, assert_group, spread
from tests.parity.peer import OURS, PEER, both, outcome

STRATEGIES = ("random", "recency", "reward", "variance")
STORAGES = ("LazyTensorStorage", "LazyStackStorage")
each_library = pytest.mark.parametrize("lib", [PEER, OURS], ids=["torchrl", "torchrb"])


def grouped(lib, groups, rewards, strategy, storage="LazyTensorStorage", capacity=None, **counts):
    sampler = lib.PromptGroupSampler(group_key="g", reward_key="r", strategy=strategy, **(counts or {"num_groups": 1}))
    rb = lib.TensorDictReplayBuffer(
        storage=getattr(lib, storage)(capacity or len(groups)),
        sampler=sampler,
        writer=lib.TensorDictRoundRobinWriter(track_generations=True),
    )
    extend(rb, groups, rewards)
    return rb


def extend(rb, groups, rewards):
    fields = {"g": groups if isinstance(groups[0], str) else torch.as_tensor(groups), "r": torch.as_tensor(rewards)}
    rb.extend(TensorDict(fields, [len(groups)]))


def drawn_by_group(rb, size):
    """Slots drawn of each group."""
    batch = rb.sample(size)
    found = collections.defaultdict(list)
    for place, slot in enumerate(batch["index"].tolist()):
        group = batch[place]["g"]
        found[group if isinstance(group, str) else group.item()].append(slot)
    return dict(found)


def rollouts(seed, num_groups=4, size=5):
    """Groups of `size` in random order, with rewards exact in float32."""
    rng = random.Random(seed)
    groups = [group for group in range(num_groups) for _ in range(size)]
    rng.shuffle(groups)
    return groups, [rng.randrange(-8, 9) / 4 for _ in groups]


# --- the same


@each_library
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_every_batch_is_balanced_and_obeys_its_strategy(lib, storage, strategy, seed):
    groups, rewards = rollouts(seed)
    for counts, k in (({"num_groups": 3}, 2), ({"samples_per_group": 4}, 4), ({"num_groups": 4}, 5)):
        rb = grouped(lib, groups, rewards, strategy, storage, **counts)
        num_groups = counts.get("num_groups", 2)
        found = drawn_by_group(rb, num_groups * k)
        assert len(found) == num_groups and all(len(drawn) == k for drawn in found.values())
        for group, drawn in found.items():
            members = [Row(i, i, rewards[i]) for i, g in enumerate(groups) if g == group]
            # The order inside a group is this library's own contract; of equal rewards torchrl may take another row.
            if lib is OURS:
                assert_group(strategy, members, drawn)
            chosen = [member for member in members if member.slot in drawn]
            assert len(chosen) == k
            if strategy == "recency":
                assert sorted(drawn) == [member.slot for member in members][-k:]
            elif strategy == "variance":
                assert spread(chosen) == max(spread(subset) for subset in itertools.combinations(members, k))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("strategy", ["reward", "recency", "variance"])
@pytest.mark.parametrize("seed", range(8))
def test_each_group_gives_the_same_rewards(storage, strategy, seed):
    """All groups are asked for, so what is drawn is decided by the strategy alone; also after the ring turned over."""
    groups, rewards = rollouts(seed)

    def history(lib):
        rb, told = grouped(lib, groups, rewards, strategy, storage, num_groups=4), []
        for turn in range(3):
            for k in (1, 2, 3):
                found = drawn_by_group(rb, 4 * k)
                values = rb[:]["r"]
                told.append({group: sorted(values[slot].item() for slot in drawn) for group, drawn in found.items()})
            more, scores = rollouts(100 * turn + seed)
            extend(rb, more[:7], scores[:7])
        return told

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32, torch.float64])
def test_rewards_of_any_dtype(dtype):
    def history(lib):
        rewards = torch.tensor([3, 0, 1, 2, 1]).to(dtype)
        return sorted(grouped(lib, [0] * 5, rewards, "reward").sample(3)["r"].tolist())

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize(
    "groups", [["a", "b", "a", "b"], [[0, 1], [1, 0], [0, 1], [1, 0]], [[3], [4], [3], [4]], [True, False, True, False]]
)
def test_group_keys_of_any_kind(groups):
    def history(lib):
        batch = grouped(lib, groups, [0.0, 1.0, 2.0, 3.0], "reward", num_groups=2).sample(4)["r"]
        return sorted(map(sorted, batch.view(2, 2).tolist()))

    assert both(history) == ([[0.0, 2.0], [1.0, 3.0]], [[0.0, 2.0], [1.0, 3.0]])


def test_a_short_group_is_used_whole_and_completed_with_a_warning():
    def history(lib):
        rb = grouped(lib, [0, 0, 1, 1, 1, 1], [0.0, 1, 2, 3, 4, 5], "random", num_groups=2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = drawn_by_group(rb, 8)
        return (
            {group: sorted(set(drawn)) for group, drawn in found.items()},
            [len(drawn) for drawn in found.values()],
            len(said),
        )

    theirs, ours = both(history)
    assert ours == theirs == ({0: [0, 1], 1: [2, 3, 4, 5]}, [4, 4], 1)


@pytest.mark.parametrize("storage", [*STORAGES, "ListStorage"])
def test_random_draws_are_of_what_is_stored(storage):
    def history(lib):
        rb = lib.ReplayBuffer(storage=getattr(lib, storage)(8), collate_fn=lambda records: records)
        rb.extend([TensorDict({"n": torch.tensor(n)}) for n in range(11)])
        drawn, info = rb.sample(200, return_info=True)
        values = [int(record["n"]) for record in drawn] if isinstance(drawn, list) else drawn["n"].tolist()
        return sorted(set(values)), sorted(set(torch.as_tensor(info["index"]).tolist()))

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize(
    "make",
    [
        lambda lib: lib.PromptGroupSampler(),
        lambda lib: lib.PromptGroupSampler(num_groups=1, samples_per_group=2),
        lambda lib: lib.PromptGroupSampler(num_groups=1, strategy="best"),
        lambda lib: grouped(lib, [0, 0, 0], [0.0, 1, 2], "random", num_groups=2).sample(3),
        lambda lib: grouped(lib, [0, 0, 0], [0.0, 1, 2], "random", storage="ListStorage").sample(3),
        lambda lib: lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(3), sampler=lib.PromptGroupSampler(num_groups=1)
        ).sample(2),
        lambda lib: lib.ReplayBuffer(storage=lib.ListStorage(3)).sample(2),
    ],
)
def test_the_same_calls_are_refused_with_the_same_exception(make):
    theirs, ours = both(lambda lib: outcome(lambda: make(lib)))
    assert isinstance(ours, type) and issubclass(ours, Exception)
    assert ours is theirs


def without_replacement(lib, stored, batch_size=4, **options):
    rb = lib.ReplayBuffer(
        storage=lib.LazyTensorStorage(20), sampler=lib.SamplerWithoutReplacement(**options), batch_size=batch_size
    )
    rb.extend(torch.arange(stored))
    return rb


def test_without_replacement_the_options_are_the_same():
    def history(lib):
        parameters = inspect.signature(lib.SamplerWithoutReplacement.__init__).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("stored", [4, 7, 10, 12])
def test_without_replacement_passes_have_the_same_batches(stored, drop_last, shuffle):
    def history(lib):
        rb, told, seen = without_replacement(lib, stored, drop_last=drop_last, shuffle=shuffle), [], []
        for _ in range(9):
            batch = rb.sample().tolist()
            seen += batch
            told.append((len(batch) if shuffle else batch, bool(rb.sampler.ran_out)))
            if rb.sampler.ran_out:
                told.append((len(set(seen)), len(seen)))
                seen = []
        return told

    theirs, ours = both(history)
    assert ours == theirs


def test_without_replacement_the_same_draws_are_refused_or_small():
    def history(lib):
        rb = without_replacement(lib, 3, batch_size=None)
        told = [sorted(rb.sample(5).tolist()), outcome(lambda: without_replacement(lib, 3, drop_last=True).sample())]
        rb.empty()
        told.append(outcome(lambda: rb.sample(1)))
        rb.extend(torch.arange(2))
        return [*told, sorted(rb.sample(5).tolist())]

    theirs, ours = both(history)
    assert ours == theirs == [[0, 1, 2], ValueError, RuntimeError, [0, 1]]


# --- different on purpose


def test_without_replacement_a_pass_ends_while_the_storage_grows():
    """In torchrl each record that is added begins the pass anew: some are drawn again, before others were at all."""

    def history(lib):
        rb, seen = without_replacement(lib, 12, shuffle=False), []
        for _ in range(3):
            seen += rb.sample().tolist()
            rb.extend(torch.tensor([99]))
        return seen

    assert both(history) == ([0, 1, 2, 3] * 3, list(range(12)))


def test_law_6_nan_never_beats_a_number():
    def history(lib):
        return grouped(lib, [0] * 4, [1.0, 2.0, math.nan, 3.0], "reward").sample(2)["r"].isnan().sum().item()

    assert both(history) == (1, 0)


def test_law_6_an_infinite_reward_is_no_variance():
    def history(lib):
        return sorted(grouped(lib, [0] * 4, [1.0, math.inf, -math.inf, 2.0], "variance").sample(2)["r"].tolist())

    theirs, ours = both(history)
    assert ours == [1.0, 2.0] and not all(map(math.isfinite, theirs))


@pytest.mark.parametrize(("dtype", "base"), [(torch.float64, 1e9), (torch.int64, 2**60)])
def test_law_6_rewards_are_ranked_in_their_own_type(dtype, base):
    """torchrl ranks a float32 copy, in which all of these are equal."""
    rewards = torch.tensor([3, 0, 1, 2], dtype=dtype) + torch.tensor(base, dtype=dtype)

    def history(lib):
        return [
            sorted((grouped(lib, [0] * 4, rewards, strategy).sample(2)["r"] - rewards[1]).tolist())
            for strategy in ("reward", "variance")
        ]

    theirs, ours = both(history)
    assert ours == [[2, 3], [0, 3]]
    assert theirs != ours


WRITES = {
    "update_if_present": lambda rb: rb.update_if_present(
        index=torch.tensor([0]), generation=torch.tensor([0]), patch={"g": torch.tensor([9])}
    ),
    "set_at_": lambda rb: rb.set_at_("g", torch.tensor([9]), torch.tensor([0])),
    "set_": lambda rb: rb.set_("g", torch.tensor([9, 0, 1, 1])),
    "update_": lambda rb: rb.update_({"g": torch.tensor([9, 0, 1, 1])}),
    "rb[i] =": lambda rb: rb.__setitem__(0, rb[0].set("g", torch.tensor(9))),
    "write_all": lambda rb: rb.write_all(rb[:].set("g", torch.tensor([9, 0, 1, 1]))),
}


@pytest.mark.parametrize("write", WRITES)
def test_law_4_every_write_is_seen_by_the_next_draw(write):
    """torchrl's group cache learns of added items only."""

    def history(lib):
        rb = grouped(lib, [0, 0, 1, 1], [0.0, 1.0, 2.0, 3.0], "reward", num_groups=2)
        rb.sample(2)
        WRITES[write](rb)
        rb.set_sampler(rb.sampler)
        return 9 in {int(rb.sample(2)["g"][place]) for _ in range(40) for place in range(2)}

    assert both(history) == (False, True)


def test_law_10_a_nan_group_key_is_an_error():
    def history(lib):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short groups: in torchrl each NaN is a group of its own
            return outcome(lambda: len(grouped(lib, [0.0, math.nan, math.nan], [0.0, 1.0, 2.0], "random").sample(2)))

    assert both(history) == (2, ValueError)
