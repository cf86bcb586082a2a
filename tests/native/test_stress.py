"""The kernels under sanitizers: compiled, word for word, into a program whose threads race on one small ring.

No lock of Python's is around them here, so what holds is what the slot words make hold. A planted bug in each part of
their protocol is caught, so a clean run means something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE, CSRC = Path(__file__).parent, Path(__file__).parents[2] / "csrc"
SECONDS = os.environ.get("TORCHRB_STRESS_SECONDS", "2")
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
SANITIZERS = {
    "plain": [],
    "thread": ["-fsanitize=thread"],
    "memory": ["-fsanitize=address,undefined", "-fno-sanitize-recover"],
}

# name -> (sanitizer that shows it, then for each place: file, what stands there once, what is planted instead)
BUGS = {
    "a writer that takes without looking": (
        "plain",
        (
            "core/slot_lock.h",
            "if (take_if(headers, slot, word)) [[likely]]",
            "if (take_if(headers, slot, word) || true)",
        ),
    ),
    "check, then act": (
        "plain",
        (
            "core/slot_lock.h",
            "return shared.compare_exchange_strong(word, word | kBusy, std::memory_order_acquire, "
            "std::memory_order_relaxed);",
            "if (shared.load() != word) return false;\n  std::this_thread::yield();\n"
            "  shared.store(word | kBusy);\n  return true;",
        ),
    ),
    "a reader that does not look again": (
        "plain",
        (
            "core/slot_lock.h",
            "return stamp.load(std::memory_order_relaxed) == seen.stamp && "
            "word.load(std::memory_order_relaxed) == seen.word;",
            "return true;",
        ),
    ),
    "a patch that leaves no mark": (
        "plain",
        ("core/slot_lock.h", "restamp(headers, slot, stamp_patched(", "restamp(headers, slot, ("),
        # A whole patch must fit between a reader's two looks, so the reader is made slow; that alone is no bug.
        (
            "cpu/read_rows.cpp",
            "for (const Leaf& leaf : rows.leaves) copy_row(leaf.in_batch(row), leaf.in_table(slot), leaf.bytes);",
            "for (const Leaf& leaf : rows.leaves) {\n  copy_row(leaf.in_batch(row), leaf.in_table(slot), leaf.bytes);\n"
            "  std::this_thread::yield();\n}",
        ),
    ),
    "claims without the control's lock": (
        "plain",
        (
            "core/control_lock.h",
            "while (word(kControlLock).exchange(1, std::memory_order_acquire) != 0) backoff.wait();",
            "(void)backoff;",
        ),
    ),
    "rows moved in plain sight": (
        "thread",
        ("core/rows.h", "#define TORCHRB_ATOMIC_ROWS 1", "#define TORCHRB_ATOMIC_ROWS 0"),
    ),
    "one byte too many": (
        "memory",
        (
            "core/rows.h",
            "std::memcpy(to, from, static_cast<size_t>(bytes));",
            "std::memcpy(to, from, static_cast<size_t>(bytes) + 1);",
        ),
    ),
}
FOUND = {"plain": 1, "memory": 1, "thread": 66}  # the program's exit status when something is wrong


def compile_stress(csrc: Path, program: Path, sanitizer: str) -> None:
    command = [*CXX.split(), "-std=c++20", "-O1", "-g", "-pthread", *SANITIZERS[sanitizer]]
    command += [f"-I{HERE / 'shim'}", f"-I{csrc}", str(HERE / "stress.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


def run_stress(program: Path, seconds: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), seconds], capture_output=True, text=True, timeout=float(seconds) + 120)


def has_compiler() -> bool:
    if CXX is None:
        return False
    probe = [*CXX.split(), "-std=c++20", "-fsyntax-only", "-v", "-x", "c++", "/dev/null"]
    ran = subprocess.run(probe, capture_output=True, text=True)
    return ran.returncode == 0 and "version" in ran.stderr


pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C++20 compiler to build the program with")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_racing_threads_find_no_torn_record_no_misplaced_patch_and_lose_no_update(tmp_path, sanitizer):
    compile_stress(CSRC, tmp_path / "stress", sanitizer)
    ran = run_stress(tmp_path / "stress", SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]


def plant(tree: Path, places: tuple[tuple[str, str, str], ...]) -> None:
    shutil.copytree(CSRC, tree)
    for place, stands, planted in places:
        source = (tree / place).read_text()
        assert source.count(stands) == 1, f"{place} has changed; plant the bug anew"
        (tree / place).write_text(source.replace(stands, planted))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(tmp_path, name):
    sanitizer, *places = BUGS[name]
    plant(tmp_path / "csrc", tuple(places))
    compile_stress(tmp_path / "csrc", tmp_path / "stress", sanitizer)
    for _ in range(15):  # a race may pass by chance
        try:
            if run_stress(tmp_path / "stress", "2").returncode == FOUND[sanitizer]:
                return
        except subprocess.TimeoutExpired:
            return  # stuck for ever is caught, too
    pytest.fail(f"{name}: fifteen runs saw nothing")


def test_a_slow_reader_alone_is_no_bug(tmp_path):
    _, _, slow = BUGS["a patch that leaves no mark"]
    plant(tmp_path / "csrc", (slow,))
    compile_stress(tmp_path / "csrc", tmp_path / "stress", "plain")
    ran = run_stress(tmp_path / "stress", SECONDS)
    assert ran.returncode == 0, ran.stdout
