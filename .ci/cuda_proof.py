"""Prove on a machine without a GPU that the CUDA side is whole.

python .ci/cuda_proof.py SITE CSRC_CUDA LOGS: SITE is where the package with CUDA kernels was installed, CSRC_CUDA holds
the sources, LOGS what ptxas said of each. Fails unless the library loads, the dispatcher holds a CUDA kernel for every
op, `torchrb.backend_of` says so, and no kernel of this project spills registers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

site, sources, logs = (Path(argument).resolve() for argument in sys.argv[1:4])
sys.path.insert(0, str(site))

import torch  # noqa: E402

import torchrb  # noqa: E402  - loads the library, without a GPU

faults = []
if not Path(torchrb.__file__).is_relative_to(site):
    faults.append(f"torchrb came from {torchrb.__file__}, not from {site}")


def has_kernel(op: str, key: str) -> bool:
    """Say whether the dispatcher holds a kernel of its own for `op` under `key`."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"torchrb::{op}", key)


ops = sorted(
    {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("torchrb::")
    }
)
without = [op for op in ops if not has_kernel(op, "CUDA")]
faults += [f"{op}: no CUDA kernel in the dispatcher" for op in without]
if not ops:
    faults.append("the dispatcher holds no op at all")
if torchrb.backend_of("cuda") != "native":
    faults.append(f"backend_of('cuda') says {torchrb.backend_of('cuda')!r}")

stems = sorted(path.stem for path in sources.glob("*.cu"))
names = {op.rstrip("_") for op in ops}  # a mutating op leaves its underscore out of the file name
faults += [f"csrc/cuda/{stem}.cu names no op" for stem in stems if stem not in names]

kernels, library_spills = 0, 0
entry = re.compile(r"Function properties for (\S+)\s+.*?(\d+) bytes spill stores, (\d+) bytes spill loads")
for stem in stems:
    found = entry.findall((logs / f"{stem}.cu.txt").read_text())
    kernels += len(found)
    for function, stores, loads in found:
        if int(stores) or int(loads):
            if "3cub" in function:
                library_spills += 1
            else:
                faults.append(f"{stem}.cu: {function} spills ({stores} bytes stored, {loads} loaded)")
if stems and not kernels:
    faults.append("ptxas reported on no kernel at all")

print(f"CUDA kernels in the dispatcher: {len(ops) - len(without)} of {len(ops)} ops")
print(f"ptxas reports read: {kernels}, library kernels that spill: {library_spills}")
if torch.cuda.is_available():
    print("a GPU is visible: that the library loads without one was not shown by this run")
if faults:
    sys.exit("\n".join(["the CUDA proof failed:", *faults]))
