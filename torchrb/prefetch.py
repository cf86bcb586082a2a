"""Batches that are drawn before they are asked for, by a thread of their own.

An early answer and nothing else. Behind each call of `sample` a *line* of batches is begun: a copy of the generator and
a fork of the sampler run ahead, and with them a thread draws, reads and transforms what the next calls should get. A
call looks whether its batch is the one that it would draw itself now: the same parts, no write since, the sampler and
the generator where the thread supposed them. Then both are moved on as the draw would have done; otherwise the line is
given up, and the call draws. So the buffer is at every moment as it would be without all this.

What is the user's own, transforms and the merging of records, runs ahead only while that makes no difference: at each
batch that a call draws itself it is seen whether they took random numbers, changed their modules or moved the batch to
a GPU, and then they run at the call.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from torchrb.samplers.base import Sampler
from torchrb.storages.base import Storage
from torchrb.storages.transfer import pinned

_NOW = threading.Event()  # of a batch that its call transforms
_NOW.set()
_EXIT_PATIENCE = 1.0  # seconds that the end of the process waits for a thread that is in the middle of a batch


class Draw(NamedTuple):
    """A batch as it was read: the records, their slots and generations, and what the sampler tells of the draw."""

    data: Any
    info: dict[str, Tensor]
    drawn: Any


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

    def _answer(self, scene: Scene, draw: Draw) -> Any: ...


def modes_of(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    """The settings of this thread that a batch depends on; with transforms, that torch knows of, and else only that a
    read does.
    """
    inference = torch.is_inference_mode_enabled()
    if not steps:
        return (inference,)
    autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return inference, torch.is_grad_enabled(), autocast, torch.get_default_device()


def _modes_can_be_handed_over(modes: tuple[Any, ...]) -> bool:
    return len(modes) == 1 or (not any(modes[2]) and modes[3].type == "cpu")


class _Batch:
    """A batch of a line: where sampler and generator were before it and are behind it, and how far it is."""

    def __init__(self, draw: Draw, before: tuple[Any, Tensor], behind: tuple[Sampler, Tensor]) -> None:
        self.draw, self.before, self.behind = draw, before, behind
        self.ready = threading.Event()
        self.data: Any = None
        self.error: BaseException | None = None


class _Line:
    """Batches in the order in which they will be asked for, and where the next one is drawn from.

    All of it changes while the storage's lock is held, except for what becomes of a batch that was drawn.
    """

    def __init__(self, source: Source, scene: Scene, fork: Sampler, transforms: bool) -> None:
        self.source, self.scene, self.sampler = weakref.ref(source), scene, fork
        self.moment = scene.storage.moment()
        self.generator = torch.Generator()
        self.generator.set_state(_generator_of(source).get_state())
        self.transforms, self.modules = transforms, _modules(scene.steps)
        self.batches: deque[_Batch] = deque()
        self.trusted = self.over = False

    def advance(self) -> None:
        """Draw the next batch; on the line's thread. Where that fails the line ends: the call will find out why."""
        source, scene = self.source(), self.scene
        if source is None or self.over:
            return
        with scene.storage.lock:
            if self.over or scene.storage.moment() != self.moment:
                return
            before, fork = (self.sampler.moment(scene.storage), self.generator.get_state()), None
            try:
                fork = self.sampler.fork(scene.storage)
                if fork is not None:
                    with torch.inference_mode(scene.modes[0]):
                        draw = source._draw(scene.storage, fork, scene.num, self.generator)
            except BaseException:
                fork = None
            if fork is None:
                self.over = True
                return
            batch = _Batch(draw, before, (fork, self.generator.get_state()))
            self.sampler = fork
            self.batches.append(batch)
        try:
            if self.transforms:
                batch.data = self._transformed(source, draw)
        except BaseException as error:  # it is raised where it belongs, by the call that asks for this batch
            batch.error = error
        finally:
            batch.ready.set()

    def _transformed(self, source: Source, draw: Draw) -> Any:
        modes = self.scene.modes
        with torch.inference_mode(modes[0]):
            if len(modes) == 1:
                return source._answer(self.scene, draw)
            with torch.set_grad_enabled(modes[1]):
                return source._answer(self.scene, draw)

    def next_for(self, scene: Scene, generator: torch.Generator) -> _Batch | None:
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
        if self.transforms and self.modules != _modules(scene.steps):
            return None
        generator.set_state(first.behind[1])
        scene.sampler.follow(first.behind[0], storage)
        return self.batches.popleft()


