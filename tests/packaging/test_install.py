"""torchrb installs everywhere: from a checkout and from an sdist, with a compiler and without."""

from __future__ import annotations

import sys
import tarfile

import pytest

from tests.packaging.conftest import run

NO_COMPILER = {"CXX": "false"}
USE = """
import torch, torchrb
assert torchrb.__file__.startswith({site!r}), torchrb.__file__
print("backend", torchrb.backend_of("cpu"))
"""


@pytest.fixture
def sdist_tree(tree, make, tmp_path):
    """The tree as it comes out of an sdist."""
    archive, process = make("sdist", tree)
    assert archive is not None, process.stderr
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    return unpacked


def test_an_sdist_has_what_a_build_and_a_test_run_need(tree, sdist_tree):
    wanted = {
        path.relative_to(tree) for part in ("csrc", "tests", "torchrb") for path in (tree / part).rglob("*.[chp]*")
    }
    wanted |= {path.relative_to(tree) for path in (tree / name for name in ("LICENSE", "setup.py", "Makefile"))}
    assert [str(path) for path in sorted(wanted) if path.is_file() and not (sdist_tree / path).exists()] == []
    assert not list(sdist_tree.rglob("*.so"))


@pytest.mark.parametrize("origin", ["tree", "sdist_tree"])
def test_without_a_compiler_it_installs_pure_and_says_so_once(request, make, install, tmp_path, origin):
    wheel, process = make("wheel", request.getfixturevalue(origin), **NO_COMPILER)
    assert wheel is not None, process.stderr
    assert wheel.name.endswith("-py3-none-any.whl")
    said = [line for line in (process.stdout + process.stderr).splitlines() if "WITHOUT the native library" in line]
    assert len(said) == 1 and "no C++20 compiler" in said[0]

    site = install(wheel)
    assert list(site.rglob("LICENSE"))
    used = run(sys.executable, "-c", USE.format(site=str(site)), cwd=tmp_path, PYTHONPATH=str(site))
    assert used.stdout.split() == ["backend", "reference"], used.stderr
    assert used.stderr.count("Warning") == 1


def test_native_0_is_obeyed_where_there_is_a_compiler(tree, make):
    wheel, _ = make("wheel", tree, TORCHRB_NATIVE="0")
    assert wheel is not None and wheel.name.endswith("-py3-none-any.whl")


def test_native_1_without_a_compiler_is_an_error_and_makes_nothing(tree, make):
    wheel, process = make("wheel", tree, TORCHRB_NATIVE="1", **NO_COMPILER)
    assert process.returncode != 0 and wheel is None
    assert "the native library was asked for and cannot be built: no C++20 compiler" in process.stderr


def test_an_editable_install_without_native_does_not_leave_an_old_library_behind(tree, make):
    stale = tree / "torchrb/_native.so"
    stale.touch()
    made, process = make("editable", tree, TORCHRB_NATIVE="0")
    assert made is not None, process.stderr
    assert not stale.exists()
