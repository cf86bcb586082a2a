"""What the emulator is for: each planted bug is caught where it shows, and its sound twin is left in peace."""

from __future__ import annotations

import pytest

from tests.simt.emulator import KernelFault, Schedule, load
from tests.simt.planted.cases import ALL, FAULTS, RACES, Planted

PLANTED = RACES | FAULTS
SEEDS = 20  # a bug that only shows when turns fall a certain way has so many chances
SCHEDULES = [
    Schedule(),
    Schedule("backwards"),
    Schedule("random", seed=1),
    Schedule("random", seed=2, resident=4),
    *(Schedule("random", seed=seed, resident=4, preempt=True) for seed in range(SEEDS)),
]


def run(name: str, planted: Planted, mode: str, schedule: Schedule) -> str | None:
    """Return the report, "" for a wrong result, None if all is well."""
    kernels = load("planted", None if mode == "plain" else mode)
    kernels.schedule = schedule
    arguments = planted.arguments()
    try:
        getattr(kernels, name)(*arguments)
    except KernelFault as fault:
        return str(fault)
    return None if planted.is_right(arguments) else ""


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, bug in PLANTED.items() for mode in bug.shows])
def test_a_planted_bug_is_caught(name, mode):
    words = PLANTED[name].shows[mode]
    found = (run(name, PLANTED[name], mode, schedule) for schedule in SCHEDULES)
    report = next((report for report in found if report is not None), None)
    assert report is not None, f"{name} went unseen under {len(SCHEDULES)} schedules"
    assert words in report if words else report == "", report
    if words:
        assert ".cuh:" in report, f"the report names no place in the kernel: {report}"


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("name", PLANTED)
def test_its_sound_twin_is_left_in_peace(name, mode):
    for schedule in SCHEDULES if mode == "plain" else SCHEDULES[:6]:
        assert run(f"{name}_sound", PLANTED[name], mode, schedule) is None, schedule


def test_the_same_seed_gives_the_same_run():
    def winners(seed: int) -> list[int]:
        kernels = load("planted")
        kernels.schedule = Schedule("random", seed=seed, resident=4, preempt=True)
        arguments = RACES["check_then_act"].arguments()
        kernels.check_then_act_sound(*arguments)
        return arguments[2].tolist()

    runs = [winners(seed) for seed in range(10)]
    assert runs == [winners(seed) for seed in range(10)]
    assert len(set(map(tuple, runs))) > 1
