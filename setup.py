"""Build torchrb: pure Python always, and one native library where it can be compiled.

The library, ``torchrb/_native.so``, targets the LibTorch stable ABI, so that one build serves every torch from 2.11 on,
with and without CUDA. It has no Python in it: it registers its kernels with the dispatcher when it is loaded. The C++
side goes through ``torch.utils.cpp_extension``; ``.cu`` files go straight to nvcc, because torch refuses to build CUDA
sources against a torch without CUDA, and this library does not mind one.

What is built depends on two variables:

``TORCHRB_NATIVE``  unset: build the library if possible, else say why not and install without. ``1``: a library that
                    cannot be built is an error. ``0``: do not try.
``TORCHRB_CUDA``    ``auto`` (the default): build the CUDA kernels if there is a toolkit and the installed torch has
                    CUDA. ``1``: build them; no toolkit is an error. ``0``: leave them out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError as old:  # a new environment may come with a setuptools of years ago, and no isolation replaces it
    raise SystemExit("torchrb needs setuptools 77 or newer to build: pip install -U setuptools") from old

ROOT = Path(__file__).resolve().parent
TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"  # 2.11: the oldest torch that the library loads under
OLDEST_TORCH = (2, 11)
CUDA_ARCHS = (80, 90, 100)
BUILD_COMMANDS = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}

# Contraction into fused multiply-adds is off on both sides, so that a score has the same bits on every processor.
CXX_FLAGS = ["-std=c++20", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", TARGET]
NVCC_FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "--resource-usage", TARGET]
NVCC_FLAGS += ["-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"]
# A distribution's linker may drop libtorch as unneeded, and with it the way to libtorch_cuda and its stream.
LINK_FLAGS = ["-Wl,-z,defs", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu"]


class BuildRefused(RuntimeError):
    """What was asked for by TORCHRB_NATIVE or TORCHRB_CUDA cannot be had on this machine."""


@dataclass(frozen=True)
class Plan:
    """What this run builds: nothing native when `reason` is set, CUDA kernels when `cuda` is."""

    required: bool = False
    reason: str | None = None
    cxx: str | None = None
    cuda: Path | None = None
    cuda_note: str = ""


def read_setting(env: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return the variable `name`, or `default` when it is unset or empty; BuildRefused for a value not in `allowed`."""
    value = env.get(name) or default
    if value not in allowed:
        raise BuildRefused(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
    return value


def find_toolkit(env: Mapping[str, str], default: str = "/usr/local/cuda") -> Path | None:
    """Return the first CUDA toolkit among CUDA_HOME, CUDA_PATH and `default`, or None.

    The nvcc on PATH does not count: it may be a wrapper that stands outside the toolkit it calls.
    """
    for place in (env.get("CUDA_HOME"), env.get("CUDA_PATH"), default):
        home = Path(place) if place else None
        if home and (home / "bin/nvcc").exists() and (home / "lib64/libcudart_static.a").exists():
            return home
    return None


def find_compiler(env: Mapping[str, str]) -> str | None:
    """Return the C++ compiler's command, from CXX or PATH, if it compiles C++20; else None."""
    names = [env["CXX"]] if env.get("CXX") else ["c++", "g++", "clang++"]
    program = "#include <concepts>\n#include <cstdint>\ntemplate <std::integral T> T same(T x) { return x; }\n"
    for name in names:
        command = [*shlex.split(name), "-std=c++20", "-x", "c++", "-fsyntax-only", "-v", "-"]
        if shutil.which(command[0], path=env.get("PATH")) is None:
            continue
        probe = subprocess.run(command, input=program, capture_output=True, text=True, env=dict(env))
        # A compiler tells its version on -v; /bin/true does not.
        if probe.returncode == 0 and "version" in probe.stderr:
            return name
    return None


def make_plan(env: Mapping[str, str]) -> Plan:
    """Decide what to build; BuildRefused when a variable asks for what this machine does not have."""
    native = read_setting(env, "TORCHRB_NATIVE", ("auto", "0", "1"), "auto")
    cuda = read_setting(env, "TORCHRB_CUDA", ("auto", "0", "1"), "auto")
    required = native == "1" or (cuda == "1" and native != "0")
    toolkit = find_toolkit(env)
    if native == "0":
        return Plan(reason="TORCHRB_NATIVE=0")
    if cuda == "1" and toolkit is None:
        raise BuildRefused(
            "TORCHRB_CUDA=1 needs a CUDA toolkit, and none was found. Set CUDA_HOME to a folder that holds bin/nvcc "
            "and lib64/libcudart_static.a."
        )

    cxx, reason = find_compiler(env), None
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None:
        reason = (
            "torch is not installed in the environment that builds. Install torch first, then use "
            "`pip install --no-build-isolation`"
        )
    elif tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        reason = f"torch {torch.__version__} is installed, and the native library needs torch >= 2.11"
    elif cxx is None:
        reason = f"no C++20 compiler was found (CXX={env.get('CXX', '')!r}, else c++, g++ or clang++ on PATH)"
    elif not list((ROOT / "csrc/cpu").glob("*.cpp")):
        reason = "there are no sources in csrc/cpu"
    if reason is not None:
        if required:
            raise BuildRefused(f"the native library was asked for and cannot be built: {reason}.")
        return Plan(reason=reason)

    note = "with CUDA kernels"
    if cuda == "0":
        toolkit, note = None, "without CUDA kernels (TORCHRB_CUDA=0)"
    elif cuda == "auto" and torch.version.cuda is None:
        toolkit, note = None, "without CUDA kernels (this torch has no CUDA; TORCHRB_CUDA=1 builds them all the same)"
    elif toolkit is None:
        note = "WITHOUT CUDA KERNELS, though this torch has CUDA: no toolkit in CUDA_HOME, CUDA_PATH or /usr/local/cuda"
    elif not list((ROOT / "csrc/cuda").glob("*.cu")):
        toolkit, note = None, "without CUDA kernels (there are no sources in csrc/cuda)"
    return Plan(required=required, cxx=cxx, cuda=toolkit, cuda_note=note)


def announce(text: str) -> None:
    """Say one line that is found again in a long build log."""
    print(f"\n*** torchrb: {text} ***\n", file=sys.stderr, flush=True)


def announce_pure(reason: str) -> None:
    """Say, once per build, that the package is installed without its native library."""
    announce(f"installing WITHOUT the native library, everything runs on the plain torch path. Reason: {reason}")


def remove_stale_library() -> None:
    """Remove what an earlier editable build left beside the sources: what is loaded is what was built last."""
    for stale in (ROOT / "torchrb").glob("_native*.so"):
        stale.unlink()


def cuda_codes(nvcc: Path) -> list[str]:
    """Return the -gencode flags: machine code for each wanted architecture this nvcc knows, PTX for the last."""
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    archs = [arch for arch in CUDA_ARCHS if re.search(rf"\bsm_{arch}\b", known)]
    if not archs:
        raise BuildRefused(f"{nvcc} knows none of the architectures {CUDA_ARCHS}.")
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return [*codes, f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}"]


def compile_cuda(toolkit: Path, cxx: str, include_dirs: list[str], build_temp: Path) -> list[str]:
    """Compile every csrc/cuda/*.cu whose object is out of date; return all objects.

    What ptxas says of registers and spills is kept beside each object as ``<op>.cu.txt``.
    """
    nvcc = toolkit / "bin/nvcc"
    flags = [*NVCC_FLAGS, *cuda_codes(nvcc), "-ccbin", shlex.split(cxx)[-1]]
    flags += [flag for path in include_dirs for flag in ("-isystem", path)]
    folder = build_temp / "csrc/cuda"
    folder.mkdir(parents=True, exist_ok=True)
    shared = [*ROOT.glob("csrc/**/*.h"), *ROOT.glob("csrc/**/*.cuh")]

    def compile_one(source: Path) -> str:
        target, log, line = (folder / (source.name + end) for end in (".o", ".txt", ".command"))
        command = [str(nvcc), *flags, f"-I{ROOT / 'csrc'}", "-c", str(source), "-o", str(target)]
        newest = max(path.stat().st_mtime for path in [source, *shared])
        same = line.exists() and line.read_text() == shlex.join(command)
        if not (same and target.exists() and target.stat().st_mtime > newest):
            print(shlex.join(command), flush=True)
            line.unlink(missing_ok=True)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            log.write_text(done.stdout)
            if done.returncode != 0:
                raise RuntimeError(f"nvcc failed on {source}:\n{done.stdout}")
            line.write_text(shlex.join(command))
        return str(target)

    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(compile_one, sorted(ROOT.glob("csrc/cuda/*.cu"))))


