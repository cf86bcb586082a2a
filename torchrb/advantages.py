"""Group-relative advantages."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchrb import ops
from torchrb.ops.schemas import ADVANTAGE_KINDS


def group_advantages(
    returns: Tensor,
    *,
    group_ids: Tensor | None = None,
    kind: Literal["std", "mean", "leave_one_out"] = "std",
    epsilon: float = 1e-8,
) -> Tensor:
    """How much better each rollout did than its group.

    Args:
        returns: ``[groups, n]``, one row a group; or ``[B]`` with ``group_ids``. Any real dtype.
        group_ids: integer (or bool) ``[B]``: which group each return belongs to. Groups may have any sizes and come in
            any order.
        kind: with the mean of the group and its unbiased standard deviation,
            ``"std"``: ``(return - mean) / (deviation + epsilon)`` (GRPO, arXiv 2402.03300);
            ``"mean"``: ``return - mean`` (Dr. GRPO, arXiv 2503.20783);
            ``"leave_one_out"``: ``return`` less the mean of the others (RLOO, arXiv 2402.14740).
        epsilon: keeps small deviations from blowing up the advantages; used by ``"std"`` alone.

    Returns:
        Advantages of the shape and dtype of ``returns`` (float32 for integers), without gradient. Computed in float64.

    *NaN and infinite returns* get 0, and the others' advantages are computed without them. *A constant group*, and a
    group with one finite return, is exactly 0.

    Raises:
        ValueError: flat returns without ``group_ids``, which are never taken for one group; a shape, dtype, kind or
            epsilon other than above.

    Example:
        >>> import torch
        >>> from torchrb import group_advantages
        >>> group_advantages(torch.tensor([[1.0, float("nan"), 0.0], [0.7, 0.7, 0.7]]))
        tensor([[ 0.7071,  0.0000, -0.7071],
                [ 0.0000,  0.0000,  0.0000]])
        >>> group_advantages(torch.tensor([4, 1, 2]), group_ids=torch.tensor([7, 3, 7]), kind="mean")
        tensor([ 1.,  0., -1.])
    """
    if kind not in ADVANTAGE_KINDS:
        raise ValueError(f"group_advantages: kind must be one of {ADVANTAGE_KINDS}, got {kind!r}.")
    if not epsilon >= 0:
        raise ValueError(f"group_advantages: epsilon must be a number of at least 0, got {epsilon!r}.")
    returns = torch.as_tensor(returns)
    if returns.is_complex():
        raise ValueError(f"group_advantages: returns must be real numbers, got {returns.dtype}.")
    returns = returns.detach()
    out_dtype = returns.dtype if returns.is_floating_point() else torch.float32
    # float32 is enough to hold a half exactly, and only float64 an integer.
    in_dtype = torch.float32 if returns.is_floating_point() and returns.dtype != torch.float64 else torch.float64
    place = ADVANTAGE_KINDS.index(kind)

    if group_ids is None:
        if returns.ndim != 2:
            raise ValueError(
                f"group_advantages: returns must have shape [groups, n], got {list(returns.shape)}. Flat returns need "
                "group_ids=, one for each, or .view(groups, n)."
            )
        return ops.group_advantage(returns.to(in_dtype).contiguous(), place, epsilon).to(out_dtype)

    if returns.ndim != 1 or group_ids.shape != returns.shape:
        raise ValueError(
            "group_advantages: with group_ids, returns and group_ids must both have shape [B], got "
            f"{list(returns.shape)} and {list(group_ids.shape)}."
        )
    if group_ids.is_floating_point() or group_ids.is_complex():
        raise ValueError(
            f"group_advantages: group_ids must be integers, got {group_ids.dtype}. "
            "torch.unique(..., return_inverse=True)[1] makes integers of any values."
        )
    if group_ids.device != returns.device:
        raise ValueError(
            "group_advantages: returns and group_ids must be on one device, got "
            f"{returns.device} and {group_ids.device}."
        )
    return _ragged(returns.to(in_dtype), group_ids, place, epsilon).to(out_dtype)


def _ragged(returns: Tensor, group_ids: Tensor, place: int, epsilon: float) -> Tensor:
    """Advantages of flat returns: groups of about one size are put side by side, filled up with NaN.

    One matrix for all of them would be as wide as the largest group, and could be much larger than the returns.
    """
    _, group, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    order = group.argsort(stable=True)
    member = torch.empty_like(group)  # each return's place in its group
    member[order] = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]]
    size_class = (sizes - 1).to(torch.float64).clamp(min=0.5).log2().floor().to(torch.int64)  # widths 2, 4, 8, ...

    advantages = torch.empty_like(returns)
    for exponent in size_class.unique().tolist():
        in_class = size_class == exponent
        rows = (torch.cumsum(in_class, 0) - 1)[group]
        here = in_class[group]
        dense = returns.new_full((int(in_class.sum()), int(sizes[in_class].max())), float("nan"))
        dense[rows[here], member[here]] = returns[here]
        advantages[here] = ops.group_advantage(dense, place, epsilon)[rows[here], member[here]]
    return advantages
