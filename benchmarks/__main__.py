"""``python -m benchmarks``: measure torchrb on this machine and print the table.

``--only`` takes shell patterns of row ids (see ``--list``); ``--quick`` runs everything at tiny sizes, which proves
that it works and says nothing about speed. Neither writes into the tracked results unless ``--out`` asks for it.
Exit status 1 when a result was wrong.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.paths import growth, left_out, memory, rows
from benchmarks.running import Runner
from benchmarks.workloads import FULL, QUICK

_RESULTS = Path(__file__).parent / "results"
_MEMORY = "memory/group_index"
# Sizes at which a row of the growth table takes minutes where no kernels are compiled.
_LARGEST_ON_THE_PLAIN_PATH = 100_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run, are the results right?")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="rows whose id matches, e.g. 'w2/*'")
    parser.add_argument("--out", type=Path, help="folder for cpu.md and cpu.json (default: benchmarks/results)")
    parser.add_argument("--list", action="store_true", help="print the ids of the rows")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else FULL

    def wanted(row_id: str) -> bool:
        return not options.only or any(fnmatch(row_id, pattern) for pattern in options.only)

    table = [row for row in rows(scale) if wanted(row.id)]
    ids = [*(row.id for row in table), *filter(wanted, [_MEMORY, *growth.ids()])]
    if not ids:
        parser.error(f"no row is named like {' or '.join(map(repr, options.only))}; --list prints the ids.")
    if options.list:
        print("\n".join(ids))
        return 0
    torch.set_num_threads(1)
    gc.freeze()  # what was imported need not be looked at again before every row
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {what}", file=sys.stderr, flush=True)

    runner = Runner(scale, options.quick)
    measured = list(runner.run(table, say))
    index_bytes = {}
    if wanted(_MEMORY):
        say("memory of the group index")
        backend = "native" if runner.native else "reference"
        value = memory.bytes_a_row(scale.w2, backend)
        if value is not None:
            index_bytes[backend] = value
    growths = []
    for row in growth.growth(scale, wanted, max(scale.growth) if runner.native else _LARGEST_ON_THE_PLAIN_PATH):
        say(f"growth: {row.title}")
        growths.append(row)

    about = report.machine()
    absent = left_out() if not options.only else {}
    text = report.markdown(about, measured, index_bytes, memory.BOUND, growths, absent)
    print(text)
    folder = options.out or (None if options.quick or options.only else _RESULTS)
    if folder is not None:
        report.write(
            folder,
            text,
            about,
            rows=[row.as_json() for row in measured],
            group_index_bytes_a_row=index_bytes,
            growth=[asdict(row) for row in growths],
            left_out=absent,
        )
        say(f"written to {folder}")
    return 1 if any(row.wrong for row in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
