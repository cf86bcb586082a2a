"""One file a path. `rows` lists what is timed, `LEFT_OUT` says which rows have to wait for something, and for what."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.paths import group_draws, overhead, priorities, row_movement, saving, selector, threads, updates
from benchmarks.workloads import Scale


def rows(scale: Scale) -> list[Row]:
    """All rows of the table, in its order."""
    return [
        *group_draws.rows(scale),
        *row_movement.rows(scale),
        *updates.rows(scale),
        *priorities.rows(scale),
        *saving.rows(scale),
        *selector.rows(scale),
        *overhead.rows(scale),
        *threads.rows(scale),
    ]


def left_out() -> dict[str, str]:
    """Rows that cannot be measured here, and why."""
    return selector.left_out() | priorities.left_out()
