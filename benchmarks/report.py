"""What is printed and kept: Markdown tables, and the same numbers as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensordict
import torch

import torchrb
from benchmarks.harness import OURS, REFERENCE, Timing
from benchmarks.paths.growth import Growth
from benchmarks.running import Judged, Measured

_FEW = 10
_HEAD = ("path", "torchrb native", "torchrb reference", "peer", "limit", "ratios", "goal", "goal met")


def machine() -> dict[str, Any]:
    """Where this ran, and with what."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"torchrb": torchrb.__version__, "torch": torch.__version__, "tensordict": tensordict.__version__}
    for name in ("torchrl", "cpprb"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "backend": torchrb.backend_of("cpu"),
        "versions": versions,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name


def markdown(
    about: Mapping[str, Any],
    measured: Sequence[Measured],
    index_bytes: Mapping[str, float],
    bound: float,
    growths: Sequence[Growth],
    left_out: Mapping[str, str],
) -> str:
    """The tables, with the machine above them and what was left out below."""
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts = [
        f"Machine: {about['cpu']}, {about['cores']} cores, {about['system']}; {versions}; backend {about['backend']}.",
        "Milliseconds: the median of calls that alternate within one run, each on slots or indices that move on "
        "(cold), one thread unless said; results were checked before. *Reference* is torchrb without its compiled "
        f"kernels, in a process of its own. Behind a median of fewer than {_FEW} calls stands their number. "
        "*2x torchrl*: twice as fast as it; *0.7 of memcpy*: in 0.7 of its time.",
    ]
    if measured:
        parts.append(_table(_HEAD, [_line(row) for row in measured]))
    if index_bytes:
        lines = []
        for backend, value in index_bytes.items():
            goal = [f"≤ {bound:g}", "yes" if value <= bound else "**no**"] if backend == OURS else ["–", "–"]
            lines.append([f"memory of the group index, {backend}", f"{value:.1f}", *goal])
        parts.append(_table(("figure", "bytes a row", "goal", "goal met"), lines))
    if growths:
        sizes = sorted({size for row in growths for size in row.milliseconds})
        head = ("path, small rows (W2)", *(f"{size:,} rows" for size in sizes), "exponent")
        lines = [
            [row.title, *(_ms(row.milliseconds[size] / 1e3) for size in sizes), f"{row.exponent:+.2f}"]
            for row in growths
        ]
        parts.append(f"Growth with the buffer, {about['backend']}:\n\n{_table(head, lines)}")
    wrong = [f"- {row.row.title}: {row.wrong}." for row in measured if row.wrong]
    if wrong:
        parts.append("Wrong results, not timed:\n\n" + "\n".join(wrong))
    if left_out:
        parts.append("Left out:\n\n" + "\n".join(f"- {name}: {why}." for name, why in left_out.items()))
    return "\n\n".join(parts) + "\n"


def write(folder: Path, text: str, about: Mapping[str, Any], **tables: Any) -> None:
    """Keep the tables as ``cpu.md`` and ``cpu.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.md").write_text(text, encoding="utf-8")
    content = json.dumps({"machine": about, **tables}, indent=1, ensure_ascii=False)
    (folder / "cpu.json").write_text(content + "\n", encoding="utf-8")


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _line(measured: Measured) -> list[str]:
    row, timings = measured.row, measured.timings
    aside = [name for name in row.beside if name in timings]
    return [
        row.title,
        _named(timings, [OURS], bare=True) + "".join(f" ({name}: {_ms(timings[name].median)})" for name in aside),
        _named(timings, [REFERENCE], bare=True),
        _named(timings, row.peers),
        _named(timings, row.limits),
        _ratios(measured),
        "; ".join(goal.text for goal in row.goals) or "–",
        _verdict(measured.goals),
    ]


def _named(timings: Mapping[str, Timing], names: Any, bare: bool = False) -> str:
    cells = []
    for name in names:
        if name in timings:
            timing = timings[name]
            few = f" ({timing.calls} calls)" if timing.calls < _FEW else ""
            cells.append(("" if bare else f"{name} ") + _ms(timing.median) + few)
    return ", ".join(cells) or "–"


def _ratios(measured: Measured) -> str:
    row, timings = measured.row, measured.timings
    if OURS not in timings:
        return "–"
    ours = timings[OURS].median
    peers = [f"{_short(timings[name].median / ours)}x {name}" for name in row.peers if name in timings]
    aside = [f"{ours / timings[name].median:.2f} of {name}" for name in row.beside if name in timings]
    limits = [f"{ours / timings[name].median:.2f} of {name}" for name in row.limits if name in timings]
    reference = [f"{_short(timings[REFERENCE].median / ours)}x reference"] if REFERENCE in timings else []
    return ", ".join([*peers, *limits, *aside, *reference]) or "–"


def _verdict(goals: Sequence[Judged]) -> str:
    if not goals:
        return "–"
    if all(goal.met is None for goal in goals):
        return "not judged"
    missed = [f"{goal.text}: {_short(goal.value)}" for goal in goals if goal.met is False and goal.value is not None]
    unknown = [f"{goal.text}: not judged" for goal in goals if goal.met is None]
    return "; ".join([f"**no** ({', '.join(missed)})" if missed else "yes", *unknown])


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return (
        f"{milliseconds:.4f}"
        if milliseconds < 0.1
        else f"{milliseconds:.3f}"
        if milliseconds < 10
        else f"{milliseconds:,.0f}"
    )


def _short(value: float) -> str:
    return (
        f"{value:,.0f}"
        if value >= 20
        else f"{value:.1f}"
        if value >= 3
        else f"{value:.2f}"
        if value >= 0.1
        else f"{value:.4f}"
    )
