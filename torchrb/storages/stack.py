"""A storage of tensordicts whose rows need not have the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection, lazy_stack
from torch import Tensor

from torchrb.journal import JournalReader
from torchrb.storages.base import Column
from torchrb.storages.copies import own_copy
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.list import ListStorage
from torchrb.storages.structure import as_path, shown


class LazyStackStorage(ListStorage):
    """A list of tensordicts, read back as a lazy stack, so that each row keeps its own shapes.

    Args:
        max_size: capacity in records; None for no bound.
        compilable: accepted for compatibility.
        stack_dim: where the stack's dimension goes; only 0.
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
        if stack_dim != 0:
            raise ValueError(f"LazyStackStorage: only stack_dim=0 is supported, got {stack_dim}.")
        super().__init__(max_size, compilable=compilable, device=device)
        self._rewards: dict[tuple, _RewardCache] = {}

    def _own(self, item: Any) -> Any:
        if not is_tensor_collection(item):
            raise TypeError(f"LazyStackStorage: a record must be a tensordict, got {type(item).__name__}.")
        return super()._own(item)

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        items, generations = super().read(slots, shape)
        if shape == ():
            return items, generations
        if not items:  # which fields they would have is theirs to say
            return TensorDict({}, [0], device=self.items_device), generations
        return lazy_stack(items), generations

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

    def _value(self, item: TensorDictBase, key: Any, call: str) -> Any:
        """One record's value of a field: a tensor, or the Python value of a non-tensor field."""
        value = item.get(shown(as_path(key)), default=_MISSING)
        if value is _MISSING:
            known = list(item.keys(include_nested=True, leaves_only=True))
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {known}.")
        return value.tolist() if is_non_tensor(value) else value

    def key_column(self, key: Any) -> Column | None:
        return None

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        words = [
            value_words(self._value(self._items[slot], key, "PromptGroupSampler: group_key"), key)
            for slot in slots.tolist()
        ]
        return torch.tensor(words, dtype=torch.int64).view(slots.shape[0], DIGEST_WORDS)

    def reward_column(self, key: Any) -> Column:
        with self.lock:
            cache = self._rewards.setdefault(as_path(key), _RewardCache())
            column = cache.catch_up(self, key)
        return Column([self.tables[0], column.view(-1, 1).view(torch.uint8)], [1, 0, 8], column[:0])

    def reward_of(self, slot: int, key: Any) -> int | float:
        """A record's reward: its own value when of one element, else the float64 mean, summed in index order."""
        value = self._value(self._items[slot], key, "PromptGroupSampler: reward_key")
        elements = value.reshape(-1).tolist() if isinstance(value, Tensor) else [value]
        if not elements or not all(_is_reward(element) for element in elements):
            raise TypeError(
                f"PromptGroupSampler: reward_key {key!r} must be numeric in every record, of a type that can be ranked "
                f"exactly, got {value!r}."
            )
        if len(elements) == 1:
            return elements[0]
        total = 0.0
        for element in elements:
            total += element
        return total / len(elements)


_MISSING: Any = object()


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


def _is_reward(element: Any) -> bool:
    return isinstance(element, float) or (isinstance(element, int) and -(2**63) <= element < 2**63)


class _RewardCache:
    """Rewards by slot, kept up to date from the journal: int64 while all are integers, float64 otherwise."""

    def __init__(self) -> None:
        self._reader = JournalReader()
        self._values: dict[int, int | float] = {}
        self._column = torch.empty(0, dtype=torch.int64)

    def catch_up(self, storage: LazyStackStorage, key: Any) -> Tensor:
        if not self._reader.moved(storage.control):
            return self._column
        changed = self._reader.catch_up(storage.control, storage.journal)
        if changed is None:
            self._values.clear()
        try:
            for slot in range(len(storage)) if changed is None else changed.tolist():
                self._values.pop(slot, None)
                if slot < len(storage):
                    self._values[slot] = storage.reward_of(slot, key)
        except BaseException:
            self._reader = JournalReader()  # what is no reward now is looked at again by the next call
            raise
        integral = all(isinstance(value, int) for value in self._values.values())
        if not integral:
            self._refuse_rounding(key)
        column = torch.zeros(storage.tables[0].shape[0], dtype=torch.int64 if integral else torch.float64)
        stored = sorted(self._values)
        column[stored] = torch.tensor([self._values[slot] for slot in stored], dtype=column.dtype)
        self._column = column
        return column

    def _refuse_rounding(self, key: Any) -> None:
        """Beside floats, integers are ranked as float64: ValueError for one that would be rounded."""
        for slot, value in self._values.items():
            if isinstance(value, int) and float(value) != value:
                self._reader = JournalReader()
                raise ValueError(
                    f"PromptGroupSampler: reward_key {key!r} holds integers and floats, and {value} in record {slot} "
                    "has no exact float64 to rank it by. Store rewards of one type."
                )
