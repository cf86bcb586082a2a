"""What is measured on a GPU. Every row moves on with each call: other slots, other batches, so that rows are cold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torchrb
from benchmarks.buffers import available, torchrl_data
from benchmarks.gpu.measuring import Case, Goal, Result, Row, captured
from benchmarks.paths.group_draws import STRATEGIES, check_groups
from benchmarks.paths.updates import PATCHES
from benchmarks.workloads import GROUP_DRAW, GROUP_SIZE, GROUPS, W1, W2, W3, Workload
from torchrb import ops
from torchrb.ops import reference
from torchrb.ops.schemas import STRATEGIES as STRATEGY_NAMES

_STREAM = 16  # different inputs that a contender goes round


@dataclass(frozen=True)
class Sizes:
    w1: int = 50_000
    w2: int = 1_000_000
    w3: int = 100_000
    batches: tuple[int, ...] = (4096, 16384)
    update: int = 65_536
    selects: tuple[tuple[int, int, int], ...] = ((64, 8, 4), (1024, 64, 8), (64, 65_536, 32))
    sample: int = 256


FULL = Sizes()
TINY = Sizes(
    w1=256, w2=1024, w3=256, batches=(64,), update=128, selects=((4, 8, 4), (6, 64, 8), (2, 300, 32)), sample=32
)  # fmt: skip


def filled(workload: Workload, rows: int, device: torch.device, sampler: Any = None) -> torchrb.ReplayBuffer:
    """A full buffer on the device."""
    buffer = torchrb.TensorDictReplayBuffer(
        storage=torchrb.LazyTensorStorage(rows, device=device),
        sampler=sampler or torchrb.RandomSampler(),
        writer=torchrb.TensorDictRoundRobinWriter(track_generations=True),
    )
    for chunk in workload.chunks(rows):
        buffer.extend(chunk.to(device))
    return buffer


def group_sampler(package: Any, strategy: str) -> Any:
    return package.PromptGroupSampler(num_groups=GROUPS, group_key="prompt", reward_key="reward", strategy=strategy)


def turning(inputs: list[Any]) -> Callable[[], Any]:
    """One input after the other, round and round."""
    return itertools.cycle(inputs).__next__


def slots_of(rows: int, count: int, device: torch.device) -> list[Tensor]:
    """Different slots of random rows."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randperm(rows, generator=generator)[:count].to(device) for _ in range(_STREAM)]


# --- rows in and out ------------------------------------------------------------------------------------------------


