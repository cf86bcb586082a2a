"""Both libraries under the same names, and buffers of either from the same words.

A history is a function of such a namespace: it runs through `PEER` and through `OURS`, and what comes out is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict, is_tensor_collection

import torchrb

WHY = "parity tests compare with torchrl 0.14.1; install it with: pip install 'torchrb[test]'"
# `importorskip` also keeps the warnings that torchrl gives at import from being errors.
torchrl = pytest.importorskip("torchrl", reason=WHY, minversion="0.14.1")
data = pytest.importorskip("torchrl.data", reason=WHY)
samplers = pytest.importorskip("torchrl.data.replay_buffers.samplers", reason=WHY)
llm = pytest.importorskip("torchrl.objectives.llm", reason=WHY)
logging.getLogger("torchrl").setLevel(logging.ERROR)

NAMES = (
    *("ReplayBuffer", "TensorDictReplayBuffer", "RandomSampler", "RoundRobinWriter", "TensorDictRoundRobinWriter"),
    *(
        "SamplerWithoutReplacement",
        "ImmutableDatasetWriter",
        "ListStorage",
        "LazyTensorStorage",
        "LazyStackStorage",
        "TensorStorage",
    ),
)
PEER = SimpleNamespace(
    **{name: getattr(data, name) for name in NAMES},
    PromptGroupSampler=samplers.PromptGroupSampler,
    MCAdvantageSelector=llm.MCAdvantageSelector,
)
OURS = SimpleNamespace(
    **{name: getattr(torchrb, name) for name in NAMES},
    PromptGroupSampler=torchrb.PromptGroupSampler,
    MCAdvantageSelector=torchrb.MCAdvantageSelector,
)


def buffer(lib: SimpleNamespace, capacity: int = 4, storage: str = "LazyTensorStorage", **kwargs: Any) -> Any:
    """A tensordict buffer that tracks generations."""
    writer = lib.TensorDictRoundRobinWriter(track_generations=True)
    return lib.TensorDictReplayBuffer(storage=getattr(lib, storage)(capacity), writer=writer, **kwargs)


def rows(*numbers: int) -> TensorDict:
    """Records whose fields follow from a number each."""
    n = torch.tensor(numbers, dtype=torch.int64)
    return TensorDict(
        {"x": n, "v": torch.zeros_like(n), "wide": n[:, None].float() + torch.arange(3), "in": {"b": n % 2 == 0}},
        [len(numbers)],
    )


def content(rb: Any) -> Any:
    """All records, as something that ``==`` compares. Where the library stores ``"index"`` with them, without it."""
    records = rb[:] if len(rb) else []
    if is_tensor_collection(records):
        keys = records.keys(include_nested=True, leaves_only=True)
        return {str(key): records[key].tolist() for key in sorted(keys, key=str) if key != "index"}
    return records


def state(rb: Any) -> dict[str, Any]:
    """What can be seen of a buffer."""
    told = {"len": len(rb), "write_count": rb.write_count, "content": content(rb)}
    if rb.writer.tracks_generations:
        told["generations"] = rb.writer.generations_of(torch.arange(rb.storage.max_size)).tolist()
    return told


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


def both(history: Callable[[SimpleNamespace], Any]) -> tuple[Any, Any]:
    """What a history gives in torchrl and here."""
    return history(PEER), history(OURS)
