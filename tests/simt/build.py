"""Compiles the kernels of ``csrc/cuda`` with the emulator of ``shim``; what has been compiled once is kept.

The kept files lie in the temporary folder (or ``TORCHRB_SIMT_CACHE``), named by a hash of the command and of every file
that goes in.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE, CSRC = Path(__file__).parent, Path(__file__).parents[2] / "csrc"
SHIM = HERE / "shim"
RUNTIME = ("fiber", "runtime", "barriers", "memory")
SANITIZERS: dict[str | None, tuple[list[str], list[str]]] = {
    None: ([], []),  # flags of the kernels, flags of the runtime
    "address": (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], ["-DSIMT_ADDRESS=1"]),
    "thread": (["-fsanitize=thread"], ["-DSIMT_THREAD=1"]),
}


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The g++ to use (its thread sanitizer sees the most); None where there is none, or CXX names no compiler."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if not name or shutil.which(name.split()[0]) is None:
            continue
        probe = [*name.split(), "-std=c++20", "-v", "-fsyntax-only", "-x", "c++", "/dev/null"]
        ran = subprocess.run(probe, capture_output=True, text=True)
        if ran.returncode == 0 and "gcc version" in ran.stderr:
            return tuple(name.split())
        if "version" not in ran.stderr:
            return None
    return None


def _includes(source: Path, csrc: Path, known: set[Path]) -> set[Path]:
    """Return the project's files that `source` takes in, itself among them."""
    known.add(source)
    for name in re.findall(r'^\s*#\s*include "([^"]+)"', source.read_text(), re.MULTILINE):
        for folder in (source.parent, SHIM, csrc):
            if (folder / name).is_file():
                if folder / name not in known:
                    _includes(folder / name, csrc, known)
                break
    return known


def _cached(name: str, command: list[str], contents: Iterable[bytes]) -> Path:
    """The place for what `command` makes of `contents`: where that has been made before, it is there."""
    digest = hashlib.sha256(" ".join(command).encode())
    for content in contents:
        digest.update(content)
    root = Path(os.environ.get("TORCHRB_SIMT_CACHE") or Path(tempfile.gettempdir()) / f"torchrb-simt-{os.getuid()}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root / f"{digest.hexdigest()[:20]}-{name}"


def _make(command: list[str], out: Path) -> Path:
    """Run a compiler that writes to `out`, unless it has been; whole or not at all, as others may build, too."""
    if not out.exists():
        part = out.with_name(f"{out.name}.{os.getpid()}.{threading.get_ident()}")
        built = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True)
        assert built.returncode == 0, f"{' '.join(command)}\n{built.stderr}"
        part.replace(out)
    return out


def _compile(source: Path, flags: list[str], csrc: Path) -> Path:
    command = [*(compiler() or ()), "-std=c++20", "-g", "-ffp-contract=off", "-fno-omit-frame-pointer", "-fPIC"]
    command += ["-fvisibility=hidden", "-fno-gnu-unique"]  # several modules live in one interpreter
    command += [*flags, f"-I{SHIM}", f"-I{csrc}", "-c", str(source)]
    contents = (path.read_bytes() for path in sorted(_includes(source, csrc, set())))
    return _make(command, _cached(f"{source.stem}.o", command, contents))


def build(source: Path, sanitizer: str | None = None, csrc: Path = CSRC) -> Path:
    """Compile a file of ``SIMT_BIND`` lines; return the module, or with a sanitizer the program."""
    assert compiler() is not None
    flags, tells = SANITIZERS[sanitizer]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    jobs = [(SHIM / f"{name}.cpp", ["-O2", *warnings, *tells]) for name in RUNTIME]
    jobs.append((source, ["-O1", *warnings, *flags]))
    if sanitizer is None:
        jobs.append((SHIM / "python_module.cpp", ["-O1", "-g0", *_python_flags()]))
    else:
        jobs.append((SHIM / "server.cpp", ["-O1", *warnings]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda job: str(_compile(*job, csrc)), jobs))
    command = [*(compiler() or ()), *flags, *(["-shared"] if sanitizer is None else []), *objects]
    return _make(command, _cached(f"{source.stem}.{'so' if sanitizer is None else sanitizer}", command, ()))


def _python_flags() -> list[str]:
    pybind = importlib.util.find_spec("pybind11")
    assert pybind is not None and pybind.origin is not None, "pybind11 is one of the package's test requirements"
    return [f"-isystem{Path(pybind.origin).parent / 'include'}", f"-isystem{sysconfig.get_path('include')}"]
