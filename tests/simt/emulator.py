"""Calls the kernels of ``csrc/cuda``, built for the CPU, on tensors.

``load("group_advantage")`` gives what ``bind_group_advantage.cpp`` binds: in this process, on the tensors' own memory.
With a sanitizer it is a program of its own that gets copies and gives them back: a sanitizer's report ends that program
and is raised here as ``KernelFault``, as are the emulator's own findings.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from tests.simt.build import CSRC as CSRC
from tests.simt.build import HERE, build

ORDERS = ("forwards", "backwards", "random")
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:history_size=2:report_thread_leaks=0",
}


class KernelFault(AssertionError):
    """A kernel did what it must not; the message is the emulator's or the sanitizer's report."""


@dataclass(frozen=True)
class Schedule:
    """How threads and blocks take turns; the same schedule gives the same run."""

    order: str = "forwards"
    seed: int = 0
    resident: int = 1  # blocks that run at once
    preempt: bool = False  # whether a thread may lose its turn at atomics and fences

    def numbers(self) -> tuple[int, int, int, bool]:
        return ORDERS.index(self.order), self.seed, self.resident, self.preempt


# --- calling --------------------------------------------------------------------------------------------------------


class Emulated:
    """The launchers that one file binds, as methods: tensors for pointers, numbers, lists of either, None for null."""

    kinds: Mapping[str, str] = {}
    _schedule, _calls = Schedule(), 0

    @property
    def schedule(self) -> Schedule:
        """Of the next call. Each call after the first takes the next seed."""
        return replace(self._schedule, seed=self._schedule.seed + self._calls)

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._schedule, self._calls = schedule, 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in self.kinds:
            raise AttributeError(f"nothing is bound as {name!r}; bound are {sorted(self.kinds)}")
        kinds = self.kinds[name]

        def call(*arguments: Any) -> None:
            if len(arguments) != len(kinds):
                raise TypeError(f"{name} takes {len(kinds)} arguments ({kinds}), got {len(arguments)}")
            try:
                self._call(name, list(zip(kinds, arguments, strict=True)))
            except KernelFault as fault:
                raise KernelFault(f"{name} under {self.schedule}: {fault}") from None
            finally:
                self._calls += 1

        return call

    def _call(self, name: str, arguments: list[tuple[str, Any]]) -> None:
        raise NotImplementedError


class InProcess(Emulated):
    def __init__(self, library: Path) -> None:
        name = f"{library.stem}.emulated"  # one module a library: pybind11 keeps them by name
        loader = importlib.machinery.ExtensionFileLoader(name, str(library))
        spec = importlib.util.spec_from_file_location(name, library, loader=loader)
        assert spec is not None
        self._module = importlib.util.module_from_spec(spec)
        loader.exec_module(self._module)
        self.kinds = self._module.kinds()

    def _call(self, name: str, arguments: list[tuple[str, Any]]) -> None:
        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        values = [
            address(value) if kind == "p" else [address(t) for t in value] if kind == "l" else value
            for kind, value in arguments
        ]
        try:
            self._module.call(name, values, *self.schedule.numbers())
        except RuntimeError as error:
            raise KernelFault(str(error)) from None


class Sanitized(Emulated):
    """A program that is started when first called, and again after it has found something."""

    def __init__(self, program: Path) -> None:
        self._program, self._process = program, None
        self._start()

    def _start(self) -> None:
        self._report = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._report,
            env={**os.environ, **SANITIZER_OPTIONS},
        )  # fmt: skip
        atexit.register(self.close)
        self.kinds = {}
        for line in iter(lambda: self._pipe("stdout").readline(), b"\n"):
            if not line:
                raise KernelFault(self._last_words())
            name, _, kinds = line.decode().rstrip("\n").partition(" ")
            self.kinds[name] = kinds

    def _pipe(self, name: str) -> IO[bytes]:
        return getattr(self._process, name)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe("stdin").close()
            self._pipe("stdout").close()
            self._report.close()
            self._process = None
        atexit.unregister(self.close)

    def _last_words(self) -> str:
        assert self._process is not None
        status = self._process.wait()
        self._report.seek(0)
        text = self._report.read().decode(errors="replace")
        self.close()
        return f"the program ended with status {status}\n{text[:8000]}"

    def _call(self, name: str, arguments: list[tuple[str, Any]]) -> None:
        if self._process is None:
            self._start()
        memories: dict[int, tuple[int, Any]] = {}

        def place(tensor: Tensor | None) -> str:
            if tensor is None:
                return "-1 0"
            storage = tensor.untyped_storage()
            number, _ = memories.setdefault(storage._cdata, (len(memories), storage))
            return f"{number} {tensor.data_ptr() - storage.data_ptr() if tensor.numel() else 0}"

        words = []
        for kind, value in arguments:
            if kind == "p":
                words.append(f"p {place(value)}")
            elif kind == "l":
                words.append(" ".join([f"l {len(value)}", *map(place, value)]))
            elif kind == "n":
                words.append(" ".join([f"n {len(value)}", *map(str, value)]))
            else:
                words.append(f"r {float(value).hex()}" if kind == "r" else f"i {int(value)}")
        order, seed, resident, preempt = self.schedule.numbers()
        storages = [storage for _, storage in memories.values()]
        sizes = " ".join(f"{s.nbytes()} {s.data_ptr() % 64}" for s in storages)
        head = f"{name} {order} {seed} {resident} {int(preempt)} | {sizes} | {' '.join(words)}\n"
        try:
            self._pipe("stdin").write(head.encode())
            for storage in storages:
                self._pipe("stdin").write(_bytes_of(storage))
            self._pipe("stdin").flush()
        except BrokenPipeError:
            raise KernelFault(self._last_words()) from None
        answer = self._pipe("stdout").readline()
        if answer.startswith(b"fault"):
            message = self._pipe("stdout").read(int(answer.split()[1])).decode()
            raise KernelFault(message)
        if answer != b"ok\n":
            raise KernelFault(self._last_words())
        for storage in storages:
            _bytes_of(storage)[:] = self._pipe("stdout").read(storage.nbytes())


def _bytes_of(storage: Any) -> memoryview:
    return memoryview((ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr() or 1)).cast("B")


@functools.cache
def load(op: str, sanitizer: str | None = None) -> Emulated:
    """What ``bind_<op>.cpp`` binds, built when first asked for."""
    (source,) = HERE.rglob(f"bind_{op}.cpp")
    built = build(source, sanitizer)
    return InProcess(built) if sanitizer is None else Sanitized(built)
