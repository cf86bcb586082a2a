"""How each path grows with the buffer: its time at several sizes, and the exponent."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import torchrb
from benchmarks.buffers import Filled, group_sampler, ours_filled
from benchmarks.harness import Contender, exponent, measure
from benchmarks.paths.group_draws import STRATEGIES, drawing, writing_and_drawing
from benchmarks.paths.row_movement import extending, sampling
from benchmarks.workloads import GROUP_DRAW, W2, Scale


@dataclass(frozen=True)
class Growth:
    """A row of the growth table: milliseconds by buffer size, and the slope in the doubly logarithmic plot."""

    title: str
    milliseconds: dict[int, float]
    exponent: float


def _updating(full: Filled, size: int) -> Contender:
    generations = full.buffer.writer.generations_of(torch.arange(size))
    generator, rewards = torch.Generator().manual_seed(5), torch.zeros(GROUP_DRAW)

    def inputs() -> tuple[dict]:
        slots = _spread(size, generator)
        return ({"index": slots, "generation": generations[slots], "patch": {"reward": rewards}},)

    return Contender(lambda asked: full.buffer.update_if_present(**asked).updated, inputs)


def _spread(size: int, generator: torch.Generator) -> torch.Tensor:
    """Random different slots, one in each of as many equal parts of the buffer."""
    width = size // GROUP_DRAW
    return torch.arange(GROUP_DRAW) * width + torch.randint(width, (GROUP_DRAW,), generator=generator)


def _with_strategy(full: Filled, strategy: str | None) -> Filled:
    full.buffer.set_sampler(torchrb.RandomSampler() if strategy is None else group_sampler(torchrb, strategy))
    return full


_Make = Callable[[Filled, int], Contender]


def _paths() -> dict[str, tuple[str, str | None, _Make]]:
    """By id: title, strategy, and what makes the contender."""
    paths: dict[str, tuple[str, str | None, _Make]] = {
        "growth/sample": ("uniform sample(512)", None, lambda full, _: sampling(W2, full, GROUP_DRAW)),
        "growth/extend": ("extend(512)", None, lambda full, _: extending(W2, full)),
    }
    for strategy in STRATEGIES:
        for name, title, act in (
            ("draw", f"group draw, {strategy}", drawing),
            ("extend+draw", f"extend(512) + group draw, {strategy}", writing_and_drawing),
        ):
            paths[f"growth/{name}/{strategy}"] = (title, strategy, lambda full, _, act=act: act(W2, full))
    # Last: it overwrites rewards, after which rows are not what was written.
    paths["growth/update"] = ("update_if_present(512), a scalar leaf", None, _updating)
    return paths


def ids() -> list[str]:
    """The ids of the rows of the growth table."""
    return list(_paths())


def growth(scale: Scale, wanted: Callable[[str], bool], largest: int) -> Iterator[Growth]:
    """Measure the paths whose id is wanted, on buffers of small rows up to ``largest``."""
    paths = {name: path for name, path in _paths().items() if wanted(name)}
    if not paths:
        return
    buffers = {size: ours_filled(W2, size, generations=True) for size in scale.growth if size <= largest}
    for title, strategy, make in paths.values():
        contenders = {str(size): make(_with_strategy(full, strategy), size) for size, full in buffers.items()}
        for contender in contenders.values():
            contender.result()
        timings = measure(contenders, scale.repeats, scale.budget_s)
        medians = {size: timings[str(size)].median for size in buffers}
        slope = exponent(list(medians), list(medians.values()))
        yield Growth(title, {size: median * 1e3 for size, median in medians.items()}, slope)
        gc.collect()