def native_build(plan: Plan) -> dict:
    """Return the arguments of `setup` that build the library as `plan` says."""
    os.environ["CXX"] = plan.cxx  # distutils and torch would otherwise each make their own guess
    # An environment that is used without being activated has its ninja beside its interpreter, and not on PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

    class NativeBuild(BuildExtension):
        def run(self) -> None:
            announce(f"building the native library {plan.cuda_note}")
            self.build_temp = str(ROOT / "build/native")  # kept between builds: only what changed is compiled again
            try:
                super().run()
            except Exception as error:
                if plan.required:
                    raise
                self.extensions = []
                remove_stale_library()
                announce_pure(f"the build failed ({error}). TORCHRB_NATIVE=1 makes this an error")

        def build_extensions(self) -> None:
            if plan.cuda is not None:
                (library,) = self.extensions
                library.extra_objects += compile_cuda(plan.cuda, plan.cxx, include_paths(), Path(self.build_temp))
            super().build_extensions()

        def get_ext_filename(self, name: str) -> str:
            return name.replace(".", os.sep) + ".so"  # no Python version in the name: there is no Python in it

    link = list(LINK_FLAGS)
    if plan.cuda is not None:
        link += ["-Wl,--exclude-libs,ALL", f"-L{plan.cuda / 'lib64'}", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
    library = CppExtension(
        "torchrb._native",
        sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/cpu/*.cpp")),
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=list(CXX_FLAGS),
        extra_link_args=link,
        py_limited_api=True,  # leaves out libtorch_python
    )
    return {"ext_modules": [library], "cmdclass": {"build_ext": NativeBuild}}


class AnyPythonWheel(bdist_wheel):
    """Tags a wheel with the platform of its library and no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return (python, abi, platform)."""
        return ("py3", "none", super().get_tag()[2])


def main() -> None:
    """Plan the build if this run builds, and hand over to setuptools."""
    plan = make_plan(os.environ) if BUILD_COMMANDS & set(sys.argv) else Plan(reason="nothing is built in this run")
    options = native_build(plan) if plan.reason is None else {"cmdclass": {}}

    class BuildPython(build_py):
        def run(self) -> None:
            if plan.reason is not None:
                announce_pure(plan.reason)
                if self.editable_mode:
                    remove_stale_library()
            super().run()

    options["cmdclass"] |= {"build_py": BuildPython, "bdist_wheel": AnyPythonWheel}
    setup(**options)


if __name__ == "__main__":
    try:
        main()
    except BuildRefused as refusal:
        sys.exit(f"torchrb: {refusal}")
