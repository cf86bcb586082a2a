"""Finds the compiled kernels, or says why there are none."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from torchrb.ops import schemas

_MODES = ("auto", "reference", "native")


def has_kernel(op: str, device_type: str) -> bool:
    """Whether the compiled library brought a kernel of this op for this kind of device."""
    key = device_type.upper() if device_type != "privateuseone" else "PrivateUse1"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"torchrb::{op}", key))


def _load() -> str | None:
    """Load the compiled library as ``TORCHRB_BACKEND`` asks; returns its path, or None on the plain path."""
    mode = os.environ.get("TORCHRB_BACKEND", "auto")
    if mode not in _MODES:
        raise ValueError(f"torchrb: TORCHRB_BACKEND must be one of {_MODES}, got {mode!r}.")
    if mode == "reference":
        return None
    package = Path(__file__).parents[1]
    if (package.parent / "setup.py").exists():
        remedy = (
            f"This is the source tree in {package.parent}: compile it in place (make build, or pip install "
            "--no-build-isolation -e .), or start Python elsewhere to get an installed copy."
        )
    else:
        remedy = (
            "Reinstall it where there is a C++ compiler: in its source folder, pip install --no-build-isolation "
            "--force-reinstall --no-deps ."
        )
    found = sorted(package.glob("_native*.so"))
    if found:
        try:
            torch.ops.load_library(str(found[0]))
            missing = [op for op in schemas.op_names() if not has_kernel(op, "cpu")]
            if not missing:
                return str(found[0])
            problem = f"its compiled library {found[0].name} is not of this version and lacks {', '.join(missing)}"
        except OSError as error:
            problem = f"its compiled kernels do not fit torch {torch.__version__} ({error})"
    else:
        problem = f"there are no compiled kernels in {package}"
    if mode == "native":
        raise ImportError(f"torchrb: TORCHRB_BACKEND=native, but {problem}. {remedy}")
    text = (
        f"torchrb: {problem}; everything works, in plain torch, and slower. {remedy} "
        "TORCHRB_BACKEND=reference asks for the plain path and silences this."
    )
    warnings.warn_explicit(text, RuntimeWarning, "torchrb", 0)  # no line of anybody's code is at fault
    return None


native_library: str | None = _load()


def backend_of(device: torch.device | str) -> str:
    """``"native"`` when every op has a compiled kernel for ``device``, else ``"reference"`` (plain torch).

    >>> import torchrb
    >>> torchrb.backend_of("cpu") in ("native", "reference")
    True
    """
    device_type = torch.device(device).type
    native = native_library is not None and all(has_kernel(op, device_type) for op in schemas.op_names())
    return "native" if native else "reference"
