"""What setup.py decides to build, from the environment alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def searching(monkeypatch):
    """setup.py as a module, as it is."""
    spec = importlib.util.spec_from_file_location("torchrb_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "torchrb_setup", module)  # its dataclass looks itself up by module name
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(searching, monkeypatch, tmp_path):
    """The same on a tree with one source of each kind, a compiler, no toolkit, and a torch without CUDA."""
    for source in ("csrc/cpu/op.cpp", "csrc/cuda/op.cu"):
        (tmp_path / source).parent.mkdir(parents=True)
        (tmp_path / source).touch()
    monkeypatch.setattr(searching, "ROOT", tmp_path)
    monkeypatch.setattr(searching, "find_compiler", lambda env: "c++")
    monkeypatch.setattr(searching, "find_toolkit", lambda env: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    return searching


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make_toolkit(home: Path, *, static: bool = True) -> Path:
    for name in ["bin/nvcc", *(["lib64/libcudart_static.a"] if static else [])]:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    return home


@pytest.mark.parametrize("name", ["TORCHRB_NATIVE", "TORCHRB_CUDA"])
def test_an_unknown_value_is_refused_by_name(build, name):
    with pytest.raises(build.BuildRefused, match=f"{name} must be one of auto, 0, 1, got 'yes'"):
        build.make_plan({name: "yes"})


def test_native_0_builds_nothing_even_where_everything_is_there(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_toolkit", lambda env: tmp_path)
    assert build.make_plan({"TORCHRB_NATIVE": "0"}).reason == "TORCHRB_NATIVE=0"
    assert build.make_plan({"TORCHRB_NATIVE": "0", "TORCHRB_CUDA": "1"}).reason == "TORCHRB_NATIVE=0"


def test_no_compiler_is_a_reason_and_with_native_1_an_error(build, monkeypatch):
    monkeypatch.setattr(build, "find_compiler", lambda env: None)
    assert "no C++20 compiler" in build.make_plan({}).reason
    with pytest.raises(build.BuildRefused, match="no C\\+\\+20 compiler"):
        build.make_plan({"TORCHRB_NATIVE": "1"})


def test_no_torch_is_a_reason_that_names_the_remedy(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install --no-build-isolation" in build.make_plan({}).reason
    with pytest.raises(build.BuildRefused, match="torch is not installed"):
        build.make_plan({"TORCHRB_NATIVE": "1"})


def test_a_torch_from_before_the_stable_abi_is_a_reason(build, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    assert "torch 2.10.1+cpu is installed" in build.make_plan({}).reason
    monkeypatch.setattr(torch, "__version__", "2.11.0a0+git123")
    assert build.make_plan({}).reason is None


def test_cuda_1_without_a_toolkit_is_an_error(build):
    with pytest.raises(build.BuildRefused, match="TORCHRB_CUDA=1 needs a CUDA toolkit.*CUDA_HOME"):
        build.make_plan({"TORCHRB_CUDA": "1"})


@pytest.mark.parametrize(
    ("setting", "torch_has_cuda", "built"),
    [("auto", False, False), ("auto", True, True), ("1", False, True), ("1", True, True), ("0", True, False)],
)
def test_with_a_toolkit_cuda_follows_the_setting_then_torch(
    build, monkeypatch, tmp_path, setting, torch_has_cuda, built
):
    monkeypatch.setattr(build, "find_toolkit", lambda env: tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "13.0" if torch_has_cuda else None)
    plan = build.make_plan({"TORCHRB_CUDA": setting})
    assert plan.reason is None
    assert plan.cuda == (tmp_path if built else None)


def test_cuda_1_that_cannot_be_built_is_never_dropped_silently(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "find_toolkit", lambda env: tmp_path)
    assert build.make_plan({"TORCHRB_CUDA": "1"}).required
    monkeypatch.setattr(build, "find_compiler", lambda env: None)
    with pytest.raises(build.BuildRefused):
        build.make_plan({"TORCHRB_CUDA": "1"})


def test_a_torch_with_cuda_and_no_toolkit_is_said_loudly(build, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    plan = build.make_plan({})
    assert plan.cuda is None and "WITHOUT CUDA KERNELS" in plan.cuda_note


def test_the_toolkit_is_the_first_whole_one(searching, tmp_path):
    home, path = make_toolkit(tmp_path / "home"), make_toolkit(tmp_path / "path")
    partial, missing = make_toolkit(tmp_path / "partial", static=False), str(tmp_path / "missing")
    assert searching.find_toolkit({"CUDA_HOME": str(home), "CUDA_PATH": str(path)}, missing) == home
    assert searching.find_toolkit({"CUDA_HOME": str(partial), "CUDA_PATH": str(path)}, missing) == path
    assert searching.find_toolkit({"CUDA_HOME": str(partial)}, str(home)) == home
    assert searching.find_toolkit({"CUDA_HOME": str(partial)}, missing) is None


def test_a_program_that_does_not_compile_is_no_compiler(searching, tmp_path):
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert searching.find_compiler({**path, "CXX": "false"}) is None
    assert searching.find_compiler({**path, "CXX": "true"}) is None
    assert searching.find_compiler({**path, "CXX": "no-such-compiler"}) is None
    assert searching.find_compiler({"PATH": str(tmp_path)}) is None


def test_the_first_compiler_that_works_is_taken(searching, tmp_path):
    write_program(tmp_path / "c++", "exit 1")
    write_program(tmp_path / "g++", "echo g++ version 12 >&2")
    assert searching.find_compiler({"PATH": f"{tmp_path}:/usr/bin:/bin"}) == "g++"


@pytest.fixture
def compile_cuda(build, tmp_path):
    """Compile the tree's CUDA sources with a toolkit that only notes what it was asked for; returns those notes."""
    notes = tmp_path / "notes"
    last = 'for arg in "$@"; do last=$arg; done'
    listing = 'if [ "$1" = --list-gpu-code ]; then echo "sm_80 sm_90"; exit 0; fi'
    write_program(tmp_path / "toolkit/bin/nvcc", f'{listing}\n{last}\necho "$@" >> {notes}\ntouch $last')

    def run(include_dirs=()):
        notes.write_text("")
        objects = build.compile_cuda(tmp_path / "toolkit", "c++", list(include_dirs), tmp_path / "objects")
        assert all(Path(name).exists() for name in objects)
        return notes.read_text().splitlines()

    return run


def test_cuda_is_compiled_for_each_architecture_the_toolkit_knows(compile_cuda):
    (command,) = compile_cuda()
    assert "code=sm_80" in command and "code=sm_90" in command and "code=compute_90" in command
    assert "sm_100" not in command


def test_a_cuda_object_is_compiled_again_when_what_it_is_made_of_changed(compile_cuda, tmp_path):
    assert len(compile_cuda()) == 1
    assert compile_cuda() == []
    header = tmp_path / "csrc/core/rng.h"
    header.parent.mkdir()
    header.touch()
    assert len(compile_cuda()) == 1  # a header is newer than the object
    assert len(compile_cuda(["elsewhere"])) == 1  # other flags
    assert compile_cuda(["elsewhere"]) == []
