"""A row of the table from beginning to end: make its contenders, check them, time them, judge the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torchrb
from benchmarks.harness import OURS, REFERENCE, Row, Timed, Timing, measure
from benchmarks.worker import Remote, Worker, plain, same
from benchmarks.workloads import Scale


@dataclass(frozen=True)
class Judged:
    """A goal and what came out: None where it could not be judged."""

    text: str
    value: float | None
    met: bool | None


@dataclass(frozen=True)
class Measured:
    """A row as it came out. ``timings`` in seconds by contender; ``wrong`` says why nothing was timed."""

    row: Row
    timings: dict[str, Timing]
    goals: list[Judged]
    wrong: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row with all its numbers."""
        return {
            "id": self.row.id,
            "path": self.row.title,
            "seconds": {name: asdict(timing) for name, timing in self.timings.items()},
            "goals": [asdict(goal) for goal in self.goals],
            "wrong": self.wrong,
        }


class Runner:
    """Measures rows one after the other: torchrb's compiled path, if there is one, here, its plain one elsewhere.

    ``quick`` sizes are too small to judge a goal by.
    """

    def __init__(self, scale: Scale, quick: bool) -> None:
        self._scale, self._quick = scale, quick
        self.native = torchrb.backend_of("cpu") == "native"
        self._worker = Worker(quick)

    def run(self, rows: list[Row], say: Callable[[str], None]) -> Iterator[Measured]:
        """Measure these rows."""
        try:
            for row in rows:
                say(row.title)
                yield self._measure(row)
        finally:
            self._worker.close()

    def _measure(self, row: Row) -> Measured:
        remote = Remote(self._worker, row.id)
        try:
            contenders, wrong = self._contenders(row, remote)
            if wrong is not None:
                return Measured(row, {}, [Judged(goal.text, None, None) for goal in row.goals], wrong)
            repeats = self._scale.repeats if row.at_most is None else row.at_most
            timings = measure(contenders, repeats, self._scale.budget_s)
        finally:
            remote.close()
        medians = {name: timing.median for name, timing in timings.items()}
        judged = [(goal.text, None if self._quick else goal.judge(medians)) for goal in row.goals]
        return Measured(row, timings, [Judged(text, *(verdict or (None, None))) for text, verdict in judged])

    def _contenders(self, row: Row, remote: Remote) -> tuple[dict[str, Timed], str | None]:
        """All contenders of a row after their first, checked call; and what is wrong, if something is."""
        contenders: dict[str, Timed] = {REFERENCE: remote}
        makers = {**row.peers, **row.limits}
        if self.native:
            makers = {OURS: row.ours, **row.beside, **makers}
        first: dict[str, Any] = {}
        try:
            remote.open()
            first[REFERENCE] = remote.result()
            for name, make in makers.items():
                contenders[name] = make()
                first[name] = plain(contenders[name].result())
        except Exception as error:
            who = next((name for name in contenders if name not in first), "a contender")
            return contenders, f"{who}: {type(error).__name__}: {error}"
        if self.native and not same(first[OURS], first[REFERENCE]):
            return contenders, "the compiled and the plain path return different results"
        for name in row.peers if row.peers_agree else ():
            if not same(first[name], first[REFERENCE]):
                return contenders, f"{name} returns another result"
        return contenders, None
