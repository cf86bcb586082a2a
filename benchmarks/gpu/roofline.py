"""``python -m benchmarks.gpu.roofline --logs build/native/csrc/cuda``: what each GPU row should cost, on paper.

Writes benchmarks/roofline.md: for every row of ``python -m benchmarks.gpu`` the bytes, the launches, and the loads that
have to wait for each other, the time that follows for an H200, and what limits it; then the registers and the occupancy
of every kernel, from what ptxas said (``--resource-usage``, kept beside the objects by setup.py). Where
benchmarks/results/gpu.json holds a run on a GPU, its times stand beside.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import FULL, rows
from benchmarks.workloads import W1

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "benchmarks/results/gpu.json"

COPY = 4.3e12  # bytes a second, reads plus writes, of a plain copy on an H200
NODE_US = 1.5  # a kernel in a graph: start, and drain before the next
LAUNCH_US = 2.5  # a kernel that is launched by itself, one after the other
MISS_US = 0.7  # a load that misses the caches, when nothing else can be done meanwhile
CALL_US = 25.0  # what Python does around the launches of an extend and a sample


@dataclass(frozen=True)
class Paper:
    """``nbytes`` read and written; ``launches``; ``chain``: loads of one thread, each of which needs the one before;
    ``serial_us``: work that a single block does; ``host_us``: what the host needs, where it may be the slower side.
    """

    nbytes: float
    launches: int
    limit: str
    chain: int = 0
    serial_us: float = 0.0
    host_us: float = 0.0
    graphed: bool = True

    @property
    def expected_us(self) -> float:
        a_launch = NODE_US if self.graphed else LAUNCH_US
        device = self.nbytes / COPY * 1e6 + a_launch * self.launches + MISS_US * self.chain + self.serial_us
        return max(device, self.host_us)


def _noting(num: int, by_flags: bool) -> float:
    """Microseconds of the one block that notes slots in the journal, 256 rows side by side. Where it first has to find
    out which rows were written, it looks at the flags of 4,096 rows at a time, twice, with a prefix sum between.
    """
    return 3.5 * -(-num // 4096) + 1.0 if by_flags else 0.08 * num / 128 + 1.0


def _moving(count: int, writes: int, launches: int, serial_us: float, limit: str) -> Paper:
    return Paper(2 * count * (W1.row_bytes + 16 * writes + 8), launches, limit, chain=2, serial_us=serial_us)


def paper() -> dict[str, Paper]:
    """By row id."""
    out = {}
    for count in FULL.batches:
        out[f"w1/read/{count}"] = _moving(count, 1, 1, 0, "memory bandwidth, then start, drain and two misses")
        noting = _noting(count, True)
        out[f"w1/write/{count}"] = _moving(
            count, 2, 4, noting, "memory bandwidth, then the one block that notes the slots and two kernels that find "
            "out which of equal slots is last",
        )  # fmt: skip
        out[f"w1/append/{count}"] = _moving(
            count, 2, 2, _noting(count, False), "memory bandwidth, then the last block, which notes the slots"
        )
    out["w1/sample"] = Paper(2 * FULL.sample * W1.row_bytes, 3, "latency: three kernels one after the other", chain=4)
    for strategy in ("random", "recency", "reward", "variance"):
        looks = 8 if strategy == "random" else 9
        # index: begin does the work of 512 entries in one block, some ten misses; the five kernels behind it see that
        # nothing is left. Draw: find the group (4 levels of counts, a bucket), walk its 8 rows, look at them.
        device = {"nbytes": 2 * 1024 * 92.0, "launches": 2 + 1 + 6 + 4 + 1 + 1, "chain": 2 + 10 + 6 + looks + 2}
        limit = "latency: 15 kernels, and in them some 30 misses one after another; bytes do not count"
        out[f"w2/replay/{strategy}"] = Paper(**device, limit=limit)
        host = CALL_US + 16 * LAUNCH_US
        out[f"w2/call/{strategy}"] = Paper(
            **device, limit=f"the host or the device, whichever is slower: the host needs about {host:.0f} µs",
            host_us=host, graphed=False,
        )  # fmt: skip
    for groups, size, _ in FULL.selects:
        row = 24 + 16 + 4
        if size <= 32:
            select = Paper(groups * size * row, 4, "latency: a warp walks its group's list", chain=6 + size + 3)
        elif size <= 1024:
            select = Paper(
                groups * size * row, 4, "latency: one thread walks the list of 64 rows, a load after a load",
                chain=6 + size + 3, serial_us=4.0,
            )  # fmt: skip
        else:
            # One block a group, in global memory, at about 40 GB/s a block: it looks at all rows of the index (16 bytes
            # each), then four times at its candidates of 24 bytes: in which bits they differ, how many have which
            # digit, which have that of the last one wanted, and which are among the first.
            scan_us, look_us = (num * nbytes / 40e9 * 1e6 for num, nbytes in ((groups * size, 16), (4 * size, 24)))
            select = Paper(
                groups * size * row, 4, "a block a group: 64 of 132 processors scan the whole index each; to select "
                "from what they find is a tenth of it", chain=10, serial_us=scan_us + look_us,
            )  # fmt: skip
        out[f"select/{groups}x{size}"] = select
    for versioned in (False, True):
        moved = FULL.update * (2 * 320 + 2 * 16 + 16 + 24 + 1 + (24 if versioned else 0))
        out[f"w3/update{'+version' if versioned else ''}"] = Paper(
            moved, 4 + versioned, "the one block that notes 65,536 slots; the rows themselves are a fifth of it",
            chain=6, serial_us=_noting(FULL.update, True), graphed=False,
        )  # fmt: skip
    return out


# --- kernels --------------------------------------------------------------------------------------------------------

_REGISTERS, _WARPS, _BLOCKS, _SHARED = 65536, 64, 32, 228 * 1024  # of a processor (SM) of sm_90
_RESERVED_SHARED = 1024  # that the system takes of a block's
# Threads of a block, by the constant in csrc/cuda/launch.cuh, and dynamic shared memory in bytes (rows of 9 leaves).
_LEAVES, _NOTE = 9 * 48, 33 * 8
_SHAPES = {
    "append_claim": ("1", 0),
    "append_rows": ("kRowThreads", _NOTE + _LEAVES),
    "balanced_subset": ("kBalancedThreads", 3 * 8 * 128 + 48),
    "clear_plan": ("1", 0),
    "clear_rows": ("kSlotThreads", _NOTE),
    "draw_permuted": ("kDrawThreads", 0),
    "draw_priorities": ("kDrawThreads", 0),
    "draw_uniform": ("kDrawThreads", 0),
    "group_advantage": ("kAdvantageThreads", 0),
    "group_index_begin": ("2*kIndexThreads", 0),
    "group_index_enter": ("kIndexThreads", 0),
    "group_index_phase": ("kIndexThreads", 0),
    "priorities_begin": ("2*kPriorityThreads", 0),
    "priorities_phase": ("kPriorityThreads", 0),
    "priorities_top": ("2*kPriorityThreads", 0),
    "put_leaves": ("80", 0),
    "read_rows": ("kRowThreads", 8 + _LEAVES),
    "sample_begin": ("kSampleThreads", 0),
    "sample_find": ("kSampleThreads", 0),
    "sample_large": ("kLargeGroupThreads", 24 * 1024 + 16 * 1024 + 1136 + 16),
    "sample_small": ("kSampleThreads", 4 * (32 * 24 + 64 * 8 + 16)),
    "update_find": ("kSlotThreads", 0),
    "update_finish": ("kSlotThreads", _NOTE),
    "update_pick": ("kSlotThreads", 0),
    "update_prepare": ("kSlotThreads", 0),
    "update_rows": ("kRowThreads", 8 + _LEAVES),
    "write_find": ("kSlotThreads", 0),
    "write_finish": ("kSlotThreads", _NOTE),
    "write_prepare": ("kSlotThreads", 0),
    "write_rows": ("kRowThreads", 8 + _LEAVES),
}
_ENTRY = re.compile(
    r"Compiling entry function '(\S+)' for 'sm_90'\n.*?\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*?Used (\d+) registers([^\n]*)"
)


@dataclass(frozen=True)
class Kernel:
    name: str
    registers: int
    spills: int
    stack: int
    threads: int
    shared: int

    @property
    def occupancy(self) -> tuple[int, str]:
        """Warps of a processor that can be at work, per cent of the most, and what keeps others out."""
        warps = -(-self.threads // 32)
        by = {
            "warps": _WARPS // warps,
            "registers": _REGISTERS // (-(-self.registers * 32 // 256) * 256 * warps),
            "shared memory": _SHARED // (self.shared + _RESERVED_SHARED),
            "blocks": _BLOCKS,
        }
        least = min(by, key=lambda name: by[name])
        return round(100 * min(by.values()) * warps / _WARPS), least


def kernels(logs: Path, launch_header: Path) -> Iterator[Kernel]:
    """What ptxas said of each kernel for sm_90."""
    constants = dict(re.findall(r"unsigned (k\w+) = (\d+);", launch_header.read_text()))
    for log in sorted(logs.glob("*.cu.txt")):
        for mangled, stack, stores, loads, registers, rest in _ENTRY.findall(log.read_text()):
            name = _plain(mangled)
            stem = name.split("<")[0].removesuffix("_kernel")
            threads, dynamic = _SHAPES[stem]
            if "BlockTeam" in name:
                threads = "kLongRowThreads"
            factor, _, constant = threads.rpartition("*")
            number = int(constants.get(constant, constant if constant.isdigit() else 0)) * int(factor or 1)
            static = re.search(r"(\d+) bytes smem", rest)
            shared = dynamic + (int(static[1]) if static else 0)
            yield Kernel(name, int(registers), int(stores) + int(loads), int(stack), number, shared)


def _plain(mangled: str) -> str:
    """``torchrb::name<Argument>`` of a mangled name."""
    found = re.match(r"_ZN7torchrb(\d+)(.*)", mangled)
    if not found:
        return mangled
    name, rest = found[2][: int(found[1])], found[2][int(found[1]) :]
    arguments = re.findall(r"\d+(LaneTeam|BlockTeam)", rest[:24])
    phase = re.match(r"ILNS_\d+IndexPhaseE(\d)", rest)
    if phase:
        arguments = [("note", "look", "cut", "mend")[int(phase[1])]]
    elif rest.startswith(("ILb0", "ILb1")):
        arguments = ["last" if rest[3] == "1" else "first"]
    elif rest.startswith(("IfE", "IdE")):
        arguments = ["float" if rest[1] == "f" else "double"]
    return name + (f"<{arguments[0]}>" if arguments else "")


# --- the page -------------------------------------------------------------------------------------------------------


def _measured(results: Path) -> dict[str, Any]:
    if not results.exists():
        return {}
    kept = json.loads(results.read_text())
    if kept["machine"]["memory_bytes"] is None:  # tried out on a CPU
        return {}
    return {row["id"]: row for row in kept["rows"]}


def _times(measured: dict[str, Any], expected: float) -> tuple[str, str]:
    if not measured or not measured["us"]:
        return "", ""
    us = measured["us"]["torchrb"]["median"]
    return f"{us:.1f}", f"{us / expected:.2f}"


def page(logs: Path, results: Path = _RESULTS) -> str:
    measured, table = _measured(results), paper()
    lines = []
    for row in rows(FULL):
        on_paper = table[row.id]
        expected = on_paper.expected_us
        share = ""
        if row.id.startswith("w1/") and row.id != "w1/sample":
            share = f" ({100 * 2 * int(row.id.split('/')[2]) * W1.row_bytes / COPY * 1e6 / expected:.0f} % of a copy)"
        lines.append(
            [
                row.title,
                f"{on_paper.nbytes / 1e6:,.1f}",
                str(on_paper.launches),
                str(on_paper.chain),
                f"{on_paper.serial_us:,.0f}",
                f"{expected:,.0f}{share}",
                on_paper.limit,
                "; ".join(goal.text for goal in row.goals),
                *_times(measured.get(row.id, {}), expected),
            ]
        )
    head = ["path", "MB moved", "launches", "misses in a row", "one block, µs", "expected, µs", "limit", "goal"]
    each = {
        kernel.name: kernel for kernel in kernels(logs, _ROOT / "csrc/cuda/launch.cuh")
    }  # some stand in several ops
    found = [each[name] for name in sorted(each)]
    resources = []
    for kernel in found:
        share, limit = kernel.occupancy
        resources.append(
            [f"`{kernel.name}`", str(kernel.registers), str(kernel.spills), str(kernel.stack), str(kernel.threads),
             str(kernel.shared), f"{share} %", limit]
        )  # fmt: skip
    kernel_head = ["kernel", "registers", "spilled, bytes", "stack, bytes", "threads", "shared, bytes", "occupancy"]
    return _TEXT.format(
        copy=COPY / 1e12, node=NODE_US, launch=LAUNCH_US, miss=MISS_US, call=CALL_US,
        rows=_table([*head, "measured, µs", "of expected"], lines),
        kernels=_table([*kernel_head, "limited by"], resources),
    )  # fmt: skip


_TEXT = """\
# The GPU rows on paper

