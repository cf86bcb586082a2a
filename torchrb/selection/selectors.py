"""Which candidates of an oversampled group are stored and trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from tensordict import NestedKey, TensorDictBase, is_tensor_collection
from torch import Tensor

from torchrb import ops

CandidateStrategy = Literal["first", "uniform", "balanced"]

_UNBOUNDED = 1e300  # a bound farther out than this bounds nothing, and products with it would overflow


class MCAdvantageSelector:
    """Select ``group_size`` candidates of an oversampled Monte-Carlo group by their returns.

    A group whose returns are all alike has no advantage to learn from. With more candidates than the update needs, and
    bounds on the mean return, a subset can often be found that does.

    Args:
        strategy: ``"first"``: the first ``group_size`` candidates. ``"uniform"``: evenly spaced ranks of the candidates
            sorted by return, listed in that order. ``"balanced"``: the subset whose mean lies within
            ``keep_return_bounds`` and is closest to their middle, listed by index; without bounds, as ``"uniform"``.
        max_combinations: how many subsets ``"balanced"`` may score exactly for a group (candidates of equal return
            are alike and counted once).
        in_keys: the keys that the selector reads, ``["return"]`` by default; the built-in strategies read the first. A
            subclass may name others and override :meth:`select`.

    *Rule of "balanced"*: the mean closest to the middle of the interval, then the larger spread (sum of squared
    deviations), then the lexicographically first list of indices. The interval is exclusive; where a bound is infinite,
    its middle is taken up to the outermost return. Means are float64, compared up to the rounding of the returns' own
    dtype: float32 returns of 0.9 lie on a bound of 0.9, hence outside, and 0.4 with 0.6 ties with 0.5 twice.

    *More subsets than* ``max_combinations``: if the sorted returns, cut in two, have at most that many in both halves,
    closest mean and larger spread still hold. Else the choice is greedy, improved by swaps. A subset is always found if
    one exists among at most 40 candidates, or 256 of at most 8 distinct returns; beyond that, by best effort.

    *As many candidates as needed*: all of them, in order. *Non-finite returns*: never chosen by ``"balanced"`` with
    bounds (too few finite ones: nothing is chosen); chosen by ``"uniform"`` only after all finite ones; ``"first"``
    does not look at them, but no mean of theirs is within any bounds.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrb import MCAdvantageSelector
        >>> selector = MCAdvantageSelector()
        >>> candidates = TensorDict({"return": torch.tensor([0.0, 0.0, 0.0, 1.0])}, [4])
        >>> selector.select(candidates, group_size=2, keep_return_bounds=(0.1, 0.9))
        [0, 3]
        >>> index, found = selector.select_batch(torch.tensor([[0., 0, 0, 1], [0., 0, 0, 0]]), group_size=2,
        ...                                      keep_return_bounds=(0.1, 0.9))
        >>> index[found].tolist(), found.tolist()
        ([[0, 3]], [True, False])
    """

    def __init__(
        self,
        strategy: CandidateStrategy = "balanced",
        *,
        max_combinations: int = 100_000,
        in_keys: list[NestedKey] | None = None,
    ) -> None:
        if strategy not in get_args(CandidateStrategy):
            raise ValueError(
                f"MCAdvantageSelector: strategy must be one of 'first', 'uniform' or 'balanced', got {strategy!r}."
            )
        if not _is_int(max_combinations) or max_combinations < 1:
            raise ValueError(
                f"MCAdvantageSelector: max_combinations must be an int of at least 1, got {max_combinations!r}."
            )
        if in_keys is not None and (isinstance(in_keys, str) or len(in_keys) == 0):
            raise ValueError(
                f"MCAdvantageSelector: in_keys must be a list of at least one key, got {in_keys!r}. "
                "Leave it out to read 'return'."
            )
        self.strategy = strategy
        self.max_combinations = max_combinations
        self.in_keys: list[NestedKey] = ["return"] if in_keys is None else list(in_keys)

    def select(
        self,
        candidates: TensorDictBase,
        *,
        group_size: int,
        keep_return_bounds: tuple[float, float] | None = None,
    ) -> list[int] | None:
        """Select candidates of one group.

        Args:
            candidates: one entry a candidate, batch size ``[n]``. The first of ``in_keys`` holds one number each,
                ``[n]`` or ``[n, 1]``, of any real dtype.
            group_size: how many to select, at least 1 and at most ``n``.
            keep_return_bounds: the exclusive interval, ``low < high``, in which the mean of the selected returns must
                lie.

        Returns:
            ``group_size`` distinct indices, or None if no subset was found whose mean lies within the bounds: the
            group should be skipped.

        Raises:
            KeyError: the key is missing.
            ValueError: there is not one number for each candidate, too few candidates, or a bad size or interval.
        """
        returns = self._returns(candidates)
        index, found = self.select_batch(
            returns.unsqueeze(0), group_size=group_size, keep_return_bounds=keep_return_bounds
        )
        return index[0].tolist() if found else None

    def select_batch(
        self, returns: Tensor, *, group_size: int, keep_return_bounds: tuple[float, float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Select candidates of many groups at once.

        Args:
            returns: ``[groups, n]``, of any real dtype, on any device.
            group_size: as in :meth:`select`, which does the same for one group.
            keep_return_bounds: as in :meth:`select`.

        Returns:
            ``index``, int64 ``[groups, group_size]``, and ``found``, bool ``[groups]``; ``index`` is 0 where ``found``
            is False.

        Raises:
            ValueError: ``returns`` is not ``[groups, n]``, too few candidates, or a bad size or interval.
        """
        self._validate(returns, group_size)
        bounds = _read_bounds(keep_return_bounds)
        wide = returns.detach().to(torch.float64).contiguous()
        # The relative error of a return, or of the sums if that is larger.
        eps = torch.finfo(returns.dtype).eps if returns.is_floating_point() else 0.0
        rounding = max(eps, group_size * 2.0**-52)

        groups, n = wide.shape
        if self.strategy == "balanced" and bounds is not None and group_size < n:
            return ops.balanced_subset(wide, group_size, *bounds, self.max_combinations, rounding)
        if self.strategy == "first" or group_size == n:
            index = torch.arange(group_size, device=wide.device).expand(groups, -1).contiguous()
        else:
            index = _uniform(wide, group_size)
        if bounds is None:
            return index, torch.ones(groups, dtype=torch.bool, device=wide.device)
        # Of exactly as many candidates as needed the op can only choose all, if it accepts their mean.
        _, found = ops.balanced_subset(wide.gather(1, index), group_size, *bounds, 1, rounding)
        return torch.where(found[:, None], index, 0), found

    def _returns(self, candidates: TensorDictBase) -> Tensor:
        """One return for each candidate, ``[n]``, on the CPU: the answer is a list."""
        key = self.in_keys[0]
        if not is_tensor_collection(candidates):
            raise TypeError(
                f"{type(self).__name__}.select: candidates must be a tensordict with {key!r}, got "
                f"{type(candidates).__name__}. select_batch takes tensors."
            )
        returns = candidates.get(key, None)
        if returns is None:
            raise KeyError(
                f"{type(self).__name__}.select: candidates have no {key!r}, which in_keys names; they have "
                f"{sorted(map(str, candidates.keys(True, True)))}."
            )
        shape, batch = tuple(getattr(returns, "shape", ())), tuple(candidates.batch_size)
        if not isinstance(returns, Tensor) or len(batch) != 1 or shape[:1] != batch or returns.numel() != batch[0]:
            raise ValueError(
                f"{type(self).__name__}.select: {key!r} must hold one number for each candidate, expected candidates "
                f"of batch size [n] and shape [n] or [n, 1], got batch size {list(batch)} and shape {list(shape)}."
            )
        return returns.reshape(-1).cpu()

    def _validate(self, returns: Tensor, group_size: int) -> None:
        name = type(self).__name__
        if returns.ndim != 2:
            raise ValueError(
                f"{name}: returns must have shape [groups, n], got {list(returns.shape)}. "
                "Reshape flat returns with .view(groups, n)."
            )
        if returns.is_complex():
            raise ValueError(f"{name}: returns must be real numbers, got {returns.dtype}.")
        if not _is_int(group_size) or group_size < 1:
            raise ValueError(f"{name}: group_size must be an int of at least 1, got {group_size!r}.")
        if returns.shape[1] < group_size:
            raise ValueError(
                f"{name}: group_size={group_size} needs at least {group_size} candidates, got {returns.shape[1]}."
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_bounds(bounds: Sequence[float] | None) -> tuple[float, float] | None:
    if bounds is None:
        return None
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not low < high:
        raise ValueError(
            "MCAdvantageSelector: keep_return_bounds must be two numbers, low < high, between which a mean can lie, "
            f"got {bounds!r}."
        )
    return (low if low > -_UNBOUNDED else -math.inf), (high if high < _UNBOUNDED else math.inf)


def _uniform(returns: Tensor, group_size: int) -> Tensor:
    """Evenly spaced ranks of each group's finite returns, ``[groups, group_size]``; the others only after them."""
    finite = torch.isfinite(returns)
    # Stable, least significant key first: finite ones in front, by value, equal ones as they came.
    by_value = torch.where(finite, returns, 0.0).argsort(dim=1, stable=True)
    order = by_value.gather(1, (~finite).gather(1, by_value).to(torch.uint8).argsort(dim=1, stable=True))
    num_finite = finite.sum(1, keepdim=True)
    step = torch.arange(group_size, dtype=torch.float64, device=returns.device)
    if group_size == 1:
        ranks = num_finite // 2
    else:
        ranks = torch.round(step * (num_finite - 1) / (group_size - 1)).to(torch.int64)
    return order.gather(1, torch.where(num_finite >= group_size, ranks, step.to(torch.int64)))
