"""The buffers that are compared, each made through its public API and filled with the same records."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

import torchrb
from benchmarks.workloads import GROUPS, Ring, Workload

HAVE_TORCHRL = importlib.util.find_spec("torchrl") is not None
HAVE_CPPRB = importlib.util.find_spec("cpprb") is not None


def available(peers: Mapping[str, Callable]) -> dict[str, Callable]:
    """Those of the peers that are installed."""
    here = {"torchrl": HAVE_TORCHRL, "cpprb": HAVE_CPPRB}
    return {name: make for name, make in peers.items() if here[name]}


def torchrl_data() -> Any:
    """The peer's package of buffers, without its log lines and what it warns of at import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrl.data.replay_buffers as data
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    return data


@dataclass
class Filled:
    """A buffer and the stream of batches that goes on where its records end."""

    buffer: Any
    ring: Ring


def fill(buffer: Any, workload: Workload, rows: int) -> Any:
    """Extend with records 0 to ``rows``; returns the buffer."""
    for chunk in workload.chunks(rows):
        buffer.extend(chunk)
    return buffer


def group_sampler(package: Any, strategy: str, groups: int = GROUPS) -> Any:
    """A sampler of groups, of torchrb or of a package with the same names."""
    return package.PromptGroupSampler(num_groups=groups, group_key="prompt", reward_key="reward", strategy=strategy)


def ours(
    rows: int,
    *,
    strategy: str | None = None,
    generations: bool = False,
    groups: int = GROUPS,
    storage: Callable[[int], Any] = torchrb.LazyTensorStorage,
) -> Any:
    """An empty buffer of torchrb: drawn uniformly, or in groups by a strategy; with ``generations`` for tensordicts."""
    buffer_type, writer = torchrb.ReplayBuffer, torchrb.RoundRobinWriter()
    if generations:
        buffer_type, writer = torchrb.TensorDictReplayBuffer, torchrb.TensorDictRoundRobinWriter(track_generations=True)
    return buffer_type(
        storage=storage(rows),
        sampler=torchrb.RandomSampler() if strategy is None else group_sampler(torchrb, strategy, groups),
        writer=writer,
        generator=torch.Generator().manual_seed(7),
    )


def torchrl(rows: int, *, strategy: str | None = None, generations: bool = False, groups: int = GROUPS) -> Any:
    """The same buffer of torchrl."""
    data = torchrl_data()
    buffer_type, writer = data.ReplayBuffer, data.RoundRobinWriter()
    if generations:
        buffer_type, writer = data.TensorDictReplayBuffer, data.TensorDictRoundRobinWriter(track_generations=True)
    return buffer_type(
        storage=data.LazyTensorStorage(rows),
        sampler=data.RandomSampler() if strategy is None else group_sampler(data, strategy, groups),
        writer=writer,
    )


def ours_filled(workload: Workload, rows: int, **options: Any) -> Filled:
    """A full buffer of torchrb, with a history of its own."""
    return Filled(fill(ours(rows, **options), workload, rows), Ring(workload, rows))


@lru_cache(maxsize=1)
def _torchrl_full(workload: Workload, rows: int, generations: bool) -> Filled:
    return Filled(fill(torchrl(rows, generations=generations), workload, rows), Ring(workload, rows))


def torchrl_filled(workload: Workload, rows: int, *, strategy: str | None = None, generations: bool = False) -> Filled:
    """A full buffer of torchrl. Filling one takes seconds: the rows of the table share it, with a new sampler each."""
    full = _torchrl_full(workload, rows, generations)
    data = torchrl_data()
    full.buffer.set_sampler(data.RandomSampler() if strategy is None else group_sampler(data, strategy))
    return full


def cpprb(workload: Workload, rows: int) -> Any:
    """A buffer of cpprb, which takes and gives numpy arrays."""
    import cpprb as peer

    one = workload.batch(0, 1)
    spec = {key: {"shape": tuple(leaf.shape[1:]) or 1, "dtype": leaf.numpy().dtype} for key, leaf in one.items()}
    buffer = peer.ReplayBuffer(rows, spec)
    for chunk in workload.chunks(rows):
        buffer.add(**arrays(chunk))
    return buffer


def arrays(batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A batch as numpy arrays, without a copy."""
    return {key: leaf.numpy() for key, leaf in batch.items()}


def tensors(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Numpy arrays as tensors, without a copy."""
    return {key: torch.from_numpy(leaf) for key, leaf in batch.items()}
