"""Plant each bug in a copy of the package and see the test of its law fail: ``python -m tests.planted [law ...]``.

The copy runs on the plain path. Without any bug the tests that are to catch them must pass. Exits with 1 if a bug is
not caught, if its text is no longer in the source, or if it breaks the package instead of a law.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.planted.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
FAILED = 1  # pytest's exit status when tests ran and some failed; anything else is no verdict
WORKERS = 2
TIMEOUT = 300


def copy_of(tree: Path, place: Path) -> Path:
    """What the tests of the laws need, without the native library."""
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(tree / "torchrb", place / "torchrb", ignore=leave)
    shutil.copytree(tree / "tests" / "spec", place / "tests" / "spec", ignore=leave)
    shutil.copy(tree / "tests" / "conftest.py", place / "tests")
    shutil.copy(tree / "pyproject.toml", place)
    return place


def plant(bug: Bug, place: Path) -> str | None:
    """Change the source; returns what is wrong with the change, if anything."""
    texts = {file: file.read_text() for file in sorted((place / "torchrb").glob(bug.file))}
    found = [file for file, text in texts.items() for _ in range(text.count(bug.old))]
    if len(found) != 1:
        return f"its text stands {len(found)} times in {bug.file}, not once: {bug.old!r}"
    found[0].write_text(texts[found[0]].replace(bug.old, bug.new))
    return None


def test_of(bug: Bug) -> str:
    """The test that is to catch a bug, as pytest names it."""
    files = sorted((ROOT / "tests" / "spec").glob(f"test_law_{bug.law}_*.py"))
    (file,) = [file for file in files if f"def {bug.caught_by}(" in file.read_text()] or files[:1]
    return f"tests/spec/{file.name}::{bug.caught_by}"


def run(place: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests on the package of a copy, up to the first failure."""
    env = os.environ | {"TORCHRB_BACKEND": "reference", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = str(place)
    options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", f"--rootdir={place}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=place, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip


def verdict(bug: Bug, tree: Path) -> str | None:
    """What went wrong, None when the bug was caught."""
    with tempfile.TemporaryDirectory() as folder:
        place = copy_of(tree, Path(folder))
        problem = plant(bug, place)
        if problem:
            return problem
        done = run(place, [test_of(bug)])
    if done.returncode == 0:
        return f"NOT CAUGHT by {test_of(bug)}"
    if done.returncode != FAILED:
        return f"broke the package, or {test_of(bug)} is gone:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return None


def without_bugs(bugs: list[Bug], tree: Path) -> str | None:
    """What went wrong when nothing was planted."""
    where = subprocess.run(
        [sys.executable, "-c", "import torchrb; print(torchrb.__file__)"],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree), "TORCHRB_BACKEND": "reference"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not where.stdout.startswith(str(tree)):
        return f"the copy in {tree} is not what is imported: {where.stdout}{where.stderr}"
    done = run(tree, sorted({test_of(bug) for bug in bugs}))
    return None if done.returncode == 0 else done.stdout[-4000:] + done.stderr[-2000:]


def main(laws: list[int]) -> int:
    """Plant the bugs of some laws (of all, if none is named) and print a line for each."""
    bugs = [bug for bug in BUGS if not laws or bug.law in laws]
    faults = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        tree = copy_of(ROOT, Path(folder).resolve())
        clean = pool.submit(without_bugs, bugs, tree)
        for bug, problem in zip(bugs, pool.map(lambda bug: verdict(bug, tree), bugs), strict=True):
            faults += problem is not None
            print(f"{'caught' if problem is None else 'FAULT '}  law {bug.law:2}: {bug.says}", flush=True)
            if problem:
                print(f"        {problem}", flush=True)
        problem = clean.result()
    if problem:
        print(f"FAULT   without any bug the tests do not pass:\n{problem}")
    state = "fail" if problem else "pass"
    print(f"{len(bugs) - faults} of {len(bugs)} planted bugs caught; without any the tests {state}.")
    return 1 if faults or problem else 0


if __name__ == "__main__":
    sys.exit(main([int(law) for law in sys.argv[1:]]))
