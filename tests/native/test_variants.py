"""Draws, subsets and advantages are the same bits whatever instructions a compiler may use, and without a compiler.

The library is built for the oldest processor of its kind, and nothing in it was found to gain from newer instructions
(group draws, exact subsets and advantages: within 5 % with AVX2 and AVX-512). This holds the sources to their rules,
for whoever builds with ``-march=native``: no contraction, and no sum in an order of the compiler's choice.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
KERNELS = (
    *("sample_groups", "group_index_update", "draw_uniform", "draw_permuted", "update_priorities", "draw_priorities"),
    *("balanced_subset", "group_advantage"),
)
VARIANTS = {
    "O1": ["-O1"],  # what all other tests run is -O3 without newer instructions
    "avx2": ["-mavx2", "-mfma"],
    "avx512f": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"],
}

pytestmark = [
    pytest.mark.skipif(CXX is None or not shutil.which(shlex.split(CXX)[0]), reason="there is no C++ compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the variants are those of x86-64"),
]


def flags_of_the_build(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    spec = importlib.util.spec_from_file_location("torchrb_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torchrb_setup", module)
    spec.loader.exec_module(module)
    return module.CXX_FLAGS, module.LINK_FLAGS


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[tuple[str, ...], list[str]], str]:
    """Compiles kernels as setup.py does, with more flags; returns the library's path."""
    from torch.utils.cpp_extension import include_paths

    compile_flags, link_flags = flags_of_the_build(monkeypatch)
    places = [f"-I{path}" for path in (ROOT / "csrc", *include_paths())]
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", *link_flags, "-lc10"]

    def compile_kernels(kernels: tuple[str, ...], more: list[str]) -> str:
        def compile_one(kernel: str) -> str:
            target = str(tmp_path / f"{kernel}.o")
            source = str(ROOT / "csrc/cpu" / f"{kernel}.cpp")
            run(*shlex.split(CXX), *compile_flags, "-fPIC", *more, *places, "-c", source, "-o", target)
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, kernels))
        library = str(tmp_path / "kernels.so")
        run(*shlex.split(CXX), "-shared", *objects, "-o", library, *libraries)
        return library

    return compile_kernels


def run(*command: str) -> str:
    env = os.environ | {"TORCHRB_BACKEND": "reference", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def results_of(*libraries: str) -> dict[str, str]:
    return json.loads(run(sys.executable, "-m", "tests.native.results", *libraries))


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """What the plain twins say."""
    return results_of()


def require_cpu(variant: str) -> None:
    cpu = Path("/proc/cpuinfo").read_text().split()
    lacking = [flag[2:] for flag in VARIANTS[variant] if flag.startswith("-m") and flag[2:] not in cpu]
    if lacking:
        pytest.skip(f"NOT TESTED: the {variant} variant, as this processor lacks {', '.join(lacking)}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_the_same_bits(variant, build, expected):
    require_cpu(variant)
    found = results_of(build(KERNELS, VARIANTS[variant]))
    assert {name for name in expected if found[name] != expected[name]} == set()
    assert found.keys() == expected.keys()


def test_a_contracted_multiplication_shows(build, expected):
    """What the test above is there for: with it, advantages are other bits."""
    require_cpu("avx2")
    found = results_of(build(("group_advantage",), [*VARIANTS["avx2"], "-ffp-contract=fast"]))
    different = {name for name in expected if found[name] != expected[name]}
    assert different and all(name.startswith("advantages") for name in different)