What `python -m benchmarks.gpu` should show on an H200, worked out before one has run it. Written by
`python -m benchmarks.gpu.roofline`, which also fills the last two columns once `make gpu-check` has been run on a GPU.
Where they are empty, **nothing on this page was measured on a GPU.**

Assumed: a plain copy moves {copy} TB/s (reads plus writes); a kernel in a graph costs {node} µs beyond its work, one
launched by itself {launch} µs; a load that misses the caches, and has nothing beside it, {miss} µs; Python needs
{call:g} µs around the launches of an extend and a sample. *Misses in a row* are loads of one thread that each need the
one before; *one block* is work that a single block does while the others are through.

{rows}

What the paper says before any measurement:

- **Rows out** are one launch and the bytes of a copy. At 16,384 rows they reach the goal; at 4,096 a quarter of the
  time is start, drain, and the two misses before a row's bytes are on their way, so they stay just short of it.
- **Rows in** do not reach it. The rows themselves move as fast, but one block notes the slots in the
  journal, and `write_rows_` needs two kernels before it, and one behind. More blocks in the note would mend that.
- **A draw after a write** is latency: 15 kernels that do next to nothing each. Six of them belong to the index, of
  which five find nothing left to do after so short a write.
- **Selection against `torch.topk`** does not reach 5x. torch is handed a dense table of members there; the index keeps
  groups as lists, and finds them by rank. 64 loads one after another cost more than all of `topk`. A group of 65,536 is
  one block's: it looks at the whole index to find its rows, and selects from them by their digits, sorting only what is
  drawn. To come near torch, several blocks would have to find the rows: expected an order of magnitude and more behind.
- **Conditional updates** are expected well within the goal (torch ops need dozens of kernels and several waits); most
  of their time is the note of 65,536 slots by one block.

## Kernels

From `nvcc --resource-usage` for sm_90: registers, what was spilled, and stack are ptxas' own numbers. Shared memory is
for rows of nine leaves, and `variance` where that needs more. Occupancy is the share of a processor's 64 warps that can
be resident at once: by registers (65,536), shared memory (228 KB), blocks (32), or those 64 warps.

{kernels}
"""


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.roofline", description=__doc__.split("\n")[0])
    parser.add_argument("--logs", type=Path, default=_ROOT / "build/native/csrc/cuda", help="folder of <op>.cu.txt")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="gpu.json of a run on a GPU")
    parser.add_argument("--out", type=Path, default=_ROOT / "benchmarks/roofline.md")
    options = parser.parse_args(arguments)
    if not list(options.logs.glob("*.cu.txt")):
        parser.exit(2, f"there are no <op>.cu.txt in {options.logs}; build with TORCHRB_CUDA=1 first\n")
    options.out.write_text(page(options.logs, options.results), encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
