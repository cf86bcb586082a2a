"""Every emulated test runs in several modes: orders of the threads, blocks at once, and under the sanitizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simt.build import compiler
from tests.simt.emulator import Emulated, Schedule, load

# name -> (schedule, sanitizer)
MODES = {
    "forwards": (Schedule(), None),
    "backwards": (Schedule("backwards"), None),
    "random": (Schedule("random", seed=1), None),
    "resident": (Schedule("random", seed=2, resident=4, preempt=True), None),
    "address": (Schedule("random", seed=3), "address"),
    "thread": (Schedule("random", seed=4, resident=2), "thread"),
}
NO_COMPILER = "NO g++ HERE: the CUDA kernels were not run on the CPU, and nothing else here runs them"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if compiler() is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=NO_COMPILER))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if compiler() is None:
        terminalreporter.write_line(f"!!! {NO_COMPILER}", red=True, bold=True)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def emulated(mode: str) -> Iterator[Callable[[str], Emulated]]:
    """`emulated("group_advantage")`: what bind_group_advantage.cpp binds, in each of the modes."""
    schedule, sanitizer = MODES[mode]

    def in_this_mode(op: str) -> Emulated:
        kernels = load(op, sanitizer)
        kernels.schedule = schedule
        return kernels

    yield in_this_mode
