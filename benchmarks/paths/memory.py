"""What the group index of a full buffer costs in memory: how much more the process holds after the first group draw.

Asked of a fresh process, as whatever ran before would blur it. Freed memory is handed back first, so that what counts
is what stays.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
BOUND = 64.0


def bytes_a_row(rows: int, backend: str) -> float | None:
    """Bytes of resident memory a row that the first group draw leaves behind; None where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.paths.memory", str(rows)],
        cwd=_ROOT,
        env={**os.environ, "TORCHRB_BACKEND": backend},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(answer.stdout.split()[-1])


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measure(rows: int) -> float:
    from benchmarks.buffers import ours_filled
    from benchmarks.workloads import GROUP_DRAW, W2

    ours_filled(W2, 4096, strategy="recency").buffer.sample(GROUP_DRAW)  # what is loaded once is no part of it
    full = ours_filled(W2, rows, strategy="recency")
    full.buffer.extend(full.ring.next())
    before = _resident()
    full.buffer.sample(GROUP_DRAW)
    return (_resident() - before) / rows


if __name__ == "__main__":
    print(_measure(int(sys.argv[1])))
