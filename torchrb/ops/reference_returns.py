"""The plain-torch twins of the ops that turn a group's returns into a choice and into gradients."""

from __future__ import annotations


def balanced_subset(returns, group_size, low, high, max_combinations):
    raise NotImplementedError


def group_advantage(returns, kind, epsilon):
    raise NotImplementedError
