"""The example learner runs, and what it says about late patches holds."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """What a short run prints; its picture lies beside it."""
    pytest.importorskip("matplotlib", reason="the examples' own extra is not installed: pip install '.[demo]'")
    pytest.importorskip("tqdm", reason="the examples' own extra is not installed: pip install '.[demo]'")
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-W", "error", str(ROOT / "examples/grpo_replay.py"), "--quick", "--out", "replay.png"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    assert (folder / "replay.png").read_bytes().startswith(b"\x89PNG")
    return run.stdout


def numbers(table: str, row: str) -> list[int]:
    """The numbers of a row of the table, one a method."""
    (line,) = [line for line in table.splitlines() if line.strip().startswith(row)]
    return [int(cell) for cell in re.findall(r"\d+$|\d+(?=\s)", line.split(row, 1)[1] + " ")]


def test_patches_arrive_and_none_lands_on_another_record(table):
    assert min(numbers(table, "patched rows looked at again")) > 0
    assert numbers(table, "with another record's patch") == [0, 0, 0]


def test_the_ring_turns_while_patches_are_under_way(table):
    assert sum(numbers(table, "too late, refused")) > 0


def test_replay_replays(table):
    alone, twice, replay = numbers(table, "rows replayed")
    assert (alone, twice) == (0, 0) and replay > 0


def test_the_task_is_what_its_examples_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import countdown

    outcome = doctest.testmod(countdown)
    assert outcome.attempted > 0 and outcome.failed == 0