class Prefetcher:
    """The early batches of one buffer.

    ``depth``: how many are asked for ahead. ``pin``: batches are put into pinned memory, where there is a GPU.
    """

    def __init__(self, depth: int, pin: bool) -> None:
        self.depth, self.pin = depth, pin
        self.num_early = 0  # batches that were handed over as they were drawn ahead
        self._start_anew()

    def _start_anew(self) -> None:
        self._line: _Line | None = None
        self._orders: SimpleQueue[_Line | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = not self.depth
        self._starting = threading.Lock()
        _PREFETCHERS.add(self)

    def anew(self) -> Prefetcher:
        """One like this for another buffer: what was drawn ahead stays here."""
        return Prefetcher(self.depth, self.pin)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, (self.depth, self.pin)

    @property
    def pending(self) -> int:
        """Batches that were asked for and not yet handed over, drawn or not."""
        return 0 if self._line is None else self.depth

    def drop(self) -> None:
        """Forget what was drawn ahead."""
        line, self._line = self._line, None
        if line is not None:
            with line.scene.storage.lock:
                line.over = True

    def stop(self, timeout: float | None = None) -> None:
        """Draw nothing ahead from now on, and wait for the thread to end, at most ``timeout`` seconds."""
        self._stopped = True
        self.drop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._orders.put(None)
            thread.join(timeout)

    def batch(self, source: Source, num: int) -> tuple[Any, Draw, Sampler]:
        """What `sample` returns, with the draw it came from and the sampler that drew it."""
        scene = source._scene(num)
        storage = scene.storage
        if self._stopped or threading.current_thread() is self._thread or storage.device.type != "cpu":
            with storage.lock:
                draw = source._draw(storage, scene.sampler, num, source.generator)
            scene.sampler.notice(draw.drawn)
            return self.finished(source._answer(scene, draw)), draw, scene.sampler
        inside = storage.lock._is_owned()
        with storage.lock:
            line = self._line
            batch = None if line is None else line.next_for(scene, _generator_of(source))
            if batch is None:
                self.drop()
                draw = source._draw(storage, scene.sampler, num, source.generator)
            elif inside and not batch.ready.is_set():
                # Whoever keeps the lock cannot wait for a transform that may want it; the records are as they were.
                data, _ = storage.read(batch.draw.info["index"])
                batch.draw, batch.ready = batch.draw._replace(data=data), _NOW
        if batch is None:
            scene.sampler.notice(draw.drawn)
            return self._drawn_now(source, scene, draw), draw, scene.sampler
        return self._drawn_ahead(source, scene, line, batch), batch.draw, scene.sampler

    def _drawn_ahead(self, source: Source, scene: Scene, line: Any, batch: _Batch) -> Any:
        self._order(line, 1 if line.trusted else self.depth)
        line.trusted = True
        self.num_early += 1
        scene.sampler.notice(batch.draw.drawn)
        if not line.transforms or batch.ready is _NOW:
            return self.finished(source._answer(scene, batch.draw))
        batch.ready.wait()
        if batch.error is None:
            return self.finished(batch.data)
        error, batch.error = batch.error, None
        try:
            raise error
        finally:
            del error  # which knows this frame

    def _drawn_now(self, source: Source, scene: Scene, draw: Draw) -> Any:
        on_gpu = _any_on_gpu(draw.data)
        before = _marks(source, scene)
        data = source._answer(scene, draw)
        moved = [mine != its for mine, its in zip(before, _marks(source, scene), strict=True)]
        if not on_gpu and not (moved[0] and source.generator is None):
            self._begin(source, scene, not any(moved) and not _any_on_gpu(data))
        return self.finished(data)

    def _begin(self, source: Source, scene: Scene, transforms: bool) -> None:
        """A new line, of batches like the one that was just drawn."""
        if _generator_of(source).device.type != "cpu":
            return
        with scene.storage.lock:
            fork = scene.sampler.fork(scene.storage)
            if fork is None or self._stopped:
                return
            transforms = transforms and _modes_can_be_handed_over(scene.modes)
            self.drop()
            line = self._line = _Line(source, scene, fork, transforms)
        self._order(line, 1)  # more when the first one turns out to be of use

    def _order(self, line: _Line, num: int) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(
                        target=_serve, args=(self._orders,), name="torchrb-prefetch", daemon=True
                    )
                    weakref.finalize(self, self._orders.put, None)
                    self._thread.start()
        for _ in range(num):
            self._orders.put(line)

    def finished(self, data: Any) -> Any:
        """A sample as it is handed over."""
        return pinned(data) if self.pin else data


def _serve(orders: SimpleQueue[_Line | None]) -> None:
    """The thread. It knows lines and no buffer, so that a buffer nobody has goes at once, and the thread with it."""
    while True:
        line = orders.get()
        if line is None:
            return
        line.advance()
        del line


def _generator_of(source: Source) -> torch.Generator:
    return torch.default_generator if source.generator is None else source.generator


def _marks(source: Source, scene: Scene) -> tuple[Any, ...]:
    """What transforms may move: torch's generator, the buffer's own, their modules."""
    states = [generator.get_state() for generator in (torch.default_generator, _generator_of(source))]
    return (*(state.numpy().tobytes() for state in states), _modules(scene.steps))


def _modules(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    """What modules among the transforms are made of; another tuple when any of it was changed or exchanged."""
    modules = [module for step in steps if isinstance(step, nn.Module) for module in step.modules()]
    tensors = [tensor for module in modules for part in (module._parameters, module._buffers) for tensor in
               part.values() if tensor is not None]  # fmt: skip
    return (
        *((id(module), module.training) for module in modules),
        *((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in tensors),
    )


def _any_on_gpu(data: Any) -> bool:
    return torch.cuda.is_initialized() and any(
        leaf.is_cuda for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)
    )


# --- the end of the process, and its forks

_PREFETCHERS: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
_kept: list[Any] = []  # locks, while the process forks


def _end() -> None:
    for prefetcher in list(_PREFETCHERS):
        prefetcher.stop(_EXIT_PATIENCE)


def _before_fork() -> None:
    """No thread may be in the middle of a draw: the child would inherit a lock that nobody gives back. Where processes
    share a storage its lock begins anew in the child.
    """
    for prefetcher in list(_PREFETCHERS):
        line = prefetcher._line
        if line is not None and not line.scene.storage.shared:
            line.scene.storage.lock.acquire()
            _kept.append(line.scene.storage.lock)


def _give_back() -> None:
    while _kept:
        _kept.pop().release()


def _in_child() -> None:
    _give_back()
    for prefetcher in list(_PREFETCHERS):
        prefetcher._start_anew()


atexit.register(_end)
os.register_at_fork(before=_before_fork, after_in_parent=_give_back, after_in_child=_in_child)
