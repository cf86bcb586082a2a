"""Every op on a device beside its twin, without pytest: what `compute-sanitizer` is given to watch.

    compute-sanitizer --tool memcheck python -m tests.gpu.every_op
    compute-sanitizer --tool racecheck python -m tests.gpu.every_op --only sample_groups

``--device cpu`` runs the same here. Any difference is an AssertionError, and exit status 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from tests.gpu import test_ops
from torchrb.ops.schemas import STRATEGIES, op_names


def _each(test: Callable[..., None], *values: Any) -> Callable[[torch.device], None]:
    def call(device: torch.device) -> None:
        for value in values:
            test(device, *value)

    return call


CASES: dict[str, Callable[[torch.device], None]] = {
    "append_rows_": _each(test_ops.test_append_rows, (0,)),
    "write_rows_": _each(test_ops.test_write_rows, (0, True), (0, False)),
    "read_rows": _each(test_ops.test_read_rows, (0,)),
    "update_rows_if_": _each(test_ops.test_update_rows_if, (0, True), (0, False)),
    "clear_rows_": _each(test_ops.test_clear_rows, (0,)),
    "draw_uniform": _each(test_ops.test_draw_uniform, (100,)),
    "draw_permuted": _each(test_ops.test_draw_permuted, (100,)),
    "group_index_update_": _each(test_ops.test_group_index_update_and_sample_groups_after_any_history, ("any",)),
    "sample_groups": _each(test_ops.test_sample_groups, *((strategy,) for strategy in STRATEGIES)),
    "update_priorities_": _each(test_ops.test_update_priorities, (0,)),
    "draw_priorities": _each(test_ops.test_draw_priorities, (0,)),
    "balanced_subset": _each(test_ops.test_balanced_subset, (40,)),
    "group_advantage": _each(test_ops.test_group_advantage, (torch.float64,)),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.every_op", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--only", action="append", choices=op_names(), help="this op (may be given several times)")
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no GPU is visible\n")
    for name in options.only or op_names():
        torch.manual_seed(0)
        CASES[name](options.device)
        print(f"{name}: like its twin on {options.device}", flush=True)


if __name__ == "__main__":
    main()
