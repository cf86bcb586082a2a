"""Which kernels serve: what ``TORCHRB_BACKEND`` asks for, with and without a library that loads, and what is told."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from torchrb.ops import loader


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where the loader looks for the library, and finds none."""
    monkeypatch.setattr(loader, "__file__", str(tmp_path / "ops" / "loader.py"))
    return tmp_path


def load(monkeypatch: pytest.MonkeyPatch, mode: str | None) -> str | None:
    monkeypatch.delenv("TORCHRB_BACKEND", raising=False)
    if mode is not None:
        monkeypatch.setenv("TORCHRB_BACKEND", mode)
    return loader._load()


@pytest.mark.parametrize("mode", [None, "auto"])
@pytest.mark.parametrize(("library", "problem"), [(None, "no compiled kernels"), (b"no library", "do not fit torch")])
def test_what_cannot_be_loaded_is_said_once_and_served_in_plain_torch(monkeypatch, package, mode, library, problem):
    if library is not None:
        (package / "_native.so").write_bytes(library)
    with pytest.warns(RuntimeWarning, match=f"torchrb: .*{problem}.*pip install") as said:
        assert load(monkeypatch, mode) is None
    assert len(said) == 1


@pytest.mark.parametrize("lacking", [1, 5, 100])
def test_a_library_that_loads_and_lacks_kernels_is_said_once_and_is_not_native(monkeypatch, package, lacking):
    """An old one, or somebody else's."""
    (package / "_native.so").touch()
    names = loader.schemas.op_names()
    monkeypatch.setattr(loader.torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(loader, "has_kernel", lambda op, device_type: op in names[lacking:])
    with pytest.warns(RuntimeWarning, match=f"torchrb: .*_native.so .*lacks {names[0]}.*pip install") as said:
        assert load(monkeypatch, None) is None
    assert len(said) == 1
    with pytest.raises(ImportError, match=f"TORCHRB_BACKEND=native, but .*lacks {names[0]}.*pip install"):
        load(monkeypatch, "native")


@pytest.mark.parametrize("library", [None, b"no library"])
def test_native_insists(monkeypatch, package, library):
    if library is not None:
        (package / "_native.so").write_bytes(library)
    with pytest.raises(ImportError, match="TORCHRB_BACKEND=native, but .*pip install"):
        load(monkeypatch, "native")


def test_reference_is_silent_and_looks_for_nothing(monkeypatch, package):
    (package / "_native.so").write_bytes(b"no library")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(monkeypatch, "reference") is None


def test_another_word_is_an_error(monkeypatch, package):
    with pytest.raises(ValueError, match=r"TORCHRB_BACKEND must be one of .*'reference'.*got 'fast'"):
        load(monkeypatch, "fast")


def test_a_device_is_native_only_where_every_op_has_a_kernel(monkeypatch):
    kernels = {("cpu", op) for op in loader.schemas.op_names()}
    monkeypatch.setattr(loader, "has_kernel", lambda op, device_type: (device_type, op) in kernels)
    monkeypatch.setattr(loader, "native_library", "_native.so")
    assert (loader.backend_of("cpu"), loader.backend_of("cuda:0")) == ("native", "reference")
    kernels.remove(("cpu", loader.schemas.op_names()[-1]))
    assert loader.backend_of("cpu") == "reference"
    kernels |= {("cpu", op) for op in loader.schemas.op_names()}
    monkeypatch.setattr(loader, "native_library", None)
    assert loader.backend_of("cpu") == "reference"
