"""The house has walls: imports go downward, siblings meet only where an arrow stands, torch stays out of the kernels.

The rules are plain functions of a tree, so that they can be shown a bad tree and be seen to fail.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from torchrb.ops.schemas import op_names

ROOT = Path(__file__).resolve().parents[1]

# From the bottom up. A room may import any room of a lower layer, itself, and the siblings that an arrow leads to.
LAYERS = [
    {"ops"},
    {"persistence"},
    {"storages", "transforms", "generations", "journal", "groups", "trajectories"},
    {"writers", "samplers", "selection", "advantages", "sample_unit"},
    {"buffer", "updates", "collate", "consumption", "prefetch", "query", "services"},
]
ARROWS = {
    ("storages", "generations"),
    ("storages", "journal"),
    ("groups", "generations"),
    ("groups", "journal"),
    ("groups", "storages"),
    ("trajectories", "generations"),
    ("trajectories", "journal"),
    ("trajectories", "storages"),
    ("samplers", "selection"),
    ("buffer", "updates"),
    ("buffer", "collate"),
    ("buffer", "query"),
    ("buffer", "prefetch"),
    ("buffer", "consumption"),
    ("buffer", "services"),
}
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
KNOWS_OTHER_MACHINES = "services"
OPS_MAY_IMPORT = sys.stdlib_module_names | {"torch", "torchrb", "__future__"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
TORCH_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](torch|ATen|c10|aten|caffe2)/', re.MULTILINE)


def imported_names(source: Path, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for every import in a file, relative ones resolved against `package`.

    ``from a import b`` yields ``a.b``: b may be a module, and where it is not, the first parts are what the rules read.
    Imports under ``TYPE_CHECKING`` and inside functions count, as a reader has to follow them all the same.
    """
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            yield from (
                (node.lineno, ".".join([*base, node.module or "", alias.name]).replace("..", "."))
                for alias in node.names
            )


def import_faults(package_root: Path) -> list[str]:
    """Return one line for each import in the package under `package_root` that goes through a wall."""
    faults = []
    rooms = {path.name.removesuffix(".py") for path in package_root.iterdir()}
    for source in sorted(package_root.rglob("*.py")):
        inside = source.relative_to(package_root)
        room = inside.parts[0].removesuffix(".py")
        if room == "__init__":
            continue  # names only: the top of the house sees every room
        if room not in LEVEL:
            faults.append(
                f"{inside}: the room {room!r} is not in the picture; give it a layer in tests/test_architecture.py"
            )
            continue
        package = ".".join(["torchrb", *inside.parts[:-1]])
        for line, name in imported_names(source, package):
            where, parts = f"{inside}:{line}", name.split(".")
            if parts[0] == "torchrb":
                target = parts[1] if len(parts) > 1 else ""
                if target in rooms - LEVEL.keys():
                    continue  # that room is a fault already
                if target not in LEVEL:
                    faults.append(f"{where}: imports from the top of the package ({name}); import from the room itself")
                elif LEVEL[target] > LEVEL[room]:
                    faults.append(f"{where}: {room} imports upward ({target})")
                elif LEVEL[target] == LEVEL[room] and target != room and (room, target) not in ARROWS:
                    faults.append(f"{where}: {room} imports its sibling {target}, and no arrow leads there")
            elif room == "ops" and parts[0] not in OPS_MAY_IMPORT:
                faults.append(f"{where}: ops imports {parts[0]}; ops know torch only")
            elif room != KNOWS_OTHER_MACHINES and (parts[0] == "ray" or parts[:2] == ["torch", "distributed"]):
                faults.append(f"{where}: {room} imports {name}; only services know other machines")
    return faults


def include_faults(csrc: Path) -> list[str]:
    """Return one line for each file that must not know torch and includes one of its headers."""
    sources = [*csrc.glob("cuda/**/*.cuh"), *(path for path in csrc.glob("core/**/*") if path.is_file())]
    return [
        f"{path.relative_to(csrc)}: includes a torch header"
        for path in sorted(sources)
        if TORCH_INCLUDE.search(path.read_text())
    ]


def op_faults(root: Path, ops: Iterable[str]) -> list[str]:
    """Return one line for each op without a CPU kernel of its name, and each whose own test does not check the op.

    The check is `assert_op_is_sound` of ``tests/ops/cases.py``: opcheck and ``torch.compile``.
    """
    faults = []
    for op in ops:
        stem = op.rstrip("_")
        if not (root / f"csrc/cpu/{stem}.cpp").exists():
            faults.append(f"{op}: no csrc/cpu/{stem}.cpp")
        test = root / f"tests/ops/test_{stem}.py"
        if not test.exists() or not re.search(rf'assert_op_is_sound\(\s*"{op}"', test.read_text()):
            faults.append(f"{op}: tests/ops/test_{stem}.py does not call assert_op_is_sound on it")
    return faults


def mirror_faults(root: Path) -> list[str]:
    """Return one line for each module of the package without a test file in its place.

    The twins and the fakes of ``ops/`` are tested op by op, see `op_faults`.
    """
    faults = []
    for source in sorted((root / "torchrb").rglob("*.py")):
        inside = source.relative_to(root / "torchrb")
        if inside.name == "__init__.py" or inside.parts[:-1] == ("ops",) and inside.stem.startswith("reference"):
            continue
        test = inside.with_name(f"test_{inside.name}")
        if not (root / "tests" / test).exists():
            faults.append(f"torchrb/{inside}: no tests/{test}")
    return faults


def name_faults(*trees: Path) -> list[str]:
    """Return one line for each file or folder named after nothing in particular."""
    found = (path for tree in trees for path in sorted(tree.rglob("*")) if "__pycache__" not in path.parts)
    return [
        f"{path}: say what it is about"
        for path in found
        if path.name.split(".")[0].strip("_").lower() in FORBIDDEN_NAMES
    ]


