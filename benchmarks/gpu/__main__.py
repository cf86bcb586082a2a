"""``python -m benchmarks.gpu``: measure torchrb on a GPU, print the table, and write gpu.md and gpu.json.

``--only`` takes shell patterns of row ids (see ``--list``). ``--device cpu`` tries everything out at tiny sizes, where
there is no GPU; that says nothing about speed. Exit status 1 when a result was wrong, 2 where no GPU is visible.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import torch

from benchmarks.gpu import measuring, report
from benchmarks.gpu.rows import FULL, TINY, rows

_RESULTS = Path(__file__).parents[1] / "results"
_COPIED = 1 << 30


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    parser.add_argument("--only", metavar="PATTERN", action="append", help="rows whose id matches, e.g. 'w2/*'")
    parser.add_argument("--out", type=Path, help="folder for gpu.md and gpu.json (default: benchmarks/results)")
    parser.add_argument("--list", action="store_true", help="print the ids of the rows")
    options = parser.parse_args(arguments)
    on_gpu = options.device.type == "cuda"
    sizes = FULL if on_gpu else TINY
    table = [row for row in rows(sizes) if not options.only or any(fnmatch(row.id, p) for p in options.only)]
    if options.list:
        print("\n".join(row.id for row in table))
        return 0
    if on_gpu and not torch.cuda.is_available():
        print("benchmarks.gpu: no GPU is visible, so nothing was measured. --device cpu tries it out.", file=sys.stderr)
        return 2

    start = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {what}", file=sys.stderr, flush=True)

    blocks, block_s = (15, 0.01) if on_gpu else (2, 0.001)
    say("copy bandwidth")
    bandwidth = measuring.copy_bandwidth(options.device, _COPIED if on_gpu else 1 << 16, blocks)
    results = []
    for row in table:
        say(row.title)
        results.append(measuring.run(row, options.device, bandwidth, blocks, block_s))
        if results[-1].wrong:
            say(f"WRONG: {results[-1].wrong}")
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    about = report.machine(options.device, bandwidth)
    text = report.markdown(about, results, judged=on_gpu)
    print(text)
    folder = options.out or (_RESULTS if on_gpu and not options.only else None)
    if folder is not None:
        report.write(folder, text, about, results, judged=on_gpu)
        say(f"written to {folder}")
    return 1 if any(result.wrong for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
