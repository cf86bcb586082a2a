"""A buffer whose batches carry the handles of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from torchrb.buffer.replay_buffer import ReplayBuffer
from torchrb.writers import TensorDictRoundRobinWriter


class TensorDictReplayBuffer(ReplayBuffer):
    """A replay buffer of tensordicts: what it returns carries ``"index"``, and in samples ``"index_generation"`` when
    the writer tracks generations (a tensorclass has its own fields only: ask for ``return_info``). Default writer:
    `TensorDictRoundRobinWriter`.

    Keyword Args:
        priority_key: the field that priorities come from, for samplers that keep them.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
    >>> rb = TensorDictReplayBuffer(
    ...     storage=LazyTensorStorage(10), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=4
    ... )
    >>> _ = rb.extend(TensorDict({"obs": torch.zeros(10, 3)}, [10]))
    >>> batch = rb.sample()
    >>> patch = {"obs": torch.ones(4, 3)}
    >>> result = rb.update_if_present(index=batch["index"], generation=batch["index_generation"], patch=patch)
    >>> bool((rb[batch["index"]]["obs"] == 1).all()), result.stale_count
    (True, 0)
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(self, *, priority_key: str = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key

    def _mark(self, data: Any, marks: Mapping[Any, Any]) -> None:
        if isinstance(data, TensorDictBase):
            for key, value in marks.items():
                if isinstance(value, Tensor) and value.shape[: data.batch_dims] == data.batch_size:
                    data.set(key, value.clone())

    def _finished(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        if isinstance(data, TensorDictBase):
            for key, value in info.items():
                inner = data.batch_dims - value.dim()  # batch dimensions within a record
                data.set(
                    key, value.view(*value.shape, *[1] * inner).expand(data.batch_size).clone() if inner > 0 else value
                )
        return data
