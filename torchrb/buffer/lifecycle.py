"""How a buffer is doing."""

from __future__ import annotations

from torchrb.buffer.parts import Parts


class LifeCycle(Parts):
    """Counters for whoever watches a buffer."""

    def stats(self) -> dict[str, int | float | bool]:
        """Counters, cheap and serializable: ``size``, ``write_count``, ``prefetch_queue_size``, ``initialized``;
        ``capacity`` and ``utilization`` when the storage is bounded; with a `PromptGroupSampler` also ``num_groups``
        and ``num_singleton_groups``.

        >>> import torch
        >>> from torchrb import LazyTensorStorage, ReplayBuffer
        >>> rb = ReplayBuffer(storage=LazyTensorStorage(10))
        >>> _ = rb.extend(torch.arange(5))
        >>> snapshot = rb.stats()
        >>> print(snapshot["size"], snapshot["write_count"], snapshot["capacity"])
        5 5 10
        """
        storage = self._storage
        with storage.lock:
            counters: dict[str, int | float | bool] = {
                "size": len(self),
                "write_count": self.write_count,
                "prefetch_queue_size": 0,
                "initialized": True,
            }
            if getattr(storage, "bounded", True):
                counters["capacity"] = storage.max_size
                counters["utilization"] = counters["size"] / storage.max_size
            return counters | self._sampler.stats(self._drawn_from)
