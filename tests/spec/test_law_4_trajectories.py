"""Law 4 for trajectories: slices, sequences and queries are of the storage as it is now, whichever way it was written.

The records are steps of actors: ``episode`` names the trajectory, ``("next", "done")`` ends it, each tells another
story here, so that both kinds of boundaries are tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ReplayBuffer,
    Sampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

CAPACITY = 11
STORAGES = {
    "packed": lambda: LazyTensorStorage(CAPACITY),
    "columns": lambda: LazyTensorStorage(CAPACITY, layout="columns"),
    "stack": lambda: LazyStackStorage(CAPACITY),
}
KEYS: dict[str, dict[str, Any]] = {"ids": {"traj_key": "episode"}, "ends": {"end_key": ("next", "done")}}


def steps(rng: random.Random, num: int) -> TensorDict:
    ids = torch.tensor([rng.randrange(2) for _ in range(num)])
    done = torch.tensor([[rng.random() < 0.3] for _ in range(num)])
    return TensorDict({"episode": ids, "next": {"done": done}, "obs": torch.arange(num)}, [num])


def filled(kind: str, rng: random.Random) -> TensorDictReplayBuffer:
    rb = TensorDictReplayBuffer(storage=STORAGES[kind](), writer=TensorDictRoundRobinWriter(track_generations=True))
    rb.extend(steps(rng, CAPACITY - 2))
    return rb


def walked(rb: TensorDictReplayBuffer, by: str) -> list[list[int]]:
    """The slots of each trajectory, by a walk over all records in time order."""
    ids, done = rb[:]["episode"].tolist(), rb[:]["next", "done"].view(-1).tolist()
    num, first = len(rb), rb.storage.cursor if len(rb) == CAPACITY else 0
    runs: list[list[int]] = []
    for t in range(num):
        slot, before = (first + t) % num, (first + t - 1) % num
        if t and not (ids[slot] != ids[before] if by == "ids" else done[before]):
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def draw(rb: TensorDictReplayBuffer, sampler: Sampler, num: int, seed: int) -> list[int]:
    return sampler.sample(rb.storage, num, torch.Generator().manual_seed(seed))[0].tolist()


Way = Callable[[TensorDictReplayBuffer, random.Random], Any]


def _values(rng: random.Random, num: int) -> dict[Any, torch.Tensor]:
    new = steps(rng, num)
    return {"episode": new["episode"], ("next", "done"): new["next", "done"]}


def _set_every(rb, rng):
    for key, value in _values(rng, len(rb)).items():
        rb.set_(key, value)


def _set_at(rb, rng):
    for key, value in _values(rng, 3).items():
        rb.set_at_(key, value, torch.tensor(rng.sample(range(len(rb)), 3)))


def _patch(rb, rng):
    index = torch.tensor(rng.sample(range(len(rb)), 3))
    rb.update_if_present(index=index, generation=rb.writer.generations_of(index), patch=_values(rng, 3))


def _load(rb, rng):
    other = filled("packed" if isinstance(rb.storage, LazyTensorStorage) else "stack", rng)
    rb.storage.load_state_dict(other.storage.state_dict())


WAYS: dict[str, Way] = {
    "add": lambda rb, rng: rb.add(steps(rng, 1)[0]),
    "extend": lambda rb, rng: rb.extend(steps(rng, rng.randrange(1, 6))),
    "extend round the ring": lambda rb, rng: rb.extend(steps(rng, 2 * CAPACITY + 3)),
    "rb[i] =": lambda rb, rng: rb.__setitem__(rng.randrange(len(rb)), steps(rng, 1)[0]),
    "rb[...] =": lambda rb, rng: rb.__setitem__(torch.tensor([4, 1]), steps(rng, 2)),
    "write_all": lambda rb, rng: rb.write_all(steps(rng, 5)),
    "write_at": lambda rb, rng: rb.writer.write_at(torch.tensor([7, 2]), steps(rng, 2)),
    "set_": _set_every,
    "set_at_": _set_at,
    "update_": lambda rb, rng: rb.update_(TensorDict(_values(rng, len(rb)), [len(rb)])),
    "update_if_present": _patch,
    "write_fields": lambda rb, rng: rb.storage.write_fields(torch.tensor([0, 5, 6]), _values(rng, 3)),
    "another buffer": lambda rb, rng: ReplayBuffer(storage=rb.storage).extend(steps(rng, 2)),
    "empty": lambda rb, rng: (rb.empty(), rb.extend(steps(rng, 8))),
    "load": _load,
}


@pytest.mark.parametrize("by", KEYS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STORAGES)
def test_slices_and_queries_are_of_what_is_stored_now(kind, way, by):
    if kind == "stack" and way in ("update_if_present",):
        return  # of storages of tensors
    rng = random.Random(f"{way} {by}")
    rb = filled(kind, rng)
    used = SliceSampler(slice_len=2, strict_length=False, **KEYS[by])
    query = {"trajectory_key": "episode"} if by == "ids" else {}
    for turn in range(3):
        draw(rb, used, 2, turn)  # it has an index now
        WAYS[way](rb, rng)
        new = SliceSampler(slice_len=2, strict_length=False, **KEYS[by])
        assert draw(rb, used, 40, turn) == draw(rb, new, 40, turn)
        runs = walked(rb, by)
        if by == "ids":
            assert [t.index.tolist() for t in rb.query(**query)] == runs
        passes = SliceSamplerWithoutReplacement(num_slices=len(runs), strict_length=False, shuffle=False, **KEYS[by])
        assert draw(rb, passes, CAPACITY * len(runs), turn) == [slot for run in runs for slot in run]


@pytest.mark.parametrize("way", WAYS)
def test_sequences_are_of_what_is_stored_now(way):
    rng = random.Random(way)
    rb, used = filled("packed", rng), Sequence(4, "stop")
    for _ in range(3):
        with rb.storage.lock:
            used.expand(torch.tensor([0]), {}, rb.storage)
        WAYS[way](rb, rng)
        anchors = torch.arange(len(rb))
        slots, told = used.expand(anchors, {}, rb.storage)
        slots, valid = slots.view(-1, 4).tolist(), told["validity_mask"].view(-1, 4).tolist()
        for run in walked(rb, "ends"):
            for anchor in run:
                part = [slot for slot, real in zip(slots[anchor], valid[anchor], strict=True) if real]
                start = min(run.index(anchor), max(0, len(run) - 4))
                assert part == run[start : start + 4]


def test_a_pass_draws_each_trajectory_as_it_is_now():
    """Trajectories that are gone are left out, those that grow are whole, and new ones wait."""
    rng = random.Random(3)
    for kind in STORAGES:
        rb = filled(kind, rng)
        sampler = SliceSamplerWithoutReplacement(num_slices=1, strict_length=False, end_key=("next", "done"))
        rb.set_sampler(sampler)
        for way in (*WAYS, *WAYS):
            if kind == "stack" and way == "update_if_present":
                continue
            WAYS[way](rb, rng)
            assert rb.sample(CAPACITY)["index"].tolist() in walked(rb, "ends")
