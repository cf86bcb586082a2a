"""The check for a machine with a GPU runs through on one without, and says so where it has nothing to run on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import measuring
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
