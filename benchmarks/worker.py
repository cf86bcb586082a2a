"""torchrb's plain path, in a process of its own: which backend serves is decided once, at import.

The process is started with ``TORCHRB_BACKEND=reference`` and takes requests over a pipe, one at a time, so that its
calls take turns with those of the other contenders; while it waits it does nothing. The clock is read inside it: what
travels over the pipe is not timed.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

_ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """The other process. One row at a time is open in it."""

    def __init__(self, quick: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", "quick" if quick else "full"],
            cwd=_ROOT,
            env={**os.environ, "TORCHRB_BACKEND": "reference"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        _send(self._process.stdin, request)
        kind, answer = pickle.load(self._process.stdout)
        if kind == "error":
            raise RuntimeError(f"the reference process failed: {answer}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Remote:
    """torchrb's contender of a row, in the other process."""

    apart = True

    def __init__(self, worker: Worker, row_id: str) -> None:
        self._worker, self._row_id = worker, row_id

    def open(self) -> None:
        """Make it there."""
        self._worker.ask("open", self._row_id)

    def result(self) -> Any:
        return self._worker.ask("result")

    def timed(self) -> float:
        return self._worker.ask("timed")

    def close(self) -> None:
        self._worker.ask("close")


def plain(result: Any) -> Any:
    """A result as nested dicts and lists of arrays and numbers, for pickling and for comparing bit by bit."""
    import torch
    from tensordict import is_tensor_collection

    if isinstance(result, torch.Tensor):
        return result.numpy(force=True)
    if is_tensor_collection(result):
        return {key: plain(value) for key, value in sorted(result.items())}
    if isinstance(result, list | tuple):
        return [plain(item) for item in result]
    return result


def same(a: Any, b: Any) -> bool:
    """Whether two plain results are equal, bit by bit."""
    import numpy as np

    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def _send(stream: BinaryIO, message: Any) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _serve(requests: BinaryIO, answers: BinaryIO, quick: bool) -> None:
    import torch

    from benchmarks.paths import rows
    from benchmarks.workloads import FULL, QUICK

    torch.set_num_threads(1)
    gc.freeze()
    table = {row.id: row for row in rows(QUICK if quick else FULL)}
    contender = None
    while True:
        try:
            verb, *arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = None
            if verb == "open":
                contender = None  # free the old one before the new one is made
                contender = table[arguments[0]].ours()
            elif verb == "close":
                contender = None
            elif verb == "result":
                answer = plain(contender.result())
            else:
                answer = contender.timed()
            _send(answers, ("ok", answer))
        except Exception as error:  # the other side decides what a failure means
            _send(answers, ("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the answers
    _serve(sys.stdin.buffer, pipe, sys.argv[1] == "quick")
