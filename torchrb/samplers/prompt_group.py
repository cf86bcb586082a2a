"""Balanced groups of completions of the same prompt."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from torchrb import ops
from torchrb.groups import GroupIndex
from torchrb.ops.schemas import FEW_GROUPS, NAN_DRAWN, NAN_KEY, NO_GROUP, ORDERED_DTYPES, SHORT_GROUP
from torchrb.samplers.base import NothingToDraw, Sampler, require_records, split_batch, take_seed
from torchrb.samplers.complete_groups import CompleteGroups
from torchrb.selection.strategies import Strategy
from torchrb.storages.base import Storage
from torchrb.storages.transfer import LateNumbers

# What is missing, what is done about it, and which entry of the info tells so at every draw.
_SHORTFALLS = {
    FEW_GROUPS: ("fewer groups are stored than num_groups={groups}; groups are repeated", "num_groups"),
    SHORT_GROUP: (
        "some groups hold fewer than samples_per_group={per_group} records; records are repeated",
        "short_group",
    ),
    NAN_DRAWN: (
        "some groups hold fewer than samples_per_group={per_group} valid rewards; NaN rewards are drawn too",
        "num_valid",
    ),
}
_WARNED_OF = FEW_GROUPS | SHORT_GROUP | NAN_DRAWN


class PromptGroupSampler(Sampler):
    """Draws complete groups of records that share a key, as group-relative objectives want them.

    A batch is ``num_groups`` groups of ``samples_per_group`` records, group after group. Nothing is consumed: what was
    drawn can be drawn again (replay-enhanced policy optimization, RePO, arXiv 2506.09340).

    Keyword Args:
        num_groups, samples_per_group: exactly one of them; the other follows from the batch size.
        group_key: the field that names a record's group: integers, bools or floats of any fixed shape, strings, None.
            A group id that every rollout group gets anew is better than the prompt's text: two groups with the same
            text are two groups. A float NaN is a ValueError at `sample`.
        strategy: ``"random"``, ``"recency"``, ``"reward"`` or ``"variance"``; see `selection.strategies`.
        reward_key: the numeric field that ``"reward"`` and ``"variance"`` rank by, compared in its own type; a record
            with several rewards counts as their mean.
        incomplete: what becomes of a group that has fewer records than a draw wants of it: ``"repeat"`` draws it with
            repetitions, ``"skip"`` leaves it out until it is complete. (Which groups are complete is kept on the host,
            which waits for a GPU, and costs a look in Python at each row written.)
        cache_groups: False reads all group keys again at every draw, for keys that are changed in place behind the
            storage's back. Writes through a buffer or its storage are seen either way.

    Which groups: the first of a pseudo-random permutation of all, so they are distinct, each equally likely, and the
    same for the same seed and records however the records arrived. Where too few groups, records or valid rewards are
    stored, the batch is completed by repetition, unused records first, and a warning is raised once for each reason.
    With ``incomplete="skip"`` all that is told of groups, here and in `stats`, is of complete ones; where there are too
    few of them, whole groups are repeated.

    ``sample(..., return_info=True)`` also tells ``group_size`` (int64 ``[num_groups]``, stored records of each drawn
    group), ``num_valid`` (int64 ``[num_groups]``, how many of these the strategy can rank), ``short_group`` (bool
    ``[num_groups]``), ``num_groups`` and ``num_singleton_groups`` (ints, of all stored; on a GPU tensors, which nobody
    has waited for). There, what only the device knows (too few groups, a NaN key) is warned of, or raised, by a later
    `sample`, when the news has arrived.

    Errors: TypeError for both or neither of the counts; ValueError for a batch size that is not a multiple; KeyError
    for a field that is not stored; TypeError for a storage without fields (`ListStorage`); RuntimeError when nothing is
    stored, or no group is complete where others are skipped.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torchrb import LazyTensorStorage, PromptGroupSampler, ReplayBuffer
    >>> rb = ReplayBuffer(
    ...     storage=LazyTensorStorage(100),
    ...     sampler=PromptGroupSampler(num_groups=2, group_key="prompt", strategy="reward", reward_key="reward"),
    ...     batch_size=4,
    ... )
    >>> prompts, rewards = torch.tensor([5, 5, 5, 6, 6, 6]), torch.tensor([0.0, 1.0, 0.5, 0.2, 0.1, 0.3])
    >>> _ = rb.extend(TensorDict({"prompt": prompts, "reward": rewards}, [6]))
    >>> sorted(rb.sample()["reward"].view(2, 2).tolist())
    [[0.30000001192092896, 0.20000000298023224], [1.0, 0.5]]
    """

    def __init__(
        self,
        *,
        num_groups: int | None = None,
        samples_per_group: int | None = None,
        group_key: Any = "query",
        strategy: str = "random",
        reward_key: Any = ("next", "reward"),
        cache_groups: bool = True,
        incomplete: str = "repeat",
    ) -> None:
        if (num_groups is None) == (samples_per_group is None):
            raise TypeError(
                "PromptGroupSampler: give exactly one of num_groups and samples_per_group, "
                f"got num_groups={num_groups} and samples_per_group={samples_per_group}."
            )
        for name, value in (("num_groups", num_groups), ("samples_per_group", samples_per_group)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"PromptGroupSampler: {name} must be a positive int, got {value!r}.")
        self.num_groups, self.samples_per_group = num_groups, samples_per_group
        self.group_key, self.reward_key = group_key, reward_key
        self._strategy = Strategy.named(strategy)
        self._strategy_code, self._needs_reward = int(self._strategy), self._strategy.needs_reward
        if incomplete not in ("repeat", "skip"):
            raise ValueError(f"PromptGroupSampler: incomplete must be 'repeat' or 'skip', got {incomplete!r}.")
        self.cache_groups, self.incomplete = cache_groups, incomplete
        self._complete: CompleteGroups | None = None
        self._index: GroupIndex | None = None
        self._warned = 0
        self._late = LateNumbers()
        self._ranked: Tensor | None = None  # the last reward template that was found to be of a type with an order

    def __getstate__(self) -> dict[str, Any]:
        # They belong to the process that made them.
        return self.__dict__ | {"_index": None, "_complete": None, "_ranked": None, "_late": LateNumbers()}

    @property
    def strategy(self) -> str:
        return self._strategy.name.lower()

    def sample(self, storage: Storage, batch_size: int, generator: torch.Generator | None = None) -> tuple[Tensor, Any]:
        groups, per_group = split_batch(self, batch_size, "num_groups", "samples_per_group")
        require_records(storage)
        if self.incomplete == "skip":
            storage = self._complete_of(storage, per_group)
        index = self._index_of(storage)
        if self._needs_reward:
            tables, leaf, template = storage.reward_column(self.reward_key)
            if template is not self._ranked:
                self._check_reward(template)
            self._ranked = template
        else:
            tables, leaf, template = storage.tables, [], index.keys
        seed = take_seed(generator, storage)
        slots, drawn, flags = ops.sample_groups(
            seed, index.keys, index.links, tables, leaf, template, groups, per_group, self._strategy_code
        )
        return slots, (drawn, flags, per_group, index.counts())

    def notice(self, drawn: Any) -> None:
        groups, flags, per_group, _ = drawn
        if flags.is_cuda:
            self._late.ask(flags, (groups.shape[0], per_group))
            for told, shape in self._late.told():
                self._judge(told, *shape)
            return
        told = flags.item()
        if told & ~self._warned:
            self._judge(told, groups.shape[0], per_group)

    def explain(self, drawn: Any) -> dict[str, Any]:
        groups, _, per_group, counts = drawn
        num_groups, num_singletons = counts
        sizes = groups[:, 1].clone()
        return {
            "group_size": sizes,
            "short_group": sizes < per_group,
            "num_valid": groups[:, 2].clone(),
            "num_groups": num_groups,
            "num_singleton_groups": num_singletons,
        }

    def fork(self, storage: Storage) -> Sampler | None:
        # What is changed behind the storage's back is to be seen by the next draw, so there is none before it.
        return self if self.cache_groups and type(self).sample is PromptGroupSampler.sample else None

    def moment(self, storage: Storage) -> tuple[Any, ...]:
        counts = self.num_groups, self.samples_per_group
        return *counts, self.group_key, self.reward_key, self._strategy_code, self.cache_groups, self.incomplete

    def stats(self, storage: Storage) -> dict[str, int]:
        """``num_groups`` and ``num_singleton_groups``: all groups singletons means that the key tells records apart
        instead of grouping them. Neither, where the records cannot be grouped by the key; `sample` says why.
        """
        if not len(storage):
            return {"num_groups": 0, "num_singleton_groups": 0}
        try:
            if self.incomplete == "skip":
                size = self.samples_per_group or (self._complete.size if self._complete else 1)
                storage = self._complete_groups(storage, size).catch_up(always=not self.cache_groups)
            index = self._index_of(storage)
        except (KeyError, TypeError, ValueError):
            return {}
        num_groups, num_singletons = (int(count) for count in index.counts())
        return {"num_groups": num_groups, "num_singleton_groups": num_singletons}

    def _check_reward(self, template: Tensor) -> None:
        if template.dtype not in ORDERED_DTYPES or not template.shape[1:].numel():
            raise TypeError(
                f"PromptGroupSampler: reward_key {self.reward_key!r} must name one or more real numbers, "
                f"of a type that can be ranked exactly, got {template.dtype} {[*template.shape[1:]]}."
            )

    def _index_of(self, storage: Storage) -> GroupIndex:
        index = self._index  # a buffer on another storage may put its own there meanwhile
        if index is None or index.storage is not storage:
            index = self._index = GroupIndex(storage, self.group_key)
        index.catch_up(always=not self.cache_groups)
        return index

    def _complete_groups(self, storage: Storage, size: int) -> CompleteGroups:
        complete = self._complete
        if complete is None or complete.storage is not storage or complete.size != size:
            complete = self._complete = CompleteGroups(storage, self.group_key, size)
        return complete

    def _complete_of(self, storage: Storage, size: int) -> Storage:
        """The storage without groups that are too small; RuntimeError where no other is left."""
        complete = self._complete_groups(storage, size)
        view = complete.catch_up(always=not self.cache_groups)
        if not complete.num_complete:
            self._index_of(view)  # which refuses a key that is NaN
            raise NothingToDraw(
                f"PromptGroupSampler: with incomplete='skip' no group has the {size} records of a draw; the largest "
                f"has {complete.largest}. Write whole groups, ask for fewer records of each, or use "
                "incomplete='repeat'."
            )
        return view

    def _judge(self, told: int, groups: int, per_group: int) -> None:
        """Act on the flags of a draw of so many groups."""
        if told & (NAN_KEY | NO_GROUP):
            self._refuse(told)
        new = told & ~self._warned & _WARNED_OF
        if new:
            self._warn(new, groups, per_group)

    def _refuse(self, flags: int) -> None:
        """What a CPU raises before the draw, and a GPU finds out in it."""
        if flags & NAN_KEY and self._index is not None:
            self._index.refuse_outcasts()
        if flags & NO_GROUP:
            raise RuntimeError("PromptGroupSampler: no record was stored when the draw ran. Extend the buffer first.")

    def _warn(self, shortfall: int, groups: int, per_group: int) -> None:
        self._warned |= shortfall
        for bit, (text, entry) in _SHORTFALLS.items():
            if shortfall & bit:
                message = text.format(groups=groups, per_group=per_group)
                warnings.warn(
                    f"PromptGroupSampler: {message}. This is said once; info[{entry!r}] tells each time.",
                    stacklevel=5,
                )

    def __repr__(self) -> str:
        count = f"num_groups={self.num_groups}" if self.num_groups else f"samples_per_group={self.samples_per_group}"
        return f"PromptGroupSampler({count}, group_key={self.group_key!r}, strategy={self.strategy!r})"
