"""A line: batches in the order in which they will be asked for."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from torchrb.prefetch.scene import Draw, Scene, Source, generator_of, in_modes, modules_of
from torchrb.samplers.base import Sampler
from torchrb.storages.transfer import pinned


class Batch:
    """A batch of a line: where sampler and generator were before it and are behind it, and how far it is."""

    def __init__(self, draw: Draw, before: tuple[Any, Tensor], behind: tuple[Sampler, Tensor]) -> None:
        self.draw, self.before, self.behind = draw, before, behind
        self.ready = threading.Event()
        self.data: Any = None
        self.error: BaseException | None = None


class Line:
    """Early batches of one scene, and where the next one is drawn from.

    ``transforms``: whether these run ahead. ``pin``: whether batches then go into pinned memory. ``trusted``: whether a
    batch has been of use already. ``over``: nothing more is to be drawn. The rest changes only while the storage's lock
    is held, except for what becomes of a batch that was drawn.
    """

    def __init__(self, source: Source, scene: Scene, fork: Sampler, transforms: bool, pin: bool) -> None:
        self.source, self.scene, self.sampler = weakref.ref(source), scene, fork
        self.moment = scene.storage.moment()
        self.generator = torch.Generator()
        self.generator.set_state(generator_of(source).get_state())
        self.transforms, self.pin, self.modules = transforms, pin, modules_of(scene.steps)
        self.batches: deque[Batch] = deque()
        self.trusted = self.over = False

    def advance(self) -> None:
        """Draw the next batch; in the thread that draws ahead."""
        source = self.source()
        if source is None or self.over:
            return
        with self.scene.storage.lock:
            batch = self._drawn(source)
        if batch is None:
            return
        try:
            if self.transforms:
                batch.data = in_modes(self.scene.modes, lambda: source._answer(self.scene.collate, batch.draw))
                if self.pin:
                    batch.data = pinned(batch.data)
        except BaseException as error:  # it is raised where it belongs, by the call that asks for this batch
            batch.error = error
        finally:
            batch.ready.set()

    def _drawn(self, source: Source) -> Batch | None:
        """The next batch, as it was read; None where there is none: the call that asks for it will find out why."""
        storage = self.scene.storage
        if self.over or storage.moment() != self.moment:
            return None
        before = self.sampler.moment(storage), self.generator.get_state()
        try:
            fork = self.sampler.fork(storage)
            if fork is None:
                return None
            draw = in_modes(self.scene.modes[:1], lambda: source._draw(storage, fork, self.scene.num, self.generator))
        except BaseException:
            self.over = True
            return None
        batch = Batch(draw, before, (fork, self.generator.get_state()))
        self.sampler = fork
        self.batches.append(batch)
        return batch

    def next_for(self, scene: Scene, generator: torch.Generator) -> Batch | None:
        """The first batch, if it is what this draw would give: then the draw is done, and the batch is taken from the
        line. The caller holds the storage's lock.
        """
        storage = scene.storage
        if not self.batches or not self.scene.same(scene) or storage.moment() != self.moment:
            return None
        first = self.batches[0]
        sampler, numbers = first.before
        if sampler != scene.sampler.moment(storage) or not torch.equal(numbers, generator.get_state()):
            return None
        if self.transforms and not self.modules.same(modules_of(scene.steps)):
            return None
        scene.sampler.take_over(first.behind[0], storage)
        generator.set_state(first.behind[1])
        return self.batches.popleft()