def _plain_copies(nbytes: int, device: torch.device) -> Callable[[], Any]:
    """As many bytes, from piece to piece of a memory too large for a cache."""
    table = torch.arange(_STREAM * nbytes // 8 + 1, device=device).view(torch.uint8)
    pieces = turning([table[i * nbytes // 16 * 16 :][:nbytes] for i in range(_STREAM)])
    return lambda: torch.empty_like(table[:nbytes]).copy_(pieces())


def reading(sizes: Sizes, count: int, device: torch.device) -> Case:
    buffer = filled(W1, sizes.w1, device)
    records, slots = buffer.storage._records, slots_of(sizes.w1, count, device)
    leaves = {key: value.contiguous() for key, value in W1.batch(0, sizes.w1).to(device).items()}
    following, theirs = turning(slots), turning(slots)

    def call() -> Any:
        return ops.read_rows(records.tables, records.layout, records.templates, following())

    def check() -> None:
        values, generations = call()
        batch = dict(zip(leaves, (value.cpu() for value in values), strict=True))
        if not torch.equal(W1.check(batch), slots[0].cpu()) or bool(generations.any()):
            raise AssertionError("rows do not belong to their slots")

    def gather() -> Any:
        places = theirs()
        return [torch.index_select(leaf, 0, places) for leaf in leaves.values()]

    moved = 2 * count * W1.row_bytes
    others = {"plain copy": _plain_copies(count * W1.row_bytes, device), "index_select of each leaf": gather}
    return Case(call, check, others, moved, graphed=True)


def writing(sizes: Sizes, count: int, device: torch.device, append: bool) -> Case:
    buffer = filled(W1, sizes.w1, device)
    storage = buffer.storage
    records, slots = storage._records, slots_of(sizes.w1, count, device)
    batches = [list(W1.batch(n * count, count).to(device).values()) for n in range(4)]
    following, batch = turning(slots), turning(batches)

    def call() -> Any:
        arguments = records.tables, storage.control, storage.journal, records.layout
        if append:
            return ops.append_rows_(*arguments, batch(), count)
        return ops.write_rows_(*arguments, following(), batch(), True)

    def check() -> None:
        generation = call()
        places = generation[0] if append else slots[0]
        if not torch.equal(W1.check(buffer[places].exclude("index").cpu()), torch.arange(count)):
            raise AssertionError("rows are not what was written")

    moved = 2 * count * W1.row_bytes
    return Case(call, check, {"plain copy": _plain_copies(count * W1.row_bytes, device)}, moved, graphed=True)


def sampling(sizes: Sizes, device: torch.device) -> Case:
    buffer = filled(W1, sizes.w1, device)

    def call() -> Any:
        return buffer.sample(sizes.sample)

    def check() -> None:
        batch = call().cpu()
        if not torch.equal(W1.check(batch), batch["index"]):
            raise AssertionError("rows do not belong to their index")

    return Case(call, check, moved=2 * sizes.sample * W1.row_bytes, graphed=True)


# --- paths ----------------------------------------------------------------------------------------------------------


def extending_and_drawing(sizes: Sizes, strategy: str, device: torch.device, replayed: bool) -> Case:
    buffer = filled(W2, sizes.w2, device, group_sampler(torchrb, strategy))
    batches = [W2.batch(sizes.w2 + n * GROUP_DRAW, GROUP_DRAW).to(device) for n in range(_STREAM)]
    written = 0

    def step(batch: Any) -> Any:
        buffer.extend(batch)
        return buffer.sample(GROUP_DRAW)

    following = turning(batches)

    def call() -> Any:
        nonlocal written
        written += 1
        return step(following())

    def check() -> None:
        batch = call().cpu()
        check_groups(W2, batch, range(written * GROUP_DRAW, sizes.w2 + written * GROUP_DRAW))

    if not replayed:
        peers = available({"torchrl": lambda: _torchrl_path(sizes, strategy, device, batches)})
        return Case(call, check, {name: make() for name, make in peers.items()})
    graph: list[Callable[[], Any]] = []

    def replay() -> Any:
        if not graph:  # once everything was checked: what is captured writes the same records again and again
            graph.append(captured(lambda: step(batches[0]), 1, device))
        return graph[0]()

    return Case(replay, check, counted=call)


def _torchrl_path(sizes: Sizes, strategy: str, device: torch.device, batches: list[Any]) -> Callable[[], Any]:
    data = torchrl_data()
    buffer = data.ReplayBuffer(
        storage=data.LazyTensorStorage(sizes.w2, device=device), sampler=group_sampler(data, strategy)
    )
    for chunk in W2.chunks(sizes.w2):
        buffer.extend(chunk.to(device))
    following = turning(batches)

    def call() -> Any:
        buffer.extend(following())
        return buffer.sample(GROUP_DRAW)

    return call


# --- selection ------------------------------------------------------------------------------------------------------


def selecting(groups: int, size: int, chosen: int, device: torch.device) -> Case:
    """All stored groups, the highest rewards of each. torch is given the groups as a dense table of slots."""
    rows = groups * size
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(rows, generator=generator)
    rewards = torch.rand(rows, generator=generator)
    sampler = torchrb.PromptGroupSampler(num_groups=groups, group_key="g", reward_key="r", strategy="reward")
    buffer = torchrb.ReplayBuffer(storage=torchrb.LazyTensorStorage(rows, device=device), sampler=sampler)
    buffer.extend({"g": (order % groups).to(device), "r": rewards.to(device)})
    buffer.sample(groups * chosen)
    index = sampler._index
    tables, leaf, template = buffer.storage.reward_column("r")
    members = torch.argsort(order % groups, stable=True).view(groups, size).to(device)
    column = rewards.to(device)
    seeds = turning([torch.tensor([seed], device=device) for seed in range(_STREAM)])
    strategy = STRATEGY_NAMES.index("reward")

    def call() -> Any:
        return ops.sample_groups(seeds(), index.keys, index.links, tables, leaf, template, groups, chosen, strategy)

    def topk() -> Any:
        return members.gather(1, column[members].topk(chosen, dim=1).indices)

    def sort() -> Any:
        return members.gather(1, column[members].sort(dim=1, descending=True).indices[:, :chosen])

    def check() -> None:
        got = column[call()[0].view(groups, chosen)].sort(dim=0).values.cpu()
        for other in (topk, sort):
            if not torch.equal(got, column[other()].sort(dim=0).values.cpu()):
                raise AssertionError("other rewards were chosen")

    return Case(call, check, {"torch.topk": topk, "torch.sort": sort}, graphed=True)


# --- conditional updates --------------------------------------------------------------------------------------------


def updating(sizes: Sizes, versioned: bool, device: torch.device) -> Case:
    buffer = filled(W3, sizes.w3, device)
    storage, records = buffer.storage, buffer.storage._records
    slots = slots_of(sizes.w3, sizes.update, device)
    generations = torch.zeros(sizes.update, dtype=torch.int64, device=device)
    patch = {
        key: torch.ones(sizes.update, *shape, dtype=d, device=device) for key, (shape, d) in PATCHES["wide"].items()
    }
    numbers = [storage.find(key, "benchmark") for key in patch]
    place = records.leaf(storage.find("version", "benchmark")) if versioned else []
    version = torch.zeros(sizes.update, dtype=torch.int64, device=device) if versioned else None
    arguments = records.tables, storage.control, storage.journal, records.part(numbers)

    def by(op: Callable[..., Tensor]) -> Callable[[], Tensor]:
        following = turning(slots)
        return lambda: op(*arguments, following(), generations, list(patch.values()), place, version, False)

    ours, twin = by(ops.update_rows_if_), by(reference.update_rows_if_)

    def check() -> None:
        for call in (ours, twin):
            for values in patch.values():
                values.add_(1)
            if bool(call().any()):
                raise AssertionError("a row with a good handle was not written")
            stored = buffer[slots[0]]
            if not all(torch.equal(stored[key], values) for key, values in patch.items()):
                raise AssertionError("a row is not what was written")

    return Case(ours, check, {"torch ops": twin}, moved=2 * sizes.update * 320)


# --- the table ------------------------------------------------------------------------------------------------------


def _bandwidth(result: Result) -> float | None:
    return None if result.bandwidth is None else 100 * result.bandwidth


_FULL_SPEED = Goal("≥ 80 % of copy bandwidth", _bandwidth, 80, at_least=True)
_ONE_LAUNCH = Goal("1 launch", lambda result: result.launches, 1)
_NO_WAIT = Goal("0 waits", lambda result: result.waits, 0)


def _under(us: float) -> Goal:
    return Goal(f"≤ {us:g} µs", lambda result: result.ours, us)


def _faster(other: str, times: float) -> Goal:
    return Goal(f"≥ {times:g}x {other}", lambda result: result.faster_than(other), times, at_least=True)


def rows(sizes: Sizes) -> list[Row]:
    """The rows of the table, in order."""
    table = []
    for count in sizes.batches:
        title = f"W1 ({sizes.w1:,} rows): {{}}, {count:,} rows of {W1.row_bytes:,} bytes"
        table += [
            Row(f"w1/read/{count}", title.format("read_rows"), lambda d, n=count: reading(sizes, n, d),
                (_FULL_SPEED, _ONE_LAUNCH, _NO_WAIT)),
            Row(f"w1/write/{count}", title.format("write_rows_"), lambda d, n=count: writing(sizes, n, d, False),
                (_FULL_SPEED, _NO_WAIT)),
            Row(f"w1/append/{count}", title.format("append_rows_"), lambda d, n=count: writing(sizes, n, d, True),
                (_FULL_SPEED, _NO_WAIT)),
        ]  # fmt: skip
    table.append(
        Row("w1/sample", f"W1: uniform sample({sizes.sample})", lambda d: sampling(sizes, d), (_under(20), _NO_WAIT))
    )
    for replayed in (False, True):
        for strategy in STRATEGIES:
            kind = "replay" if replayed else "call"
            goals = (_under(60),) if replayed else (_under(100), _NO_WAIT, _faster("torchrl", 1000))
            table.append(
                Row(
                    f"w2/{kind}/{strategy}",
                    f"W2 ({sizes.w2:,} rows): extend({GROUP_DRAW}) + draw of {GROUPS} x {GROUP_SIZE}, {strategy}"
                    + (", inside a graph replay" if replayed else ""),
                    lambda d, s=strategy, r=replayed: extending_and_drawing(sizes, s, d, r),
                    goals,
                )
            )
    for groups, size, chosen in sizes.selects:
        table.append(
            Row(
                f"select/{groups}x{size}",
                f"the {chosen} highest of each of {groups:,} groups of {size:,}",
                lambda d, g=groups, n=size, k=chosen: selecting(g, n, k, d),
                (_faster("torch.topk", 5), _faster("torch.sort", 5)),
            )
        )
    for versioned in (False, True):
        table.append(
            Row(
                f"w3/update{'+version' if versioned else ''}",
                f"W3: update_rows_if_, {sizes.update:,} rows, 256 + 64 bytes{', with versions' if versioned else ''}",
                lambda d, v=versioned: updating(sizes, v, d),
                (_faster("torch ops", 10), _NO_WAIT),
            )
        )
    return table
