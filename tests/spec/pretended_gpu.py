"""A GPU that is not there: tensors that say they are on it, shapes without values, and nobody who may wait for it.

Inside `pretended_gpu` every tensor is a fake one (`torch._subclasses.fake_tensor`), so asking for a value is an error
wherever it is done. `NoWaits` adds what a fake tensor would let pass: copies between host and device that wait, and
ops whose result's shape depends on values. Streams and events are stand-ins that count, and refuse to be waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)


class Waited(AssertionError):
    """The host would have waited for the device here."""


class Event:
    """Of a device that is never done with anything."""

    def __init__(self, **_: Any) -> None:
        self.recorded = 0

    def record(self, stream: Any = None) -> None:
        self.recorded += 1

    def query(self) -> bool:
        assert not torch.cuda.is_current_stream_capturing(), "an event was asked in a capture, which ends it"
        return False

    def synchronize(self) -> None:
        raise Waited("an event was waited for")


class Stream:
    def __init__(self) -> None:
        self.waited_for: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waited_for.append(event)

    def synchronize(self) -> None:
        raise Waited("a stream was waited for")


class Pretence:
    """What is to be known of the pretended device: its current stream, and whether that one is being captured."""

    def __init__(self) -> None:
        self.stream, self.capturing = Stream(), False


class NoWaits(TorchDispatchMode):
    """`Waited` for every op that makes the host wait for the device, or for whose outcome it would have to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        by_places = func.overloadpacket is torch.ops.aten.index and all(t.dtype != torch.bool for t in given[1:])
        if tags and not by_places and any(tensor.is_cuda for tensor in given):
            raise Waited(f"{func} depends on values of the device")
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            target, source = (given[0], given[-1]) if len(given) > 1 else (kwargs.get("device") or given[0], given[0])
            target = target if isinstance(target, torch.device) else target.device
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            if (target.type == "cuda") != source.is_cuda and not non_blocking:
                raise Waited(f"{func} from {source.device} to {target} without non_blocking")
        return func(*args, **kwargs)


class ByOps(TorchFunctionMode):
    """Methods that make a device current before they call their op, which fails where torch has no such device."""

    _OPS = {
        torch.Tensor.contiguous: lambda x: (
            x if x.is_contiguous() else torch.ops.aten.clone(x, memory_format=torch.contiguous_format)
        ),
        torch.Tensor.nonzero: torch.ops.aten.nonzero,
        torch.Tensor.copy_: torch.ops.aten.copy_,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _at(*args)
        if func is torch.Tensor.__setitem__:
            return _put(*args)
        return self._OPS.get(func, func)(*args, **(kwargs or {}))


def _at(x: Tensor, index: Any) -> Tensor:
    dim, tensors = 0, []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, int):
            x = x.select(dim, part)
            continue
        if isinstance(part, slice):
            x = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step or 1)
        elif part.dtype == torch.bool:
            raise Waited("a mask is an index whose length depends on values")
        else:
            tensors += [None] * (dim - len(tensors)) + [part]
        dim += 1
    return torch.ops.aten.index(x, tensors) if tensors else x


def _put(x: Tensor, index: Any, value: Any) -> None:
    if isinstance(index, Tensor):
        if index.dtype == torch.bool:
            raise Waited("a mask is an index whose length depends on values")
        x.index_put_((index,), torch.as_tensor(value, device=x.device))
    elif isinstance(value, Tensor):
        _at(x, index).copy_(value)
    else:
        _at(x, index).fill_(value)


@contextmanager
def pretended_gpu() -> Iterator[Pretence]:
    """Make ``device="cuda"`` mean the pretended one. What is made inside stays inside."""
    pretence = Pretence()
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), ByOps():
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: pretence.stream)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: pretence.capturing)
        patch.setattr(torch.cuda, "synchronize", Event.synchronize)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        yield pretence
