"""Classes that ray instantiates in actors of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_CONFIG: Mapping[str, Any] = {"num_cpus": 1}


def remote_class(cls: type, config: Mapping[str, Any] | None, call: str) -> Any:
    """A class of which ``.remote(...)`` makes an instance in an actor; ``config``: options of `ray.remote`. ImportError
    without ray.
    """
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f"{call}: remote_config must be a dict of options of ray.remote, got {config!r}.")
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"{call}: needs ray, which is not installed. Run: pip install ray") from error
    return ray.remote(**(DEFAULT_CONFIG if config is None else config))(cls)
