"""Build torchrb on a machine with a GPU, run the tests that need one, measure, and write down what came out.

python .ci/gpu_check.py [--wheels FOLDER] [--out FOLDER] [--skip-build] [--dry-run]

Nothing is fetched from anywhere: torch >= 2.11 is installed already, and so is a CUDA toolkit. What else is missing
(tensordict, pytest, ninja, setuptools >= 77) comes from the wheels in --wheels, which are unpacked beside the sources
and nowhere else. The library is built in place. Writes check.json, gpu.md, gpu.json and the page of what was expected
(roofline.md); a stage that fails is written down, and the next one runs all the same.

Exit status: 0 when all passed (a goal that is missed is no failure, and stands in the table), 1 when something failed,
2 where this cannot run at all. --dry-run goes through the same stages on the CPU, at tiny sizes and without building.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build/gpu-site"
RESULTS = ROOT / "benchmarks/results"
NEEDED = ("torch", "tensordict", "pytest", "setuptools", "numpy")
TESTS = ["tests/gpu", "tests/ops/test_group_advantage.py"]


def cannot(why: str) -> None:
    """Say why nothing was checked, and end."""
    print(f"gpu-check: NOTHING WAS CHECKED: {why}", file=sys.stderr)
    sys.exit(2)


def environment(dry: bool) -> dict[str, str]:
    """What every stage runs with."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if not dry:
        env |= {"TORCHRB_NATIVE": "1", "TORCHRB_CUDA": "1", "TORCHRB_BACKEND": "native"}
    return env


def unpack(wheels: Path) -> None:
    """Put every wheel of a folder beside the sources, without a look at any index."""
    found = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
    if not found:
        cannot(f"there are no wheels in {wheels}")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target", str(SITE)]
    if subprocess.run([*pip, *found], env=environment(True)).returncode:
        cannot(f"the wheels in {wheels} could not be installed")


def require(dry: bool) -> None:
    """End with a reason where something is missing."""
    sys.path.insert(0, str(SITE))
    importlib.invalidate_caches()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        cannot(f"{sys.executable} has no {', '.join(missing)}. Put wheels into a folder and name it: WHEELS=folder")
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
        cannot(f"torch {torch.__version__} is installed, and torchrb needs torch >= 2.11")
    if not dry and torch.version.cuda is None:
        cannot(f"torch {torch.__version__} was built without CUDA")
    if not dry and not torch.cuda.is_available():
        cannot("no GPU is visible. What can be tried without one: python .ci/gpu_check.py --dry-run --out FOLDER")


class Stages:
    """What ran, how long it took, and whether it passed."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env, self.done = env, {}

    def run(self, name: str, *command: str) -> bool:
        print(f"\n=== {name} ===", flush=True)
        start = time.monotonic()
        status = subprocess.run([sys.executable, *command], cwd=ROOT, env=self.env).returncode
        self.done[name] = {"status": status, "seconds": round(time.monotonic() - start, 1)}
        if status:
            print(f"=== FAILED: {name} (exit status {status}) ===", flush=True)
        return status == 0


def counts(report: Path) -> dict[str, int]:
    """Tests that ran, failed and were skipped, of a JUnit report."""
    if not report.exists():
        return {"tests": 0, "failed": 0, "skipped": 0}
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))

    def total(*names: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites for name in names)

    return {"tests": total("tests"), "failed": total("failures", "errors"), "skipped": total("skipped")}


def main() -> int:
    """Run the stages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheels", type=Path, help="folder of wheels for what is not installed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for what came out")
    parser.add_argument("--skip-build", action="store_true", help="the library was built before")
    parser.add_argument("--dry-run", action="store_true", help="the same stages on the CPU, without building")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="what pytest is given")
    options = parser.parse_args()
    if options.wheels:
        unpack(options.wheels)
    require(options.dry_run)
    out, dry = options.out.resolve(), options.dry_run
    out.mkdir(parents=True, exist_ok=True)
    stages = Stages(environment(dry))

    if not (dry or options.skip_build):
        stages.run("build", "setup.py", "build_ext", "--inplace")
    if not dry:
        stages.run("kernels", ".ci/cuda_proof.py", ".", "csrc/cuda", "build/native/csrc/cuda")
    report = out / "tests.xml"
    report.unlink(missing_ok=True)
    mark = "not gpu" if dry else "gpu"
    options_of_pytest = ["-q", "-m", mark, f"--junitxml={report}", "-o", "faulthandler_timeout=300"]
    for category in ("DeprecationWarning", "FutureWarning"):  # of whatever versions this machine happens to have
        options_of_pytest += ["-W", f"ignore::{category}"]
    stages.run("tests", "-m", "pytest", *options_of_pytest, *options.tests)
    tests = counts(report)
    report.unlink(missing_ok=True)
    device = ["--device", "cpu"] if dry else []
    stages.run("benchmark", "-m", "benchmarks.gpu", "--out", str(out), *device)
    if not dry:
        page = ROOT / "benchmarks/roofline.md" if out == RESULTS else out / "roofline.md"
        given = ["--results", str(out / "gpu.json"), "--out", str(page)]
        stages.run("expected against measured", "-m", "benchmarks.gpu.roofline", *given)

    failed = [name for name, stage in stages.done.items() if stage["status"]]
    if tests["tests"] == 0 or tests["skipped"]:
        failed.append(f"tests: {tests['tests']} ran, {tests['skipped']} of them were skipped")
    summary = {"dry_run": dry, "passed": not failed, "failed": failed, "tests": tests, "stages": stages.done}
    (out / "check.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"\n=== gpu-check {'passed' if not failed else 'FAILED: ' + '; '.join(failed)} ===")
    print(f"{tests['tests']} tests, {tests['failed']} failed; written to {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
