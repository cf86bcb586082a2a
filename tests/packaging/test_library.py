"""The compiled library brings kernels and nothing else: no Python, no torch version, no symbols of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import torchrb  # noqa: F401  - loads it

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = next(iter(sorted((ROOT / "torchrb").glob("_native*.so"))), None)

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no native library was built")
needs_binutils = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_binutils
def test_it_needs_the_parts_of_torch_that_are_stable_and_no_others():
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", str(LIBRARY))))
    assert {"libtorch.so", "libtorch_cpu.so"} <= needed
    assert not [name for name in needed if re.search(r"python|cudart|torch_cuda|c10_cuda", name)]


@needs_binutils
def test_it_does_not_carry_the_path_of_the_machine_that_built_it():
    assert "RUNPATH" not in output("readelf", "-d", str(LIBRARY))


@needs_binutils
def test_it_asks_torch_for_its_c_interface_only():
    undefined = output("nm", "-D", "-C", "--undefined-only", str(LIBRARY))
    assert re.search(r"\baoti_torch_|\btorch_", undefined)
    assert re.findall(r"^.*\b(?:at|c10|torch)::.*$", undefined, re.MULTILINE) == []


@needs_binutils
def test_it_shows_no_symbols_of_its_own():
    defined = output("nm", "-D", "-C", "--defined-only", str(LIBRARY))
    assert re.findall(r"^.*(?:torchrb|PyInit|cuda).*$", defined, re.MULTILINE) == []


@pytest.mark.parametrize("source", sorted(path.stem for path in ROOT.glob("csrc/cpu/*.cpp")))
def test_each_kernel_file_registers_the_op_it_is_named_after(source):
    if torchrb.backend_of("cpu") == "reference":
        pytest.skip("the library is not loaded in this run")
    ops = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "torchrb::" in name}
    named = [op for op in ops if op.rstrip("_") == source.rstrip("_")]
    assert named
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(f"torchrb::{op}", "CPU") for op in named)
