"""Where a buffer lives: in the process that made it. The arguments that would put it elsewhere are checked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIRECT = "direct"
_BACKENDS = (DIRECT, "ray")
_TRANSPORTS = ("auto", DIRECT)


def checked_backend(
    call: str,
    use_ray_service: bool,
    service_backend: str | None,
    service_backend_options: Mapping[str, Any] | None,
    transport: str,
    transport_options: Mapping[str, Any] | None,
) -> str:
    """The backend, ``"direct"``. ValueError for arguments that are unknown or contradict each other, RuntimeError for a
    backend that torchrb does not have.
    """
    if not isinstance(use_ray_service, bool):
        raise TypeError(f"{call}: use_ray_service must be True or False, got {use_ray_service!r}.")
    if use_ray_service and service_backend not in (None, "ray"):
        raise ValueError(
            f"{call}: use_ray_service=True means service_backend='ray', got service_backend={service_backend!r}. "
            "Give one of them."
        )
    backend = "ray" if use_ray_service else DIRECT if service_backend is None else service_backend
    if backend not in _BACKENDS:
        raise ValueError(f"{call}: service_backend must be 'direct' or 'ray', got {backend!r}.")
    if backend == "ray":
        raise NotImplementedError(
            f"{call}: a buffer owned by a ray actor is not there yet. Construct it in the process that owns it "
            "(service_backend='direct'); shared=True lets other processes of the same machine use it."
        )
    if service_backend_options is not None:
        raise ValueError(
            f"{call}: service_backend_options are for a remote owner, and service_backend='direct' has none. Leave "
            "them out."
        )
    if transport not in _TRANSPORTS:
        raise ValueError(
            f"{call}: transport must be 'auto' with service_backend='direct', as nothing is transported, got "
            f"{transport!r}."
        )
    if transport_options:
        raise ValueError(
            f"{call}: transport_options are for a remote owner, and service_backend='direct' has none. Leave them out."
        )
    return DIRECT
