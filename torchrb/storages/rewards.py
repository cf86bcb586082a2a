"""Rewards of rows whose shapes differ, as one column that follows the storage's journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrb.journal import JournalReader

if TYPE_CHECKING:
    from torchrb.storages.base import Storage

REWARD_KEY = "PromptGroupSampler: reward_key"


class RewardColumn:
    """A number for each row: int64 while all are integers, float64 as soon as one is not.

    Catching up costs what was written since. So both columns are kept, whichever is shown, and with them which rows are
    floats, which integers have no exact float64, and which are no reward at all.

    ``rows_visited``: rows looked at so far.
    """

    def __init__(self, key: Any) -> None:
        self._key = key
        self._reader = JournalReader()
        self._integers = torch.empty(0, dtype=torch.int64)
        self._reals = torch.empty(0, dtype=torch.float64)
        self._floats: set[int] = set()
        self._inexact: set[int] = set()
        self._refused: set[int] = set()
        self.rows_visited = 0

    def catch_up(self, storage: Storage, value_at: Callable[[int], Any]) -> Tensor:
        """The column as the storage is now. ``value_at`` reads a row's field. Raises, at every call until the row is
        overwritten, TypeError for what is no reward, ValueError for an integer that floats beside it would round.
        """
        if self._reader.moved(storage.control):
            slots, position = self._reader.unread(storage.control, storage.journal)
            capacity = storage.tables[0].shape[0]
            if slots is None or self._integers.shape[0] != capacity:
                self._integers = torch.zeros(capacity, dtype=torch.int64)
                self._reals = torch.zeros(capacity, dtype=torch.float64)
                self._floats, self._inexact, self._refused = set(), set(), set()
                slots = torch.arange(len(storage))
            for slot in slots.tolist():
                self._visit(slot, value_at if slot < len(storage) else None)
            self._reader.accept(position)  # last: what was cut off is looked at again
        if self._refused:
            slot = min(self._refused)
            raise TypeError(
                f"{REWARD_KEY} {self._key!r} must be numeric in every record, of a type that can be ranked exactly, "
                f"got {value_at(slot)!r}."
            )
        if not self._floats:
            return self._integers
        if self._inexact:
            slot = min(self._inexact)
            raise ValueError(
                f"{REWARD_KEY} {self._key!r} holds integers and floats, and {int(self._integers[slot])} in record "
                f"{slot} has no exact float64 to rank it by. Store rewards of one type."
            )
        return self._reals

    def _visit(self, slot: int, value_at: Callable[[int], Any] | None) -> None:
        """Note a row's reward; without ``value_at`` there is no record any more."""
        self.rows_visited += 1
        for rows in (self._floats, self._inexact, self._refused):
            rows.discard(slot)
        if value_at is None:
            return
        try:
            reward = reward_of(value_at(slot))
        except KeyError:  # raised again when it is told
            reward = None
        if reward is None:
            self._refused.add(slot)
        elif isinstance(reward, float):
            self._floats.add(slot)
            self._reals[slot] = reward
        else:
            self._integers[slot], self._reals[slot] = reward, float(reward)
            if int(float(reward)) != reward:
                self._inexact.add(slot)


def reward_of(value: Any) -> int | float | None:
    """A record's reward: its own value when of one element, else the float64 mean, summed in index order; None for what
    is no reward.
    """
    elements = value.reshape(-1).tolist() if isinstance(value, Tensor) else [value]
    if not elements or not all(_is_reward(element) for element in elements):
        return None
    if len(elements) == 1:
        return elements[0]
    total = 0.0
    for element in elements:
        total += element
    return total / len(elements)


def _is_reward(element: Any) -> bool:
    return isinstance(element, float) or (isinstance(element, int) and -(2**63) <= element < 2**63)
