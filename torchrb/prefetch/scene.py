"""What a batch depends on, and how it is seen that none of that has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from torchrb.samplers.base import Sampler
from torchrb.storages.base import Storage


@dataclass(slots=True)
class Draw:
    """A batch as it was read: the records, their slots and generations, what the sampler tells of the draw, and what is
    added to the records once they are merged (None: nothing).
    """

    data: Any
    info: dict[str, Any]
    sampler: Sampler
    drawn: Any
    marks: dict[Any, Any] | None = None


class Scene(NamedTuple):
    """What a draw depends on, besides the records and the numbers that the sampler and the generator keep."""

    storage: Storage
    collate: Callable[[Any], Any]
    sampler: Sampler
    steps: tuple[Callable[[Any], Any], ...]
    num: int
    tracks_generations: bool
    modes: tuple[Any, ...]

    def same(self, other: Scene) -> bool:
        """Whether this is still so. The parts are compared as objects: what they think equal is their own affair."""
        parts = zip(self[:4], other[:4], strict=True)
        return all(mine is its for mine, its in parts) and self[4:] == other[4:]


class Source(Protocol):
    """What draws: a buffer."""

    generator: torch.Generator | None

    def _scene(self, num: int) -> Scene: ...

    def _draw(self, storage: Storage, sampler: Sampler, num: int, generator: torch.Generator | None) -> Draw: ...

    def _answer(self, collate: Callable[[Any], Any], draw: Draw) -> Any: ...


def generator_of(source: Source) -> torch.Generator:
    """Where the seeds of a buffer on the CPU come from."""
    return torch.default_generator if source.generator is None else source.generator


# --- the settings of a thread


def modes_of(users_code: bool) -> tuple[Any, ...]:
    """The settings of this thread that a batch depends on: those that a read knows, and, where ``users_code`` is to run
    on it, those that torch has for that.
    """
    inference = torch.is_inference_mode_enabled()
    if not users_code:
        return (inference,)
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return inference, torch.is_grad_enabled(), autocast, torch.get_default_device()


def can_be_handed_over(modes: tuple[Any, ...]) -> bool:
    """Whether another thread can take these settings, see `in_modes`."""
    return len(modes) == 1 or (not modes[2] and modes[3].type == "cpu")


def in_modes(modes: tuple[Any, ...], function: Callable[[], Any]) -> Any:
    """What a function returns with these settings."""
    with torch.inference_mode(modes[0]):
        if len(modes) == 1:
            return function()
        with torch.set_grad_enabled(modes[1]):
            return function()


# --- what transforms are made of


class Modules(NamedTuple):
    """Modules among transforms, with their parameters and buffers, and how often each was written."""

    parts: tuple[Any, ...]
    numbers: tuple[int, ...]

    def same(self, other: Modules) -> bool:
        """Whether nothing was written or exchanged."""
        return (
            self.numbers == other.numbers
            and len(self.parts) == len(other.parts)
            and all(mine is its for mine, its in zip(self.parts, other.parts, strict=True))
        )


def modules_of(steps: tuple[Any, ...]) -> Modules:
    """As they are now. What is written through ``tensor.data`` torch does not count, so it is not seen here either."""
    modules = [module for step in steps if isinstance(step, nn.Module) for module in step.modules()]
    kept = [tensors for module in modules for tensors in (module._parameters, module._buffers)]
    tensors = [tensor for part in kept for tensor in part.values() if tensor is not None]
    versions = (0 if tensor.is_inference() else tensor._version for tensor in tensors)
    return Modules((*modules, *tensors), (*(module.training for module in modules), *versions))


class Marks(NamedTuple):
    """What transforms may move: torch's generator, that of the buffer, and their modules."""

    torch: Tensor
    buffer: Tensor
    modules: Modules

    @classmethod
    def of(cls, source: Source, scene: Scene) -> Marks:
        """As they are now."""
        return cls(torch.get_rng_state(), generator_of(source).get_state(), modules_of(scene.steps))

    def same(self, other: Marks) -> bool:
        """Whether nothing was moved."""
        return (
            torch.equal(self.torch, other.torch)
            and torch.equal(self.buffer, other.buffer)
            and self.modules.same(other.modules)
        )


def any_on_gpu(data: Any) -> bool:
    """Whether a batch has a tensor on a GPU."""
    return torch.cuda.is_initialized() and any(
        leaf.is_cuda for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)
    )
