"""A copy of the tree, and builds made from it in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "*.so", "__pycache__", ".*_cache")


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the caller's build and run variables, and with those given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHRB_")}
    return subprocess.run(command, cwd=cwd, env={**inherited, **env}, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources as a clone would have them."""
    return Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=NOT_SOURCE))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Path | None, subprocess.CompletedProcess[str]]]:
    """Run a build hook ("sdist", "wheel", "editable") on a tree; returns what it made, or None, and the process."""

    def build(kind: str, tree: Path, **env: str) -> tuple[Path | None, subprocess.CompletedProcess[str]]:
        out = tmp_path / f"out-{kind}-{len(list(tmp_path.iterdir()))}"
        out.mkdir()
        hook = f"import sys, setuptools.build_meta as hooks; hooks.build_{kind}(sys.argv[1])"
        process = run(sys.executable, "-c", hook, str(out), cwd=tree, **env)
        return next(out.iterdir(), None), process

    return build


@pytest.fixture
def install(tmp_path: Path) -> Callable[[Path], Path]:
    """Unpack a wheel into a folder of its own, to be put on PYTHONPATH."""

    def unpack(wheel: Path) -> Path:
        site = tmp_path / f"site-{len(list(tmp_path.iterdir()))}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        return site

    return unpack
