"""How a buffer begins and ends, and how it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchrb.buffer.parts import _GIVEN_UP, Parts
from torchrb.services.ray import remote_class
from torchrb.storages import Storage

if TYPE_CHECKING:
    from typing import Self


class LifeCycle(Parts):
    """From the constructor to `shutdown`, with counters for whoever watches.

    A buffer in the process that made it is there at once and needs neither `start` nor `client`; they are for code that
    is written for remote buffers too.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=lambda: LazyTensorStorage(10), delayed_init=True).start()
    >>> rb.initialized, rb.is_alive
    (False, True)
    >>> _ = rb.client().extend(torch.arange(5))
    >>> rb.initialized
    True
    >>> rb.shutdown()
    >>> rb.is_alive, len(rb)
    (False, 5)
    >>> rb.add(torch.tensor(5))
    Traceback (most recent call last):
        ...
    RuntimeError: ReplayBuffer: this buffer was shut down. Its storage is as it was: make a new buffer with \
storage=rb.storage.
    """

    @property
    def initialized(self) -> bool:
        """Whether storage, sampler and writer are made: False until the first use after ``delayed_init``."""
        return self._given is None

    @property
    def is_alive(self) -> bool:
        """Whether the buffer can be used: True until `shutdown`."""
        return not self._shut_down

    @property
    def service_backend(self) -> str:
        """Who owns the buffer: ``"direct"``, the process that made it."""
        return self._service_backend

    def start(self) -> Self:
        """This buffer, which has started already. RuntimeError once it is shut down."""
        if self._shut_down:
            raise RuntimeError(f"start: this {type(self).__name__} was shut down, for good. Make a new one.")
        return self

    def client(self) -> Self:
        """This buffer: where it lives it needs nobody to speak for it."""
        return self

    def shutdown(self, timeout: float | None = None) -> None:
        """Give the buffer up. Writing, drawing and reading with it is a RuntimeError from now on; its storage, which
        other buffers may use, and `stats` stay. So a ``scratch_dir`` is free again only when nothing refers to its
        storage any more.

        Batches that were drawn ahead are forgotten, and their thread ends; ``timeout``: seconds to wait for the batch
        that it is at, None for as long as that takes. A second call does nothing.
        """
        with self._lock:
            self._shut_down = True
            for name in _GIVEN_UP:
                self.__dict__.pop(name, None)
        if self._early is not None:
            self._early.stop(timeout)

    @classmethod
    def as_remote(cls, remote_config: Mapping[str, Any] | None = None) -> Any:
        """This class for ray: ``ReplayBuffer.as_remote().remote(storage=...)`` makes a buffer in an actor of its own,
        whose methods are called as ``ray.get(actor.sample.remote(32))``.

        ``remote_config``: options of `ray.remote`; default: one CPU core. Give what makes the storage, as
        ``lambda: LazyTensorStorage(1000)``: storages are not copied to other processes. ImportError without ray.
        """
        return remote_class(cls, remote_config, f"{cls.__name__}.as_remote")

    def stats(self) -> dict[str, int | float | bool]:
        """Counters, cheap and serializable: ``size``, ``write_count``, ``prefetch_queue_size`` (batches asked for
        ahead, not handed over yet), ``initialized``; ``capacity`` and ``utilization`` when the storage is bounded; with
        a `PromptGroupSampler` also ``num_groups`` and ``num_singleton_groups``. A buffer that is still to be made
        (``delayed_init``) stays so, and tells its capacity where it was given a storage and no constructor.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10))
        >>> _ = rb.extend(torch.arange(5))
        >>> snapshot = rb.stats()
        >>> print(snapshot["size"], snapshot["write_count"], snapshot["capacity"])
        5 5 10
        """
        given = self._given
        if given is not None:
            storage = given.storage
            return _counters(0, 0, 0, False) | (_filled(storage, 0) if isinstance(storage, Storage) else {})
        storage, early = self._storage, self._early
        with storage.lock:
            size = len(self)
            writes = self.write_count if self.is_alive else storage.write_count
            counters = _counters(size, writes, 0 if early is None else early.pending, True)
            return counters | _filled(storage, size) | self._sampler.stats(self._drawn_from)


def _counters(size: int, write_count: int, pending: int, initialized: bool) -> dict[str, int | float | bool]:
    return {"size": size, "write_count": write_count, "prefetch_queue_size": pending, "initialized": initialized}


def _filled(storage: Storage, size: int) -> dict[str, int | float | bool]:
    if not getattr(storage, "bounded", True):
        return {}
    return {"capacity": storage.max_size, "utilization": size / storage.max_size}
