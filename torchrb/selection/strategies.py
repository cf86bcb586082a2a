"""The strategies by which `PromptGroupSampler` chooses rows within a group.

All of them: NaN rewards are drawn only after every valid row (for ``variance`` infinite ones count as NaN too); equal
scores go to the newer record, then to the lower slot; a group with too few rows gives each once and then repeats valid
ones, uniformly. The op `sample_groups` states the rules in full (`ops/schemas.py`).
"""

from __future__ import annotations

from enum import IntEnum

from torchrb.ops import schemas


class Strategy(IntEnum):
    """How rows are chosen; the value is what the op takes.

    >>> Strategy.named("variance").needs_reward
    True
    """

    RANDOM = 0
    """Uniformly, without replacement."""
    RECENCY = 1
    """The most recently written, oldest of them first."""
    REWARD = 2
    """The highest rewards, highest first."""
    VARIANCE = 3
    """The subset of fixed size with the greatest reward variance, ascending (RePO, arXiv 2506.09340)."""

    @property
    def needs_reward(self) -> bool:
        return self in (Strategy.REWARD, Strategy.VARIANCE)

    @classmethod
    def named(cls, name: str) -> Strategy:
        """The strategy of that name; ValueError when there is none."""
        if name not in schemas.STRATEGIES:
            raise ValueError(f"PromptGroupSampler: strategy must be one of {schemas.STRATEGIES}, got {name!r}.")
        return cls(schemas.STRATEGIES.index(name))
