"""The benchmark runs, checks what it times, and fills its tables. How long anything takes is for nobody to assert."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import limits, paths
from benchmarks.__main__ import main
from benchmarks.harness import Contender, Row, exponent, faster_than, measure, under, within
from benchmarks.paths import growth
from benchmarks.paths.group_draws import check_groups
from benchmarks.worker import same
from benchmarks.workloads import GROUP_DRAW, QUICK, W1, W2, W3

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A whole run at tiny sizes, as a user starts it."""
    folder = tmp_path_factory.mktemp("results")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--out", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    table = (folder / "cpu.md").read_text(encoding="utf-8")
    assert table in run.stdout
    return table, json.loads((folder / "cpu.json").read_text(encoding="utf-8"))


def test_every_row_is_checked_timed_and_printed(results):
    table, kept = results
    rows = paths.rows(QUICK)
    assert [row["id"] for row in kept["rows"]] == [row.id for row in rows]
    for row, measured in zip(rows, kept["rows"], strict=True):
        assert measured["wrong"] is None
        assert f"| {row.title} |" in table
        timed = {"reference", *row.peers, *row.limits}
        if kept["machine"]["backend"] == "native":
            timed |= {"native", *row.beside}
        assert measured["seconds"].keys() == timed
        assert all(0 < timing["low"] <= timing["median"] <= timing["high"] for timing in measured["seconds"].values())


def test_growth_memory_and_what_is_missing_are_told(results):
    table, kept = results
    assert len(kept["growth"]) == len(growth.ids())
    assert all(row["title"] in table for row in kept["growth"])
    if sys.platform.startswith("linux"):
        assert "memory of the group index" in table
    assert kept["left_out"] == paths.left_out()
    assert all(name in table for name in kept["left_out"])


def test_no_goal_is_judged_at_sizes_that_prove_nothing(results):
    assert all(goal["met"] is None for row in results[1]["rows"] for goal in row["goals"])


