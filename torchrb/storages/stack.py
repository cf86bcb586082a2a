"""A storage of tensordicts whose rows need not have the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack
from torch import Tensor

from torchrb.storages.base import Column
from torchrb.storages.copies import own_copy
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.list import ListStorage
from torchrb.storages.rewards import REWARD_KEY, RewardColumn
from torchrb.storages.structure import as_path, shown


class LazyStackStorage(ListStorage):
    """A list of tensordicts, read back as a lazy stack, so that each row keeps its own shapes.

    Args:
        max_size: capacity in records; None for no bound.
        compilable: accepted for compatibility.
        stack_dim: where the dimension of the records goes in what is read, among the batch dimensions that a record has
            of its own; negative ones count from the end. What is written has its records along the first dimension.
        device: where the records live; None leaves them where they are.

    Group keys may be ragged (the key is the tuple of values), rewards too (a row counts as its mean). No records read
    back are a tensordict of batch size 0 without fields.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyStackStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=LazyStackStorage(10))
    >>> _ = rb.extend([TensorDict({"tokens": torch.arange(n)}) for n in (2, 3)])
    >>> [row["tokens"].tolist() for row in rb[:].unbind(0)]
    [[0, 1], [0, 1, 2]]
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool = False,
        stack_dim: int = 0,
        device: torch.device | str | int | None = None,
    ) -> None:
        if isinstance(stack_dim, bool) or not isinstance(stack_dim, int):
            raise ValueError(f"LazyStackStorage: stack_dim must be an int, got {stack_dim!r}.")
        super().__init__(max_size, compilable=compilable, device=device)
        self.stack_dim = stack_dim
        self._rewards: dict[tuple, RewardColumn] = {}

    def _own(self, item: Any) -> Any:
        if not is_tensor_collection(item):
            raise TypeError(
                f"LazyStackStorage: a record must be a tensordict, got {type(item).__name__}. Make one, "
                "TensorDict({...}); or use a ListStorage for other records."
            )
        if self.stack_dim and not -item.batch_dims - 1 <= self.stack_dim <= item.batch_dims:
            raise ValueError(
                f"LazyStackStorage: stack_dim={self.stack_dim} needs records with as many batch dimensions, got one of "
                f"batch_size {[*item.batch_size]}. Give them a batch size, or use stack_dim=0."
            )
        return super()._own(item)

    kind = "tensordicts"

    def _restored(self, item: Any, call: str) -> Any:
        if not is_tensor_collection(item):
            raise ValueError(f"{call}: records of the saved state must be tensordicts, got a {type(item).__name__}.")
        return self._own(item)

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        items, generations = super().read(slots, shape)
        if shape == ():
            return items, generations
        if not items:  # which fields they would have is theirs to say
            return TensorDict({}, [0], device=self.items_device), generations
        dims = items[0].batch_dims + 1
        return lazy_stack(items, self.stack_dim % dims), generations

    def _take_fields(self, fields: Mapping[Any, Any], call: str) -> list[_Field]:
        taken = []
        for key, values in fields.items():
            if not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
                taken.append(_Field(key, None, []))
                continue
            own = [own_copy(value) for value in values]
            taken.append(_Field(key, own, [_tensor_or_none(value) for value in own]))
        return taken

    def _put_fields(self, slots: Tensor, taken: list[_Field], call: str) -> None:
        self._staging.settle()
        places = slots.tolist()
        changed = {place: self._items[place].copy() for place in places}
        for key, own, tensors in taken:
            if own is None or len(own) != len(places):
                given = "a single one" if own is None else len(own)
                raise ValueError(f"{call}: field {key!r} needs {len(places)} values, got {given}.")
            for place, value, tensor in zip(places, own, tensors, strict=True):
                old = self._value(changed[place], key, call)
                if isinstance(old, Tensor):
                    if tensor is None or tensor.dtype != old.dtype or tensor.shape != old.shape:
                        got = repr(value) if tensor is None else f"{tensor.dtype} {[*tensor.shape]}"
                        raise ValueError(
                            f"{call}: field {key!r} must be {old.dtype} {[*old.shape]} in row {place}, got {got}."
                        )
                    value = tensor
                changed[place].set(shown(as_path(key)), value)
        self._put_items(slots, [changed[place] for place in places], False)

    def key_column(self, key: Any) -> Column | None:
        return None

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        self._staging.settle()
        words = [
            value_words(self._value(self._items[slot], key, "PromptGroupSampler: group_key"), key)
            for slot in slots.tolist()
        ]
        return torch.tensor(words, dtype=torch.int64).view(slots.shape[0], DIGEST_WORDS)

    def reward_column(self, key: Any) -> Column:
        with self.lock:
            self._staging.settle()
            rewards = self._rewards.setdefault(as_path(key), RewardColumn(key))
            column = rewards.catch_up(self, lambda slot: self._value(self._items[slot], key, REWARD_KEY))
        return Column([self.tables[0], column.view(-1, 1).view(torch.uint8)], [1, 0, 8], column[:0])


class _Field(NamedTuple):
    """New values of a field, the storage's own: as they are kept (None when there is no list of them), and as tensors
    where they can be.
    """

    key: Any
    values: list[Any] | None
    tensors: list[Tensor | None]


def _tensor_or_none(value: Any) -> Tensor | None:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None
