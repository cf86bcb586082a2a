"""What ray is asked for, with a stand-in for it: ray itself is no dependency, and a machine may not have it."""

from __future__ import annotations

import sys
import types

import pytest

from torchrb import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer


@pytest.fixture
def asked(monkeypatch):
    """What a stand-in for ray was asked for, as (options, class) pairs."""
    calls = []

    def remote(**options):
        def wrap(cls):
            calls.append((options, cls))
            return types.SimpleNamespace(remote=cls)

        return wrap

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(remote=remote))
    return calls


@pytest.mark.parametrize("cls", [ReplayBuffer, TensorDictReplayBuffer])
def test_the_class_itself_becomes_an_actor_with_the_options_given(asked, cls):
    made = cls.as_remote({"num_gpus": 1}).remote(storage=lambda: LazyTensorStorage(3))
    assert asked == [({"num_gpus": 1}, cls)] and type(made) is cls and made.storage.max_size == 3


def test_without_options_it_asks_for_a_core(asked):
    ReplayBuffer.as_remote()
    assert asked == [({"num_cpus": 1}, ReplayBuffer)]


def test_what_is_no_set_of_options_is_refused(asked):
    with pytest.raises(TypeError, match="remote_config must be a dict of options of ray.remote, got 2"):
        ReplayBuffer.as_remote(2)
    assert not asked


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="as_remote: needs ray, which is not installed. Run: pip install ray"):
        ReplayBuffer.as_remote()
