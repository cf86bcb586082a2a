"""The check for a machine with a GPU runs through on one without, and says so where it has nothing to run on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import measuring, roofline
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.rows import FULL, TINY, rows

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/gpu_check.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_a_dry_run_goes_through_every_stage(tmp_path):
    done = check("--dry-run", "--out", str(tmp_path), "--tests", "tests/gpu/test_graphs.py")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "check.json").read_text())
    assert summary["passed"] and summary["dry_run"] and summary["tests"]["tests"] > 0
    assert list(summary["stages"]) == ["tests", "benchmark"]
    table, kept = (tmp_path / "gpu.md").read_text(), json.loads((tmp_path / "gpu.json").read_text())
    assert [row["id"] for row in kept["rows"]] == [row.id for row in rows(TINY)]
    for row, result in zip(rows(TINY), kept["rows"], strict=True):
        assert result["wrong"] is None and result["us"]["torchrb"]["median"] > 0
        assert f"| {row.title} |" in table
        assert [goal["met"] for goal in result["goals"]] == [None] * len(row.goals), "nothing is judged on a CPU"


def test_a_failing_stage_is_a_failure(tmp_path):
    done = check("--dry-run", "--out", str(tmp_path), "--tests", "tests/gpu/no_such_test.py")
    assert done.returncode == 1
    summary = json.loads((tmp_path / "check.json").read_text())
    assert not summary["passed"] and "tests" in summary["failed"]
    assert summary["stages"]["benchmark"]["status"] == 0, "the next stage runs all the same"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible, so this machine can run the check")
def test_without_a_gpu_it_says_that_nothing_was_checked(capsys, tmp_path):
    done = check("--out", str(tmp_path))
    assert done.returncode == 2 and "NOTHING WAS CHECKED" in done.stderr and not list(tmp_path.iterdir())
    assert main([]) == 2
    assert "no GPU is visible" in capsys.readouterr().err


def test_wheels_that_are_not_there_are_told(tmp_path):
    done = check("--wheels", str(tmp_path), "--dry-run")
    assert done.returncode == 2 and "no wheels" in done.stderr


def test_rows_of_the_table_are_of_the_sizes_asked_for():
    ids = [row.id for row in rows(FULL)]
    assert len(set(ids)) == len(ids)
    assert {"w1/read/4096", "w2/call/variance", "w2/replay/random", "select/64x65536", "w3/update+version"} <= {*ids}
    assert all(row.goals for row in rows(FULL))


def test_a_wrong_result_is_told_and_not_timed():
    def make(device: torch.device) -> measuring.Case:
        def check() -> None:
            raise AssertionError("not what was written")

        return measuring.Case(lambda: None, check)

    result = measuring.run(measuring.Row("a", "a", make), CPU, 1e9, 2, 1e-4)
    assert result.wrong == "AssertionError: not what was written" and not result.us


def test_goals_are_judged_by_what_was_measured():
    from benchmarks.gpu.report import verdicts

    (row,) = (row for row in rows(FULL) if row.id == "w1/read/4096")
    result = measuring.Result(row, {"torchrb": (10.0, 9.0, 11.0)}, bandwidth=0.81, launches=2, waits=0)
    assert [met for _, _, met in verdicts(result, True)] == [True, False, True]
    assert [met for _, _, met in verdicts(result, False)] == [None] * 3


LOG = """\
ptxas info    : Compiling entry function '_ZN7torchrb16read_rows_kernelINS_8LaneTeamEEEvNS_9LeafTableE' for 'sm_90'
ptxas info    : Function properties for _ZN7torchrb16read_rows_kernelINS_8LaneTeamEEEvNS_9LeafTableE
    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 100 bytes smem
"""


def test_every_row_is_on_paper(tmp_path):
    (tmp_path / "read_rows.cu.txt").write_text(LOG)
    table = roofline.paper()
    assert sorted(table) == sorted(row.id for row in rows(FULL))
    assert all(on_paper.expected_us > 0 and on_paper.limit for on_paper in table.values())
    roofline.main(["--logs", str(tmp_path), "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    tracked = (ROOT / "benchmarks/roofline.md").read_text()
    for row in rows(FULL):
        assert f"| {row.title} |" in page and f"| {row.title} |" in tracked
    assert "| `read_rows_kernel<LaneTeam>` | 64 | 12 | 0 | 128 | 540 | 50 % | registers |" in page


def test_the_page_knows_every_kernel():
    """What `roofline.md` says of registers is said of each kernel in the sources."""
    tracked = (ROOT / "benchmarks/roofline.md").read_text()
    for source in (ROOT / "csrc/cuda").glob("*.cuh"):
        for name in re.findall(r"__global__ void (\w+)\(", source.read_text()):
            assert f"`{name}" in tracked, f"{name}: make the page again, python -m benchmarks.gpu.roofline"


def test_occupancy_is_what_leaves_least_room():
    def kernel(**given):
        return roofline.Kernel(
            **({"name": "a", "registers": 32, "spills": 0, "stack": 0, "threads": 256, "shared": 0} | given)
        )

    assert kernel().occupancy == (100, "warps")
    assert kernel(registers=128).occupancy == (25, "registers")
    assert kernel(shared=100_000).occupancy == (25, "shared memory")
    assert kernel(threads=32).occupancy == (50, "blocks")
