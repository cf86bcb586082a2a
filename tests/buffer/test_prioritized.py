"""Buffers with priorities are configurations of the others."""

from __future__ import annotations

import pickle

import pytest
import torch

from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

KINDS = (PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer)


@pytest.mark.parametrize("kind", KINDS)
def test_they_have_the_sampler_asked_for(kind):
    rb = kind(alpha=0.7, beta=0.9, eps=0.1, storage=LazyTensorStorage(7), batch_size=3)
    assert repr(rb.sampler) == "PrioritizedSampler(alpha=0.7, beta=0.9, eps=0.1, reduction=max)"
    assert rb.sampler.max_capacity == rb.storage.max_size == 7 and rb.batch_size == 3
    assert isinstance(kind(alpha=1.0, beta=1.0).storage, ListStorage)
    assert kind(alpha=1.0, beta=1.0, storage=lambda: LazyTensorStorage(7)).storage.max_size == 7


def test_they_are_the_buffers_they_are_made_of():
    plain = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, dtype=torch.float64)
    assert isinstance(plain, ReplayBuffer) and plain.sampler.dtype == torch.float64
    rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, priority_key="p", reduction="min")
    assert isinstance(rb, TensorDictReplayBuffer) and isinstance(rb.writer, TensorDictRoundRobinWriter)
    assert rb.priority_key == "p" and rb.sampler.reduction == "min"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_of_ones_own_is_taken(kind):
    own = PrioritizedSampler(1000, 0.3, 0.3)
    assert kind(alpha=1.0, beta=1.0, sampler=own).sampler is own


@pytest.mark.parametrize("kind", KINDS)
def test_alpha_and_beta_have_to_be_said(kind):
    with pytest.raises(TypeError, match="alpha"):
        kind(beta=1.0)
    with pytest.raises(ValueError, match="beta must be"):
        kind(alpha=1.0, beta=-1.0)


def test_a_shared_one_goes_to_another_process_with_new_priorities_only():
    rb = PrioritizedReplayBuffer(alpha=0.5, beta=1.0, storage=LazyTensorStorage(4), batch_size=2)
    rb.extend(torch.arange(2))
    rb.update_priority([0], [9.0])
    again = pickle.loads(pickle.dumps(rb.sampler))
    assert again.priorities(rb.storage).tolist() == [1.0, 1.0, -1.0, -1.0] and again.alpha == 0.5
