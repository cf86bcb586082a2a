"""A buffer lives in the process that makes it; whoever asks for another place is told."""

from __future__ import annotations

import pytest

from torchrb import ReplayBuffer, TensorDictReplayBuffer


@pytest.mark.parametrize(
    "arguments",
    [{}, {"service_backend": "direct"}, {"transport": "direct", "transport_options": {}}, {"use_ray_service": False},
     {"service_backend": None, "service_backend_options": None, "transport": "auto", "transport_options": None}],
)  # fmt: skip
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_direct(kind, arguments):
    assert kind(**arguments).service_backend == "direct"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"service_backend": "thread"}, ValueError, "service_backend must be 'direct' or 'ray', got 'thread'"),
        ({"service_backend": "ray"}, RuntimeError, "not there yet.*service_backend='direct'.*shared=True"),
        ({"use_ray_service": True}, RuntimeError, "not there yet"),
        ({"use_ray_service": True, "service_backend": "direct"}, ValueError, "use_ray_service=True means .*'ray'"),
        ({"use_ray_service": 1}, TypeError, "use_ray_service must be True or False, got 1"),
        ({"service_backend_options": {}}, ValueError, "service_backend_options are for a remote owner"),
        ({"transport": "distributed"}, ValueError, "transport must be 'auto'.*got 'distributed'"),
        ({"transport_options": {"backend": "gloo"}}, ValueError, "transport_options are for a remote owner"),
    ],
)
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_elsewhere(kind, arguments, error, message):
    made = []
    with pytest.raises(error, match=f"^{kind.__name__}: .*{message}"):
        kind(storage=lambda: made.append(1), **arguments)
    assert not made
