"""The table of a GPU, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensordict
import torch

import torchrb
from benchmarks.gpu.measuring import OURS, Goal, Result

_HEAD = ("path", "torchrb, µs", "of copy bandwidth", "launches", "host waits", "others, µs", "goal", "goal met")


def machine(device: torch.device, bandwidth: float) -> dict[str, Any]:
    """Where this ran, and with what."""
    name, memory = "no GPU: tried out on the CPU", None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
    return {
        "device": name,
        "memory_bytes": memory,
        "cuda": torch.version.cuda,
        "copy_bytes_per_second": bandwidth,
        "backend": torchrb.backend_of(device),
        "versions": {
            "torchrb": torchrb.__version__,
            "torch": torch.__version__,
            "tensordict": tensordict.__version__,
        },
    }


def verdicts(result: Result, judged: bool) -> list[tuple[Goal, float | None, bool | None]]:
    """Each goal, the number it speaks of, and whether it was met; None where it could not be judged."""
    out = []
    for goal in result.row.goals:
        value = goal.value(result) if judged and not result.wrong else None
        met = None if value is None else value >= goal.bound if goal.at_least else value <= goal.bound
        out.append((goal, value, met))
    return out


def markdown(about: Mapping[str, Any], results: Sequence[Result], judged: bool) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    bandwidth = about["copy_bytes_per_second"] / 1e12
    parts = [
        f"Device: {about['device']}; CUDA {about['cuda']}; {versions}; backend {about['backend']}. "
        f"A plain copy moves {bandwidth:.3f} TB/s, reads plus writes.",
        "Microseconds a call: the median of blocks of calls that alternate within one run, each call on rows that move "
        "on; results were checked before. Calls are enqueued without waiting, so that the slower of host and device "
        "counts; rows that give a share of the bandwidth, and the selections, are captured, so that the device alone "
        "does. Launches and waits are those of one call that is not captured.",
        _table([_HEAD, ["---"] * len(_HEAD), *(_line(result, judged) for result in results)]),
    ]
    wrong = [f"- {result.row.title}: {result.wrong}." for result in results if result.wrong]
    if wrong:
        parts.append("Wrong, and not timed:\n\n" + "\n".join(wrong))
    return "\n\n".join(parts) + "\n"


def write(folder: Path, text: str, about: Mapping[str, Any], results: Sequence[Result], judged: bool) -> None:
    """Keep the table as ``gpu.md`` and ``gpu.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text(text, encoding="utf-8")
    kept = [
        {
            "id": result.row.id,
            "path": result.row.title,
            "us": {name: dict(zip(("median", "low", "high"), us, strict=True)) for name, us in result.us.items()},
            "of_copy_bandwidth": result.bandwidth,
            "launches": result.launches,
            "copies": result.copies,
            "host_waits": result.waits,
            "goals": [{"text": goal.text, "value": value, "met": met} for goal, value, met in verdicts(result, judged)],
            "wrong": result.wrong,
        }
        for result in results
    ]
    content = json.dumps({"machine": about, "rows": kept}, indent=1, ensure_ascii=False)
    (folder / "gpu.json").write_text(content + "\n", encoding="utf-8")


def _line(result: Result, judged: bool) -> list[str]:
    told = verdicts(result, judged)
    missed = [f"{goal.text}: {value:.3g}" for goal, value, met in told if met is False]
    unknown = [f"{goal.text}: not judged" for goal, _, met in told if met is None]
    others = [
        f"{name} {_us(us[0])} ({us[0] / result.ours:.2f}x)" for name, us in result.us.items() if name != OURS
    ]  # fmt: skip
    verdict = "not judged" if len(unknown) == len(told) else "; ".join(
        [f"**no** ({', '.join(missed)})" if missed else "yes", *unknown]
    )  # fmt: skip
    return [
        result.row.title,
        _us(result.ours) if result.us else "–",
        "–" if result.bandwidth is None else f"{100 * result.bandwidth:.0f} %",
        _count(result.launches) + ("" if not result.copies else f" + {result.copies} copies"),
        _count(result.waits),
        ", ".join(others) or "–",
        "; ".join(goal.text for goal, _, _ in told) or "–",
        verdict if told else "–",
    ]


def _us(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _count(value: int | None) -> str:
    return "–" if value is None else str(value)


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
