"""`ReplayBuffer`: storage, writer and sampler wired together. Each of its sides has a file of its own in this room."""

from __future__ import annotations

from torchrb.buffer.lifecycle import LifeCycle
from torchrb.buffer.reading import Reading
from torchrb.buffer.writing import Writing


class ReplayBuffer(Writing, Reading, LifeCycle):
    """A replay buffer put together from a storage, a sampler and a writer.

    Keyword Args:
        storage: a `Storage`, or a callable that makes one. Default: ``ListStorage(1000)``.
        sampler: a `Sampler`, or a callable that makes one. Default: `RandomSampler`.
        sample_unit: a `SampleUnit`: what becomes of the records that the sampler selects. Default: they are the batch.
        writer: a `Writer`, or a callable that makes one. Default: `RoundRobinWriter`.
        collate_fn: what is done with the records that were read, before they are returned. Default: lists of records
            (`ListStorage`) are stacked where that is possible, other batches are returned as they are.
        transform: a callable on what is read; its method ``inv``, if any, on what is written. `Compose` chains several.
        transform_factory: instead of a transform, what makes it; called once, when a transform is first needed.
        batch_size: records in a sample; can be given to `sample` instead.
        generator: a `torch.Generator` to take seeds from; default: torch's global one.
        shared: several processes will use this buffer; see `share`.

    The same seed and the same history draw the same records, whatever backend serves them. Writing copies; what is
    returned belongs to the caller. Calls from several threads are safe.

    >>> import torch
    >>> from torchrb import ListStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=ListStorage(1000), batch_size=5)
    >>> rb.extend(range(10))
    tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> rb.sample().shape, rb.sample(3).shape
    (torch.Size([5]), torch.Size([3]))
    >>> for i, batch in enumerate(rb):
    ...     if i == 3:
    ...         break
    """
