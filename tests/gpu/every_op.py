"""Every op on a device beside its twin, without pytest: what `compute-sanitizer` is given to watch.

    compute-sanitizer --tool memcheck python -m tests.gpu.every_op
    compute-sanitizer --tool racecheck python -m tests.gpu.every_op --only sample_groups

``--device cpu`` runs the same here. Any difference is an AssertionError, and exit status 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from tests.gpu import test_ops
from torchrb.ops.schemas import STRATEGIES, op_names

CASES: dict[str, Callable[[torch.device], None]] = {
    "append_rows_": lambda device: test_ops.test_append_rows(device, 0),
    "write_rows_": lambda device: [test_ops.test_write_rows(device, 0, renew) for renew in (True, False)] and None,
    "read_rows": lambda device: test_ops.test_read_rows(device, 0),
    "update_rows_if_": lambda device: [test_ops.test_update_rows_if(device, 0, v) for v in (True, False)] and None,
    "clear_rows_": lambda device: test_ops.test_clear_rows(device, 0),
    "draw_uniform": lambda device: test_ops.test_draw_uniform(device, 100),
    "group_index_update_": lambda device: test_ops.test_group_index_update_and_sample_groups_after_any_history(
        device, "any"
    ),
    "sample_groups": lambda device: [test_ops.test_sample_groups(device, s) for s in STRATEGIES] and None,
    "balanced_subset": lambda device: test_ops.test_balanced_subset(device, 40),
    "group_advantage": lambda device: test_ops.test_group_advantage(device, torch.float64),
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
