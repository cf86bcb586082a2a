"""`ReplayBuffer`: storage, writer and sampler wired together. Each of its sides has a file of its own in this room."""

from __future__ import annotations

from torchrb.buffer.lifecycle import LifeCycle
from torchrb.buffer.reading import Reading
from torchrb.buffer.saving import Saving
from torchrb.buffer.writing import Writing


class ReplayBuffer(Writing, Reading, Saving, LifeCycle):
    """A replay buffer put together from a storage, a sampler and a writer.

    Keyword Args:
        storage: a `Storage`, or a callable that makes one. Default: ``ListStorage(1000)``.
        sampler: a `Sampler`, or a callable that makes one. Default: `RandomSampler`.
        sample_unit: a `SampleUnit`: what becomes of the records that the sampler selects. Default: they are the batch.
        writer: a `Writer`, or a callable that makes one. Default: `RoundRobinWriter`.
        collate_fn: what is done with the records that were read, before they are returned. Default: lists of records
            (`ListStorage`) are stacked where that is possible, other batches are returned as they are.
        pin_memory: samples lie in pinned memory, from where a GPU copies them without the host waiting; where torch
            finds no GPU they are as always.
        prefetch: how many samples a thread draws ahead, see below; needs ``batch_size``. Default: none.
        transform: a callable on what is read; its method ``inv``, if any, on what is written. `Compose` chains several.
        transform_factory: instead of a transform, what makes it; called once, when a transform is first needed.
        batch_size: records in a sample; can be given to `sample` instead.
        dim_extend: the dimension of a batch that its records lie along in `extend`; default: the last of the storage's,
            ``storage.ndim - 1``. See below.
        generator: a `torch.Generator` to take seeds from; default: torch's global one.
        consume_after_n_samples: how often a record is returned by `sample`; after that it is no longer drawn. None (the
            default): without end. See below.
        shared: several processes will use this buffer; see `share`.
        compilable: accepted for compatibility; such a buffer cannot be shared.
        delayed_init: make storage, sampler and writer when the buffer is first used. Until then it is pickled as what
            it was given: constructors that can be pickled go to another process, which makes parts of its own. Default:
            when a ``transform_factory`` is given and ``shared`` is not.
        service_backend, service_backend_options, transport, transport_options, use_ray_service: who owns the buffer:
            the process that makes it (``"direct"``, with nothing to be transported). Anything else is an error.

    Prefetching is an early answer and nothing else: samples are the same at any depth, and so is the buffer after each.
    Where something was written since a sample was drawn ahead, or anything else that it depends on has changed, it is
    drawn again when it is asked for. So it pays where several samples are drawn between two writes, and where nobody
    else takes numbers from the generator: give the buffer its own.

    Transforms (and ``collate_fn``) run ahead too, in order, in the one thread that draws, except for those that take
    random numbers, change the parameters or buffers of their modules, or leave the sample on a GPU; these run when it
    is asked for. Parameters that others change are those of the call, unless they are changed behind torch's back,
    through ``.data``. A transform that keeps a state of another kind is called ahead, and again for a sample that is
    drawn again. What a transform raises, the call raises that the sample is for.

    Nothing is drawn ahead with samplers that cannot tell what they would draw (`Sampler.fork`), with
    ``consume_after_n_samples``, where each sample decides what the next may choose from, and from storages on a GPU,
    where a draw waits for nothing.

    The same seed and the same history draw the same records, whatever backend serves them. Writing copies; what is
    returned belongs to the caller. Calls from several threads are safe.

    With ``consume_after_n_samples=n`` every record is returned n times at most, also within one batch, whichever
    sampler draws and however many threads do. Uniform draws are of distinct records then. A batch holds as many as are
    left, so the last ones may be smaller; where a sampler repeats records (a group that is short of them, prioritized
    draws), repeats beyond n are left out. `sample` raises a RuntimeError when nothing is left that the
    sampler can make a batch of (no whole slice, say), and iterating ends.
    ``len(rb)`` and the ``size`` of `stats` are the records that are left; ``rb[...]`` and ``rb.storage`` have all that
    are stored. A `RoundRobinWriter` writes new records over the used ones first, and over others only when there are
    none (with ``ndim > 1`` cells are counted, and the ring goes on as ever). The count belongs to the record: one that
    is written over it starts at 0, changing some of its fields leaves it, and a `sample` that raises has counted
    nothing. Each buffer counts for itself, in each process. A draw costs the batch and what was written since the last
    one, however full the buffer is; on a GPU the host waits for it.

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
    >>> once = ReplayBuffer(storage=ListStorage(1000), batch_size=4, consume_after_n_samples=1)
    >>> _ = once.extend(range(6))
    >>> [len(batch) for batch in once], len(once)
    ([4, 2], 0)

    **Several dimensions.** With ``LazyTensorStorage(n, ndim=2)`` a batch is, say, ``[B, T, ...]``: ``T`` records of
    ``B`` cells each, as ``dim_extend`` is 1. Draws, ``len`` and capacity count cells; the ring, generations and
    `write_count` records. In a sample ``"index"`` is a tuple of int64 tensors, (slot, place in the record, ...), or
    with tensordicts one tensor ``[n, ndim]``, which ``unbind(-1)`` makes a tuple; `extend` and `add` return such a
    one, a row for each cell. These are places in ``rb.storage``, which is ``[slots, cells]``: `set_`, `set_at_`,
    `update_`, `update_if_present` and ``writer.generations_of`` take them, and values like that. Only ``rb[...]`` and
    what it defines (``rb[...] =``, `read_all_in_order`, `write_all`) show data as it was extended, index and all:
    ``rb[b, t]`` is ``rb.storage[t, b]``, and its ``"index"`` says so.

    >>> from torchrb import LazyTensorStorage
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2), dim_extend=1)
    >>> data = torch.arange(12).view(3, 4)
    >>> for column in data.unbind(1):  # the same as rb.extend(data)
    ...     _ = rb.add(column)
    >>> rb.storage[:].shape, bool((rb[:] == data).all()), len(rb), rb.write_count
    (torch.Size([4, 3]), True, 12, 4)
    """
