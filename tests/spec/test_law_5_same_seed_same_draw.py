"""Law 5: the same seed number and history give the same indices, on every backend, with any number of threads.

The groups chosen do not depend on the order in which rows arrived.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

import torchrb
from tests.spec.builders import STORAGES, STRATEGIES, TENSOR_STORAGES, buffer_of, group_sampler, grouped_buffer
from tests.spec.draw_table import PINNED, draw_table
from tests.spec.histories import History
from torchrb import (
    LazyTensorStorage,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)

ROOT = Path(__file__).resolve().parents[2]
NATIVE = torchrb.backend_of("cpu") == "native"
OTHER_BACKEND = {"native": "reference", "reference": "native"}[torchrb.backend_of("cpu")]


@pytest.fixture
def threads() -> Iterator[None]:
    num = torch.get_num_threads()
    yield
    torch.set_num_threads(num)


# --- backends and threads -------------------------------------------------------------------------------------------


def differences(table: dict[str, list[int]], expected: dict[str, list[int]]) -> dict[str, tuple]:
    return {name: (table.get(name), index) for name, index in expected.items() if table.get(name) != index}


def test_draws_are_the_pinned_ones():
    """Both backends, and every version, must give this table. It is printed anew by ``tests.spec.draw_table``."""
    pinned = json.loads(PINNED.read_text())
    table = draw_table()
    assert not differences(table, pinned) and table.keys() == pinned.keys()


@pytest.mark.skipif(
    OTHER_BACKEND == "native" and not list((ROOT / "torchrb").glob("_native*.so")), reason="no native library is built"
)
def test_another_process_with_another_backend_draws_the_same():
    env = os.environ | {"TORCHRB_BACKEND": OTHER_BACKEND, "PYTHONHASHSEED": "17", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spec.draw_table"], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not differences(json.loads(done.stdout), draw_table())


@pytest.mark.parametrize("num_threads", [1, 2, 8])
def test_the_number_of_threads_decides_nothing(threads, num_threads):
    torch.set_num_threads(num_threads)
    pinned = json.loads(PINNED.read_text())
    assert not differences(draw_table(), pinned)


def _large_calls(strategy: str) -> list[torch.Tensor]:
    """Writes, draws, reads, updates, subsets and advantages of so many rows that a kernel shares them among threads."""
    num, groups, per_group = (60_000, 4000, 9) if NATIVE else (2000, 60, 9)
    rb = grouped_buffer(
        torch.arange(num) * 7919 % (num // 12), (torch.arange(num) * 31 % 997).double() / 7,
        strategy=strategy, k=per_group, wide=torch.arange(num)[:, None].expand(num, 20),
    )  # fmt: skip
    batch, info = rb.sample(groups * per_group, return_info=True)
    slots, generations = info["index"].repeat(2), info["index_generation"].repeat(2)
    wide = torch.arange(len(slots))[:, None].expand(-1, 20).contiguous()
    result = rb.update_if_present(index=slots, generation=generations, patch={"wide": wide})
    rb[slots[: len(slots) // 2]] = batch.exclude("index", "index_generation")
    again = rb.sample(groups * per_group)
    returns = batch["r"].view(groups, per_group)[:300]
    subsets = torch.ops.torchrb.balanced_subset(returns, 4, 20.0, 120.0, 1000, 1e-9)
    advantages = torch.ops.torchrb.group_advantage(batch["r"].view(groups, per_group).repeat(1, 8), 0, 1e-6)
    everything = [info["index"], info["group_size"], result.updated, result.superseded, *subsets, advantages]
    return everything + [source[key] for source in (batch, again, rb[:]) for key in ("id", "wide", "index")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_that_share_rows_change_no_bit(threads, strategy):
    told = []
    for num_threads in (1, 2, 8):
        torch.set_num_threads(num_threads)
        told.append(_large_calls(strategy))
    for other in told[1:]:
        for mine, its in zip(told[0], other, strict=True):
            assert mine.dtype == its.dtype and torch.equal(mine, its)


# --- seeds ----------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=1, traj_key="g"),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=1, traj_key="g"),
    **{strategy: lambda strategy=strategy: group_sampler(strategy, num_groups=2) for strategy in STRATEGIES},
}


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [(kind, sampler) for kind in STORAGES for sampler in SAMPLERS if kind != "list" or sampler not in STRATEGIES],
)
def test_a_draw_takes_one_number_from_the_buffers_generator(kind, sampler):
    rb = buffer_of(kind, 9, numbers=range(9), sampler=SAMPLERS[sampler](), seed=4)
    alone = torch.Generator().manual_seed(4)
    before = torch.get_rng_state()
    for _ in range(3):
        rb.sample(4)
        torch.empty(1, dtype=torch.int64).random_(generator=alone)
        assert torch.equal(rb.generator.get_state(), alone.get_state())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_draws_the_same_and_another_one_differs(sampler):
    def draws(seed: int, own: bool) -> list[list[int]]:
        rb = buffer_of("packed", 60, numbers=range(60), sampler=SAMPLERS[sampler](), seed=seed)
        if not own:
            rb.generator = None
            torch.manual_seed(seed)
        return [rb.sample(12, return_info=True)[1]["index"].tolist() for _ in range(4)]

    assert draws(1, own=True) == draws(1, own=True) == draws(1, own=False)
    assert draws(1, own=True) != draws(2, own=True)
    if sampler in ("uniform", "without replacement", "slices", "slices without replacement", "random"):
        first, *later = draws(1, own=True)
        assert first not in later


def test_buffers_take_numbers_from_a_shared_generator_in_order():
    generator = torch.Generator().manual_seed(8)
    first, second = (buffer_of("packed", 50, numbers=range(50)) for _ in range(2))
    first.generator = second.generator = generator
    mixed = [rb.sample(5)["n"].tolist() for rb in (first, second, second, first)]
    first.generator = torch.Generator().manual_seed(8)
    assert mixed == [first.sample(5)["n"].tolist() for _ in range(4)]


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_where_the_batch_size_was_said_decides_nothing(batch_size):
    rb = buffer_of("packed", 20, numbers=range(20), batch_size=batch_size, seed=2)
    drawn = [rb.sample()["n"].tolist(), next(iter(rb))["n"].tolist(), rb.next()["n"].tolist()]
    rb.generator.manual_seed(2)
    assert drawn == [rb.sample(batch_size)["n"].tolist() for _ in range(3)]


# --- histories ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_equal_histories_draw_alike_on_every_tensor_storage(seed, strategy):
    drawn = []
    for kind in TENSOR_STORAGES:
        history = History(kind, capacity=8, seed=seed).run(15)
        history.step("extend")
        history.rb.set_sampler(group_sampler(strategy, samples_per_group=2))
        history.rb.generator.manual_seed(seed)
        drawn.append([history.rb.sample(6, return_info=True)[1]["index"].tolist() for _ in range(2)])
    assert drawn[0] == drawn[1] == drawn[2]


def test_when_a_sampler_was_asked_before_decides_nothing():
    rows = TensorDict({"g": torch.arange(40) % 7, "r": torch.arange(40.0)}, [40])
    drawn = []
    for pauses in ([40], [1] * 40, [13, 27]):
        rb = ReplayBuffer(storage=LazyTensorStorage(32), generator=torch.Generator(),
                          sampler=PromptGroupSampler(num_groups=3, group_key="g"))  # fmt: skip
        for part in rows.split(pauses):
            rb.extend(part)
            if len(rb) > 20:
                rb.sample(3)
        rb.generator.manual_seed(6)
        drawn.append(rb.sample(9, return_info=True)[1]["index"].tolist())
    assert drawn[0] == drawn[1] == drawn[2]


# --- groups and the order of arrival --------------------------------------------------------------------------------

KEYS = {
    "int64": lambda g: torch.tensor(g) * 2**40 - 3,
    "int16": lambda g: torch.tensor(g, dtype=torch.int16),
    "float64": lambda g: torch.tensor(g, dtype=torch.float64) / 7,
    "rows": lambda g: torch.tensor([[x % 2, x // 2, 5] for x in g]),
    "text": lambda g: [f"prompt {x}" for x in g],
    "text and None": lambda g: [None if x == 3 else f"é{x}" for x in g],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("key", KEYS)
def test_the_groups_chosen_do_not_depend_on_arrival(key, strategy):
    """Same records, any order, any way into the storage, any other group that is gone by now: the same groups."""
    group = [i % 6 for i in range(24)]
    rng = random.Random(1)
    chosen = []
    for trial in range(5):
        order = list(range(24))
        rng.shuffle(order)
        shuffled = [group[i] for i in order]
        rb = grouped_buffer(
            KEYS[key](shuffled),
            torch.tensor(order) / 4,
            strategy=strategy,
            k=2,
            capacity=24,
            number=torch.tensor(order),
        )
        if trial > 2:  # the same rows once more, after others that they overwrite
            once_more = rb[:].exclude("index")
            rb.empty()
            for part in once_more.split([5, 19]):
                rb.extend(TensorDict({**part, "g": KEYS[key]([70 + trial] * len(part))}, [len(part)]))
            rb.sample(2)
            rb[torch.tensor(order)] = once_more
        rb.generator.manual_seed(5)
        numbers = [rb.sample(6)["number"].view(3, 2).tolist() for _ in range(4)]
        chosen.append([[group[first] for first, _ in batch] for batch in numbers])
        if strategy in ("reward", "variance"):
            assert all(number >= 12 or strategy == "variance" for batch in numbers for pair in batch for number in pair)
    assert chosen == [chosen[0]] * 5
    assert len({tuple(batch) for batch in chosen[0]}) > 1


def test_the_groups_chosen_do_not_depend_on_the_strategy_or_its_rewards():
    group, drawn = torch.arange(30) % 9, []
    for strategy in STRATEGIES:
        rb = grouped_buffer(group, torch.rand(30), strategy=strategy, k=2, seed=3)
        drawn.append(rb.sample(8)["g"].view(4, 2)[:, 0].tolist())
    assert drawn == [drawn[0]] * 4


# --- records that are used up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement, lambda: group_sampler(num_groups=2)])
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_looking_at_what_is_left_decides_nothing(sampler):
    """What may be drawn is looked up when somebody asks; when that is, no draw can tell."""
    drawn = []
    for watched in (False, True):
        history, chance, indices = History("packed", capacity=20, seed=11), random.Random(0), []
        rb = ReplayBuffer(
            storage=history.rb.storage,
            sampler=sampler(),
            consume_after_n_samples=2,
            generator=torch.Generator().manual_seed(1),
        )
        for _ in range(60):
            history.step()
            look, draw = chance.random() < 0.7, chance.random() < 0.5
            if watched and look:
                assert len(rb) == rb.stats()["size"]
            if draw:
                indices.append(_index_of(rb))
        drawn.append(indices)
    assert drawn[0] == drawn[1] and any(drawn[0])


def _index_of(rb: ReplayBuffer) -> list[int]:
    try:
        return rb.sample(4, return_info=True)[1]["index"].tolist()
    except RuntimeError:  # nothing is left
        return []
