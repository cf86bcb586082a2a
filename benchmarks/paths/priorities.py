"""Prioritized draws: a batch in proportion to priorities, with importance weights, and the update that follows it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import torchrb
from benchmarks.buffers import arrays, available, fill, tensors, torchrl_data
from benchmarks.harness import Contender, Row, faster_than
from benchmarks.workloads import GROUP_DRAW, W2, Scale

_ALPHA, _BETA, _EPS = 0.6, 0.4, 1e-8
_BATCHES = 64  # of new priorities, made beforehand


def first_priorities(rows: int) -> Tensor:
    """From 1/4096 to 1, float32."""
    return ((torch.arange(rows) * 2654435761) % 4096 + 1).to(torch.float32) / 4096


def learning(
    rows: int, draw: Callable[[], tuple[Any, Tensor, Tensor]], update: Callable[[Any, Tensor], Any]
) -> Contender:
    """Draw, then give what was drawn new priorities. ``draw`` returns records, their indices and importance weights;
    the records must be those of the indices, and the weights those of the priorities they were drawn by.
    """
    generator, turn = torch.Generator().manual_seed(11), iter(range(10**9))
    news = [torch.rand(GROUP_DRAW, generator=generator) for _ in range(_BATCHES)]

    def inputs() -> tuple[Tensor]:
        return (news[next(turn) % _BATCHES],)

    def call(new: Tensor) -> tuple[Any, Tensor, Tensor]:
        records, index, weights = draw()
        update(index, new)
        return records, index, weights

    def check(drawn: tuple[Any, Tensor, Tensor]) -> Any:
        records, index, weights = (torch.as_tensor(x) if i else x for i, x in enumerate(drawn))
        if not torch.equal(W2.check(records, range(rows)), index.view(-1)):
            raise AssertionError("a record is not the one that its index names")
        p = (first_priorities(rows).double() + _EPS) ** _ALPHA
        expected = (p[index.view(-1)] / p.min()) ** -_BETA
        if not torch.allclose(weights.view(-1).double(), expected, rtol=1e-3):
            raise AssertionError("an importance weight is not that of its record's priority")
        return index, weights

    return Contender(call, inputs, check)


def _with_info(buffer: Any) -> Callable[[], tuple[Any, Tensor, Tensor]]:
    def draw() -> tuple[Any, Tensor, Tensor]:
        records, info = buffer.sample(GROUP_DRAW, return_info=True)
        return records, info["index"], info["priority_weight"]

    return draw


def _ours(rows: int) -> Contender:
    buffer = torchrb.PrioritizedReplayBuffer(
        alpha=_ALPHA, beta=_BETA, eps=_EPS, storage=torchrb.LazyTensorStorage(rows),
        generator=torch.Generator().manual_seed(7),
    )  # fmt: skip
    fill(buffer, W2, rows).update_priority(torch.arange(rows), first_priorities(rows))
    return learning(rows, _with_info(buffer), buffer.update_priority)


def _torchrl(rows: int) -> Contender:
    data = torchrl_data()
    buffer = data.ReplayBuffer(
        storage=data.LazyTensorStorage(rows), sampler=_torchrl_sampler(rows), writer=data.RoundRobinWriter()
    )
    fill(buffer, W2, rows).update_priority(torch.arange(rows), first_priorities(rows))
    return learning(rows, _with_info(buffer), buffer.update_priority)


def _torchrl_sampler(rows: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torchrl_data().PrioritizedSampler(rows, _ALPHA, _BETA, _EPS)


def _cpprb(rows: int) -> Contender:
    import cpprb as peer

    one = W2.batch(0, 1)
    spec = {key: {"shape": tuple(leaf.shape[1:]) or 1, "dtype": leaf.numpy().dtype} for key, leaf in one.items()}
    buffer = peer.PrioritizedReplayBuffer(rows, spec, alpha=_ALPHA, eps=_EPS)
    for chunk in W2.chunks(rows):
        buffer.add(**arrays(chunk))
    buffer.update_priorities(torch.arange(rows).numpy(), first_priorities(rows).numpy())

    def draw() -> tuple[Any, Any, Any]:
        batch = buffer.sample(GROUP_DRAW, beta=_BETA)
        return batch, batch["indexes"], batch["weights"]

    contender = learning(rows, draw, lambda index, new: buffer.update_priorities(index, new.numpy()))
    check = contender.check
    contender.check = lambda drawn: check((tensors(drawn[0]), drawn[1].astype("int64"), drawn[2]))
    return contender


def _missing() -> str | None:
    """Why torchrl cannot take part, if it cannot."""
    if "torchrl" not in available({"torchrl": None}):
        return "torchrl is not installed"
    try:
        _torchrl_sampler(8)
    except RuntimeError as error:
        return f"its compiled trees do not load here ({str(error).rstrip('.')})"
    return None


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    peers = available({"torchrl": lambda: _torchrl(scale.w2), "cpprb": lambda: _cpprb(scale.w2)})
    if _missing() is not None:
        peers.pop("torchrl", None)
    return [
        Row(
            "w2/prioritized",
            f"W2 ({scale.w2:,} rows): prioritized sample({GROUP_DRAW}) + update_priority",
            ours=lambda: _ours(scale.w2),
            peers=peers,
            goals=[faster_than("torchrl", 1), faster_than("cpprb", 1)],
        )
    ]


def left_out() -> dict[str, str]:
    """Peers that cannot take part, and why."""
    missing = _missing()
    return {} if missing is None else {"w2/prioritized, torchrl": missing}