def test_a_pattern_that_names_no_row_is_an_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--list", "--only", "w9/*"])
    assert ended.value.code == 2 and "no row is named like 'w9/*'" in capsys.readouterr().err


def test_rows_have_different_ids():
    ids = [row.id for row in paths.rows(QUICK)] + growth.ids()
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("workload", "row_bytes"), [(W1, 4628), (W2, 76), (W3, 712)])
def test_workloads_have_the_rows_they_say(workload, row_bytes):
    assert workload.row_bytes == row_bytes
    batch = workload.batch(40, 16)
    assert torch.equal(workload.check(batch), torch.arange(40, 56))


@pytest.mark.parametrize("workload", [W1, W2, W3])
def test_a_row_of_two_records_is_found(workload):
    batch = workload.batch(40, 16)
    for key in batch.keys():
        torn = batch.clone()
        torn[key][3] = torn[key][12]
        if torch.equal(torn[key], batch[key]):
            continue  # two records may have the same version
        with pytest.raises(AssertionError):
            check = workload.check(torn, range(40, 56))
            assert check.unique().numel() == 16  # a torn row may pass for another record, but not unnoticed


def test_a_record_that_is_no_longer_stored_is_found():
    with pytest.raises(AssertionError, match="not stored"):
        W2.check(W2.batch(0, 8), range(8, 16))


def test_wrong_group_draws_are_found():
    live = range(2 * GROUP_DRAW)
    batch = W2.batch(0, GROUP_DRAW)
    check_groups(W2, batch, live)
    rows = torch.arange(GROUP_DRAW)
    mixed, again, twice = rows.clone(), rows.clone(), rows.clone()
    mixed[[7, 8]] = mixed[[8, 7]]
    again[8:16] = rows[:8]
    twice[1] = 0
    for wrong in (mixed, again, twice):
        with pytest.raises(AssertionError):
            check_groups(W2, batch[wrong], live)


def test_limits_move_the_bytes_of_the_rows():
    gather = limits.index_select(W2, 64, limits.group_index(64, 2, seed=0))
    (slots,) = gather.inputs()
    assert torch.equal(slots.view(2, 8).sort(dim=1).values // 8, slots.view(2, 8)[:, :1].expand(2, 8) // 8)
    gathered = gather.call(slots)
    assert torch.equal(W2.check(gathered), slots)
    assert sum(leaf.nbytes for leaf in gathered.values()) == 16 * W2.row_bytes
    (piece,) = limits.memcpy_read(W2, 64, 8).inputs()
    assert piece.nbytes == 8 * W2.row_bytes
    places = [limits.memcpy_write(W2, 64, 8)] * 3
    starts = [contender.inputs()[0].storage_offset() for contender in places]
    assert len(set(starts)) == 3


def test_slow_contenders_are_called_less_often_and_inputs_are_not_timed():
    made = []
    contender = Contender(lambda number: number, lambda: (made.append(len(made)) or len(made),))
    timings = measure({"a": contender}, repeats=5, budget_s=1.0)
    assert timings["a"].calls == 5
    assert len(made) >= 5
    never = measure({"a": contender, "b": contender}, repeats=50, budget_s=0.0)
    assert {timing.calls for timing in never.values()} == {3}


def test_contenders_take_turns_and_one_apart_has_bursts():
    order = []
    here, there, elsewhere = (Contender(lambda name=name: order.append(name)) for name in "abc")
    elsewhere.apart = True
    timings = measure({"a": here, "b": there, "c": elsewhere}, repeats=40, budget_s=60.0)
    assert {timing.calls for timing in timings.values()} == {40}
    measured = "".join(order[-120:])
    assert max(len(run) for name in "ab" for run in re.findall(f"{name}+", measured)) <= 2
    assert len(re.findall("c+", measured)) == 4


def test_goals_are_judged_by_ratios_of_medians():
    medians = {"native": 2.0e-3, "torchrl": 10.0e-3, "memcpy": 1.0e-3}
    assert faster_than("torchrl", 5).judge(medians) == (pytest.approx(5), True)
    assert faster_than("torchrl", 6).judge(medians) == (pytest.approx(5), False)
    assert within("memcpy", 2).judge(medians) == (pytest.approx(2), True)
    assert within(("memcpy", "torchrl"), 0.1).judge(medians) == (pytest.approx(2 / 11), False)
    assert under(1.9).judge(medians) == (pytest.approx(2), False)
    assert faster_than("cpprb", 1).judge(medians) is None


def test_the_exponent_is_the_slope():
    sizes = [10, 100, 1000]
    assert exponent(sizes, [0.3, 0.3, 0.3]) == pytest.approx(0)
    assert exponent(sizes, [0.1, 1.0, 10.0]) == pytest.approx(1)


def test_results_are_compared_bit_by_bit():
    a = {"x": torch.tensor([0.0, 1.0]).numpy(), "y": [1, 2]}
    assert same(a, {"x": torch.tensor([0.0, 1.0]).numpy(), "y": [1, 2]})
    assert not same(a, {"x": torch.tensor([-0.0, 1.0]).numpy(), "y": [1, 2]})
    assert not same(a, {"x": torch.tensor([0.0, 1.0], dtype=torch.float64).numpy(), "y": [1, 2]})
    assert not same(a, {"x": a["x"], "y": [2, 1]})


def test_a_wrong_result_is_reported_and_not_timed(monkeypatch):
    from benchmarks import running

    class Elsewhere:
        def __init__(self, *_):
            pass

        def ask(self, verb, *_):
            return {"result": [1, 2]}.get(verb)

        def close(self):
            pass

    monkeypatch.setattr(running, "Worker", Elsewhere)
    runner = running.Runner(QUICK, quick=True)
    row = Row("a", "a", ours=lambda: Contender(lambda: [1, 2]), peers={"peer": lambda: Contender(lambda: [2, 1])})
    wrong = Row("b", "b", ours=row.ours, peers=row.peers, peers_agree=True)
    broken = Row("c", "c", ours=row.ours, limits={"limit": lambda: Contender(lambda: 1 / 0)})
    told = [measured.wrong for measured in runner.run([wrong, broken], lambda _: None)]
    assert told[0] == "peer returns another result"
    assert "limit: ZeroDivisionError" in told[1]
