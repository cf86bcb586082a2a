"""Every example in the README runs, and its commands name targets that exist."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_examples_run():
    torch.manual_seed(0)
    outcome = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=OPTIONS)
    assert outcome.attempted > 15
    assert outcome.failed == 0


def test_the_commands_exist():
    targets = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test", "bench", "lint"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in sorted(targets) if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