def test_imports_go_downward():
    assert import_faults(ROOT / "torchrb") == []


def test_kernels_do_not_know_torch():
    assert include_faults(ROOT / "csrc") == []


def test_every_op_has_a_kernel_and_is_checked():
    assert op_faults(ROOT, op_names()) == []


def test_every_module_has_its_test():
    assert mirror_faults(ROOT) == []


def test_names_say_what_a_file_is_about():
    assert name_faults(*(ROOT / tree for tree in ("torchrb", "csrc", "examples", "benchmarks", "tests"))) == []


def test_every_room_of_the_picture_is_in_one_layer():
    assert sum(len(rooms) for rooms in LAYERS) == len(LEVEL)
    assert all(LEVEL[a] == LEVEL[b] for a, b in ARROWS)


def plant(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("journal.py", "from torchrb.buffer import ReplayBuffer\n", "journal imports upward (buffer)"),
        ("storages/tensor.py", "import torchrb.samplers.base\n", "storages imports upward (samplers)"),
        ("storages/tensor.py", "from ..samplers import base\n", "storages imports upward (samplers)"),
        ("storages/tensor.py", "from .. import buffer\n", "storages imports upward (buffer)"),
        ("journal.py", "def f():\n    from torchrb import groups\n", "journal imports its sibling groups"),
        ("selection/strategies.py", "from torchrb.samplers import base\n", "selection imports its sibling samplers"),
        ("updates.py", "import torchrb.buffer\n", "updates imports its sibling buffer"),
        ("writers/base.py", "from torchrb import ReplayBuffer\n", "from the top of the package"),
        ("writers/base.py", "import torchrb\n", "from the top of the package"),
        ("ops/schemas.py", "import tensordict\n", "ops know torch only"),
        ("ops/schemas.py", "from tensordict import TensorDict\n", "ops know torch only"),
        ("buffer/parts.py", "import ray\n", "only services know other machines"),
        ("storages/base.py", "from torch import distributed\n", "only services know other machines"),
        ("buffer/parts.py", "import torch.distributed.rpc\n", "only services know other machines"),
        ("gadgets.py", "", "is not in the picture"),
    ],
)
def test_an_import_through_a_wall_is_found(tmp_path, name, text, fault):
    plant(tmp_path, name, text)
    (found,) = import_faults(tmp_path)
    assert fault in found and name in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__init__.py", "from torchrb.buffer import ReplayBuffer\n"),
        (
            "buffer/parts.py",
            "from torchrb.updates import plan\nfrom torchrb import ops\nfrom tensordict import TensorDict\n",
        ),
        (
            "samplers/prompt_group.py",
            "from torchrb.selection import strategies\nfrom torchrb.groups import GroupIndex\n",
        ),
        ("storages/tensor.py", "from . import base\nfrom .base import Storage\nfrom ..journal import Journal\n"),
        ("services/ray.py", "import ray\nimport torch.distributed\n"),
        (
            "ops/loader.py",
            "import os\nimport torch.library\nfrom torchrb.ops import schemas\nfrom . import reference\n",
        ),
    ],
)
def test_an_import_through_a_door_is_not(tmp_path, name, text):
    plant(tmp_path, name, text)
    assert import_faults(tmp_path) == []


@pytest.mark.parametrize("header", ["<torch/csrc/stable/tensor.h>", '"ATen/ATen.h"', "<c10/util/Half.h>"])
@pytest.mark.parametrize("name", ["cuda/draw.cuh", "core/rng.h"])
def test_a_torch_header_where_kernels_live_is_found(tmp_path, name, header):
    plant(tmp_path, name, f"#pragma once\n#  include {header}\n")
    assert include_faults(tmp_path) == [f"{name}: includes a torch header"]


def test_a_torch_header_in_a_binding_is_not(tmp_path):
    plant(tmp_path, "cuda/draw.cu", "#include <torch/csrc/stable/tensor.h>\n")
    plant(tmp_path, "core/rng.h", "#include <cstdint>\n// as torch/headeronly does\n")
    assert include_faults(tmp_path) == []


def test_an_op_that_is_not_checked_is_found(tmp_path):
    plant(tmp_path, "csrc/cpu/draw.cpp", "")
    assert len(op_faults(tmp_path, ["write_"])) == 2
    assert op_faults(tmp_path, ["draw"]) == ["draw: tests/ops/test_draw.py does not call assert_op_is_sound on it"]
    plant(tmp_path, "tests/ops/test_draw.py", 'assert_op_is_sound("other", ())\n')
    assert len(op_faults(tmp_path, ["draw"])) == 1
    plant(tmp_path, "tests/ops/test_draw.py", 'assert_op_is_sound(\n    "draw", ())\n')
    assert op_faults(tmp_path, ["draw"]) == []


def test_a_module_without_a_test_is_found(tmp_path):
    for name in (
        "torchrb/__init__.py",
        "torchrb/ops/reference_draws.py",
        "torchrb/ops/rng.py",
        "torchrb/samplers/a.py",
    ):
        plant(tmp_path, name, "")
    plant(tmp_path, "tests/ops/test_rng.py", "")
    assert mirror_faults(tmp_path) == ["torchrb/samplers/a.py: no tests/samplers/test_a.py"]


@pytest.mark.parametrize("name", ["utils.py", "storages/_common.py", "helpers/draw.py", "misc.cuh"])
def test_a_name_that_says_nothing_is_found(tmp_path, name):
    plant(tmp_path, name, "")
    assert len(name_faults(tmp_path)) == 1
