"""Law 8 for dumps: whatever was done to the files, a load gives what was saved, or raises, names the file, and changes
nothing; and nothing in a file is ever executed.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil

import pytest
import torch

from tests.spec import dumps
from tests.spec.snapshot import assert_unchanged, snapshot
from torchrb import LazyStackStorage, LazyTensorStorage, ListStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrb.ops.schemas import SLOT_BUSY
from torchrb.persistence import content, folder

NAME = "torchrb-" + "0" * 32 + ".content"


@pytest.fixture
def place(tmp_path):
    """A dump of a head, two segments of rows, and a state beside."""
    rb = dumps.buffer(0, num=5)
    rb.dumps(tmp_path)
    rb[0] = dumps.rows(7, 1)[0]
    rb.dumps(tmp_path)
    assert len(dumps.content_files(tmp_path)) == 4
    return tmp_path


def refused(place, match, kind=ValueError, rb=None):
    """Loading raises, and changes nothing."""
    rb = dumps.buffer(50) if rb is None else rb
    before = snapshot(rb)
    with pytest.raises(kind, match=match) as caught:
        rb.loads(place)
    assert_unchanged(before, rb)
    return str(caught.value)


# --- damaged --------------------------------------------------------------------------------------------------------


def test_a_bit_that_changed_in_any_byte_of_any_file_is_an_error_that_names_it(place):
    rb, tried = dumps.buffer(50), 0
    before = dumps.told(rb)
    for file, whole in dumps.files_of(place).items():
        for at, text in dumps.one_bit_off(whole, step=1 if file == "torchrb.manifest" else 3):
            (place / file).write_bytes(text)
            with pytest.raises(ValueError, match=re.escape(str(place / file))):
                if at % 20:  # which is what a load does first
                    with folder.opened(place) as dump:
                        for entry in (entry for entries in dump.parts.values() for entry in entries):
                            dump.read(entry)
                else:
                    rb.loads(place)
            tried += 1
        (place / file).write_bytes(whole)
    assert tried > 1000 and dumps.told(rb) == before
    rb.loads(place)
    assert rb[:]["id"].tolist() == [7, 1, 2, 3, 4]


@pytest.mark.parametrize("change", ["cut off", "empty", "longer", "missing", "another one"])
def test_a_file_that_is_not_whole_is_an_error_that_names_it(place, change):
    files = dumps.files_of(place)
    for file, whole in files.items():
        if change == "missing":
            (place / file).unlink()
        else:
            other = next(text for name, text in files.items() if name != file)
            text = {"cut off": whole[:-1], "empty": b"", "longer": whole + b"\0", "another one": other}[change]
            (place / file).write_bytes(text)
        missing = change == "missing"
        where = re.escape(str(place)) if file == "torchrb.manifest" else re.escape(str(place / file))
        refused(place, where, FileNotFoundError if missing else ValueError)
        (place / file).write_bytes(whole)


def test_a_file_that_is_none_is_not_opened(place, tmp_path_factory):
    for file, whole in dumps.files_of(place).items():
        path, elsewhere = place / file, tmp_path_factory.mktemp("elsewhere") / "file"
        elsewhere.write_bytes(whole)
        path.unlink()
        path.symlink_to(elsewhere)
        refused(place, re.escape(str(path)) + " is a link")
        path.unlink()
        os.mkfifo(path)
        refused(place, re.escape(str(path)) + " is not an ordinary file")
        path.unlink()
        path.mkdir()
        refused(place, re.escape(str(path)) + " is not an ordinary file")
        path.rmdir()
        path.write_bytes(whole)


def test_there_has_to_be_a_dump(tmp_path):
    for missing in (tmp_path, tmp_path / "nothing"):
        refused(missing, "there is no dump in", FileNotFoundError)


# --- written by somebody else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", f"{NAME}/../../secret", f"sub/{NAME}", f"../{NAME}", f"{NAME}\n", NAME.upper()]
    + ["torchrb.manifest", "", ".", "..", None, 3],
)
def test_no_name_leads_out_of_the_directory(place, tmp_path_factory, name):
    listed = dumps.manifest(place)
    listed["parts"]["storage"][0][0] = name
    dumps.sign(place, listed)
    refused(place, "names a file .*, which is none that a dump has")


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def test_bytes_that_ask_to_be_executed_are_refused(place, tmp_path_factory):
    mark = tmp_path_factory.mktemp("mark") / "executed"
    bomb = pickle.dumps(Bomb(mark))
    saved = tmp_path_factory.mktemp("saved") / "file"
    torch.save({"bomb": Bomb(mark)}, saved)
    for text in (bomb, saved.read_bytes(), b"torchrb1" + len(bomb).to_bytes(8, "little") + bomb):
        copy = tmp_path_factory.mktemp("copy")
        for part, number in (("storage", 0), ("storage", 1), ("buffer", 0)):
            shutil.copytree(place, copy / f"{part}{number}")
            dumps.replace(copy / f"{part}{number}", part, number, lambda path: dumps.write_bytes(path, text))  # noqa: B023
            refused(copy / f"{part}{number}", "Nothing was loaded")
    (place / "torchrb.manifest").write_bytes(bomb)
    refused(place, "is not the manifest of a dump")
    dumps.sign(place, bomb)
    refused(place, "torchrb.manifest")
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:exec", "subprocess:Popen", "torch.nn:Linear", "nowhere:Thing", "os", ":", "", 3, []]
)
def test_no_class_is_looked_for_that_is_not_a_known_tensorclass(place, name):
    def change(state):
        state["example"]["class"] = name
        return state

    dumps.rewrite(place, "storage", 0, change)
    refused(place, "which this process does not know|must be|is not a saved|holds what no dump does", rb=None)


@pytest.mark.parametrize("depth", [10**5, 10**6])
def test_a_file_that_nests_without_end_is_refused(place, depth):
    text = b"[[" + b"[" * depth + b"]" * depth + b",[]],[]]"
    head = b"torchrb1" + len(text).to_bytes(8, "little") + text
    whole = head.ljust(-(-len(head) // 64) * 64)
    dumps.replace(place, "storage", 0, lambda path: dumps.write_bytes(path, whole))
    refused(place, "Nothing was loaded")


def test_nothing_is_allocated_that_the_file_does_not_have(place):
    for shape in ([2**40], [2**31, 2**31], [2**62, 2**62], [-1], [2.0], "x", [2**61, 0, 2**61]):
        for dtype in ("float64", "uint8", "int3", "quint8", ["x"], None):
            text = f'[{{"$":0}},[["{dtype}",{shape if shape != "x" else 0},0]]]'.encode()
            head = (b"torchrb1" + len(text).to_bytes(8, "little") + text).ljust(-(-(16 + len(text)) // 64) * 64)
            dumps.replace(place, "storage", 0, lambda path: dumps.write_bytes(path, head + bytes(64), len(head)))  # noqa: B023
            refused(place, "Nothing was loaded|holds no state of a storage")


CHANGES = {
    "cursor past the end": lambda s: s | {"cursor": 5},
    "negative cursor": lambda s: s | {"cursor": -1},
    "length past the capacity": lambda s: s | {"length": 6},
    "length past the rows": lambda s: s | {"capacity": 9, "length": 6},
    "negative length": lambda s: s | {"length": -1},
    "length True": lambda s: s | {"length": True},
    "float writes": lambda s: s | {"writes": 1.5},
    "stamp of the past": lambda s: s | {"stamp": 1},
    "no capacity": lambda s: {k: v for k, v in s.items() if k != "capacity"},
    "capacity 0": lambda s: s | {"capacity": 0},
    "no example": lambda s: s | {"example": None},
    "a number for an example": lambda s: s | {"example": 3},
    "another example": lambda s: s | {"example": torch.zeros(0, 3)},
    "no layout": lambda s: s | {"layout": []},
    "layout beyond the row": lambda s: s | {"layout": [s["layout"][0], 10**6, *s["layout"][2:]]},
    "layout before the row": lambda s: s | {"layout": [s["layout"][0], -8, *s["layout"][2:]]},
    "layout in no table": lambda s: s | {"layout": [7, *s["layout"][1:]]},
    "layout of floats": lambda s: s | {"layout": [float(x) for x in s["layout"]]},
    "another kind": lambda s: s | {"kind": "objects"},
    "a list": lambda s: [s],
    "None": lambda s: None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_state_that_no_storage_saves_is_refused(place, change):
    dumps.rewrite(place, "storage", 0, change)
    for rb in (dumps.buffer(50), dumps.buffer(num=0)):
        refused(place, "loads: ", (ValueError, KeyError), rb=rb)


def busy(rows):
    rows["tables"][0].view(torch.int64)[2, 0] |= SLOT_BUSY
    return rows


def negative(rows):
    rows["tables"][0].view(torch.int64)[1, 0] = -1
    return rows


ROWS = {
    "a record that is being written": busy,
    "a negative count": negative,
    "no tables": lambda r: r | {"tables": []},
    "tables of another dtype": lambda r: r | {"tables": [t.view(torch.int8) for t in r["tables"]]},
    "narrow tables": lambda r: r | {"tables": [t[:, :8] for t in r["tables"]]},
    "short tables": lambda r: r | {"tables": [t[:2] for t in r["tables"]]},
    "more rows than there are": lambda r: r | {"num": 9},
    "slots without an order": lambda r: r | {"slots": torch.tensor([0, 2, 1, 3, 4])},
    "negative slots": lambda r: r | {"slots": torch.arange(5) - 1},
    "slots of another dtype": lambda r: r | {"slots": torch.arange(5).int()},
    "no texts": lambda r: r | {"objects": []},
    "few texts": lambda r: r | {"objects": [r["objects"][0][:2]]},
    "texts that are no list": lambda r: r | {"objects": ["abcde"]},
    "a text of no kind": lambda r: r | {"objects": [[{"type": "function"}] * 5]},
    "a text without a type": lambda r: r | {"objects": [[{}] * 5]},
    "None": lambda r: None,
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS.keys())
def test_rows_that_no_storage_saves_are_refused(place, change):
    dumps.rewrite(place, "storage", 1, change)
    for rb in (dumps.buffer(50), dumps.buffer(num=0)):
        refused(place, "loads: ", rb=rb)


BESIDE = {
    "another sampler": lambda b: b | {"sampler": {"kind": "RandomSampler", "state": {}}},
    "another writer": lambda b: b | {"writer": {"kind": "RoundRobinWriter", "state": {}}},
    "a writer's state": lambda b: b | {"writer": b["writer"] | {"state": {"x": 1}}},
    "no sampler": lambda b: {k: v for k, v in b.items() if k != "sampler"},
    "a pass beyond the rows": lambda b: b | {"sampler": sampler_of(b, size=6)},
    "a pass drawn beyond its end": lambda b: b | {"sampler": sampler_of(b, drawn=6)},
    "a pass with members that are no records": lambda b: b | {"sampler": sampler_of(b, members=torch.arange(5) + 1)},
    "a pass whose seed is a float": lambda b: b | {"sampler": sampler_of(b, seed=torch.ones(1))},
    "a generator of no device": lambda b: b | {"generator": b["generator"] | {"device": "meta"}},
    "a generator's state that is short": lambda b: b | {"generator": b["generator"] | {"state": torch.zeros(3).byte()}},
    "counts": lambda b: b | {"consumption": {}},
}  # fmt: skip


def sampler_of(beside, **changed):
    state = beside["sampler"]["state"]
    return beside["sampler"] | {"state": state | {"pass": state["pass"] | changed}}


@pytest.mark.parametrize("change", BESIDE.values(), ids=BESIDE.keys())
def test_what_is_beside_the_records_is_validated_before_they_change(place, change):
    dumps.rewrite(place, "buffer", 0, change)
    for rb in (dumps.buffer(50), dumps.buffer(num=0)):
        refused(place, "load", rb=rb)


# --- of another version, of another buffer --------------------------------------------------------------------------


def test_a_newer_version_is_a_clear_error(place):
    dumps.sign(place, {"whatever": "that one has"}, version=2)
    refused(place, "is of version 2, and this torchrb reads versions up to 1. Use the torchrb that wrote it")


@pytest.mark.parametrize(("part", "number"), [("storage", 0), ("buffer", 0)])
def test_a_newer_state_is_a_clear_error(place, part, number):
    dumps.rewrite(place, part, number, lambda state: state | {"format": 2})
    refused(place, "format 2, and this torchrb knows formats up to 1")


def test_a_dump_of_other_records_is_refused(place):
    def holding(storage, data):
        rb = dumps.buffer(num=0)
        rb.set_storage(storage)
        if data is not None:
            rb.extend(data)
        return rb

    rows = dumps.rows(0, 2)
    refused(place, "has 5 records, and there is room for 4", rb=holding(LazyTensorStorage(4), None))
    refused(place, r"of other fields: expected .*, got .*'id' torch.int64 \[\]",
            rb=holding(LazyTensorStorage(9), rows.exclude("id")))  # fmt: skip
    float_ids = rows.clone().set("id", rows["id"].double())
    refused(
        place,
        r"expected .*'id' torch.float64 \[\].*, got .*'id' torch.int64",
        rb=holding(LazyTensorStorage(9), float_ids),
    )
    for tensor in (torch.zeros(2, 3), torch.zeros(2)):
        refused(place, "of other fields", rb=holding(LazyTensorStorage(9), tensor))
    refused(place, "keeps objects", rb=holding(ListStorage(9), None))
    refused(place, "keeps tensordicts", rb=holding(LazyStackStorage(9), None))


def test_a_dump_of_a_buffer_that_drew_otherwise_is_refused(place):
    rb = dumps.buffer(50)
    rb.set_sampler(SamplerWithoutReplacement(shuffle=False))
    refused(place, "shuffle=True, and this one has shuffle=False", rb=rb)
    rb = dumps.buffer(50)
    rb.generator = None
    refused(place, "a generator on 'cpu'; this one has none of its own", rb=rb)
    rb.storage.loads(place)  # as the error says
    assert rb[:]["id"].tolist() == [7, 1, 2, 3, 4]


def test_a_dump_of_a_storage_alone_is_not_one_of_a_buffer(tmp_path):
    rb = dumps.buffer(0)
    rb.storage.dumps(tmp_path)
    refused(tmp_path, r"is that of a storage, not of a buffer. Load it there: rb.storage.loads\(path\)")


# --- what cannot be saved -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"a": [1, (2, object())]}, r"record 1\['a'\]\[1\]\[1\] is a builtins.object"),
        ({1, 2}, "record 1 is a builtins.set"),
        (print, "record 1 is a builtins.builtin_function_or_method"),
        ({object: 1}, "record 1 key <class 'object'> is a builtins.type"),
        (torch.ones(2).to_sparse(), "record 1 is a tensor that cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path, record, told):
    rb = ReplayBuffer(storage=ListStorage(5))
    rb.extend([1])
    rb.dumps(tmp_path)
    files = dumps.files_of(tmp_path)
    rb.add(record)
    with pytest.raises(TypeError, match=told):
        rb.dumps(tmp_path)
    with pytest.raises(TypeError, match=told):
        rb.state_dict()
    assert dumps.files_of(tmp_path) == files
    with pytest.raises(TypeError, match=told):
        rb.dumps(tmp_path / "new" / "place")
    assert not (tmp_path / "new").exists()


def test_a_content_file_is_what_its_entry_says(tmp_path):
    """Of the parts that are looked at by themselves: whatever is claimed of a file's head is held against it."""
    path = tmp_path / "file"
    size, head, sums = dumps.write_tree(path, {"x": torch.arange(10), "big": torch.arange(200_000.0)})
    with open(path, "rb") as file:
        read = content.read(file.fileno(), content.Entry(size, head, sums))
        assert read["x"].tolist() == list(range(10)) and read["big"][-1] == 199_999
        for entry in ((size + 1, head, sums), (size, head + 64, sums), (size, 0, sums), (size, size + 1, sums),
                      (size, head, sums[:-1]), (size, head, [*sums, "0"]), (size, head, [])):  # fmt: skip
            with pytest.raises((ValueError, IndexError)):
                content.read(file.fileno(), content.Entry(*entry))
