"""The thread that draws ahead for a buffer, and the calls that look whether it was right."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any

from torchrb.prefetch.line import Batch, Line
from torchrb.prefetch.scene import Draw, Marks, Scene, Source, any_on_gpu, can_be_handed_over, generator_of
from torchrb.storages.transfer import pinned

_EXIT_PATIENCE = 1.0  # seconds that the end of the process waits for threads that are in the middle of a batch


class Prefetcher:
    """The early batches of one buffer.

    ``depth``: how many are asked for ahead. ``pin``: batches are put into pinned memory, where there is a GPU.
    """

    def __init__(self, depth: int, pin: bool) -> None:
        self.depth, self.pin = depth, pin
        self.num_early = 0  # batches that were handed over as they were drawn ahead
        self._start_anew()

    def _start_anew(self) -> None:
        self._line: Line | None = None
        self._orders: SimpleQueue[Line | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = not self.depth
        _PREFETCHERS.add(self)

    def anew(self) -> Prefetcher:
        """One like this for another buffer: what was drawn ahead stays here."""
        return Prefetcher(self.depth, self.pin)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, (self.depth, self.pin)

    @property
    def pending(self) -> int:
        """Batches that were asked for and not yet handed over, drawn or not."""
        return 0 if self._stopped or self._line is None else self.depth

    def drop(self) -> None:
        """Forget what was drawn ahead."""
        line, self._line = self._line, None
        if line is not None:
            line.over = True

    def stop(self, timeout: float | None = None) -> None:
        """Draw nothing ahead from now on, and wait for the thread to end, at most ``timeout`` seconds."""
        self._stopped = True
        self.drop()
        thread = self._thread
        if thread is not None:
            self._orders.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout)

    def finished(self, data: Any) -> Any:
        """A sample as it is handed over."""
        return pinned(data) if self.pin else data

    def batch(self, source: Source, num: int) -> tuple[Any, Draw]:
        """What `sample` returns, with the draw it came from."""
        scene = source._scene(num)
        storage, sampler = scene.storage, scene.sampler
        early, line, batch = self._draws_ahead(scene), None, None
        inside = early and storage.lock._is_owned()
        with storage.lock:
            if early:
                line = self._line
                # Who keeps the lock cannot wait for a transform, which may want it.
                if line is not None and not (inside and line.batches and not line.batches[0].ready.is_set()):
                    batch = line.next_for(scene, generator_of(source))
            if batch is None:
                self.drop()
                draw = source._draw(storage, sampler, num, source.generator)
        if line is not None and batch is not None:
            self._order(line, 1 if line.trusted else self.depth)
            line.trusted = True
            self.num_early += 1
            sampler.notice(batch.draw.drawn)
            return self._taken(source, scene, line, batch), batch.draw
        sampler.notice(draw.drawn)
        if not early:
            return self.finished(source._answer(scene.collate, draw)), draw
        return self._drawn_now(source, scene, draw), draw

    def _draws_ahead(self, scene: Scene) -> bool:
        """Whether there may be early batches; not for transforms that run ahead themselves."""
        return (
            not self._stopped
            and scene.storage.device.type == "cpu"
            and (self._thread is not threading.current_thread())
        )

    def _taken(self, source: Source, scene: Scene, line: Line, batch: Batch) -> Any:
        if not line.transforms:
            return self.finished(source._answer(scene.collate, batch.draw))
        batch.ready.wait()
        if batch.error is None:
            return batch.data
        error, batch.error = batch.error, None
        try:
            raise error
        finally:
            del error  # which knows this frame

    def _drawn_now(self, source: Source, scene: Scene, draw: Draw) -> Any:
        """A batch that its call has drawn, transformed. It is seen what transforms do, and the next one is ordered."""
        on_gpu, before = any_on_gpu(draw.data), Marks.of(source, scene)
        data = source._answer(scene.collate, draw)
        behind = Marks.of(source, scene)
        others_draw = source.generator is None and not before.same(behind._replace(modules=before.modules))
        if not on_gpu and not others_draw and generator_of(source).device.type == "cpu":
            self._begin(source, scene, before.same(behind) and not any_on_gpu(data))
        return self.finished(data)

    def _begin(self, source: Source, scene: Scene, transforms: bool) -> None:
        """A new line, of batches like the one that was just drawn."""
        with scene.storage.lock:
            fork = scene.sampler.fork(scene.storage)
            if fork is None or self._stopped:
                return
            self.drop()
            line = Line(source, scene, fork, transforms and can_be_handed_over(scene.modes), self.pin)
            _LINES.add(line)
            self._line = line
        self._order(line, 1)  # more when the first one turns out to be of use

    def _order(self, line: Line, num: int) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._stopped:
                    thread = threading.Thread(target=_serve, args=(self._orders,), name="torchrb-prefetch", daemon=True)
                    weakref.finalize(self, self._orders.put, None)
                    thread.start()
                    self._thread = thread
        for _ in range(num):
            self._orders.put(line)


def _serve(orders: SimpleQueue[Line | None]) -> None:
    """The thread. It knows lines and no buffer, so that a buffer nobody has goes at once, and the thread with it."""
    while True:
        line = orders.get()
        if line is None:
            return
        line.advance()
        del line


# --- the end of the process, and its forks

_PREFETCHERS: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
_LINES: weakref.WeakSet[Line] = weakref.WeakSet()
_kept: list[Any] = []  # locks, while the process forks


def _end() -> None:
    ending = [prefetcher for prefetcher in list(_PREFETCHERS) if prefetcher._thread is not None]
    for prefetcher in ending:
        prefetcher.stop(0)
    deadline = time.monotonic() + _EXIT_PATIENCE
    for prefetcher in ending:
        prefetcher.stop(max(0.0, deadline - time.monotonic()))


def _before_fork() -> None:
    """No thread may be in the middle of a draw: the child would inherit a lock that nobody gives back. Where processes
    share a storage its lock begins anew in the child.
    """
    for line in list(_LINES):
        if not line.scene.storage.shared:
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
