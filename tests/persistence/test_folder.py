import os
import threading

import pytest
import torch

from torchrb.persistence import Dump, FileEntry, opened, saved
from torchrb.persistence.folder import MANIFEST


def read(place, part="p"):
    with opened(place) as dump:
        return [dump.read(entry) for entry in dump.parts[part]]


def test_parts_come_back_in_order(tmp_path):
    dump = saved(tmp_path / "a" / "b", "kind", lambda before: {"p": [1, {"x": torch.arange(2)}], "q": [], "r": ["é"]})
    assert dump.kind == "kind" and [*dump.parts] == ["p", "q", "r"]
    first, second = read(tmp_path / "a" / "b")
    assert first == 1 and second["x"].tolist() == [0, 1] and read(tmp_path / "a" / "b", "q") == []
    with opened(str(tmp_path / "a" / "b")) as again:
        assert again.id == dump.id and again.parts == dump.parts


def test_files_of_the_dump_before_can_stay(tmp_path):
    seen: list[Dump | None] = []

    def parts(new, kept=()):
        def make(before):
            seen.append(before)
            return {"p": [*([] if before is None else [before.parts["p"][i] for i in kept]), *new]}

        return make

    first = saved(tmp_path, "kind", parts(["a", "b"]))
    names = set(os.listdir(tmp_path))
    second = saved(tmp_path, "kind", parts(["c"], kept=[1]))
    assert seen[0] is None and seen[1].id == first.id != second.id
    assert read(tmp_path) == ["b", "c"]
    assert len(names & set(os.listdir(tmp_path))) == 2 and len(os.listdir(tmp_path)) == 3
    assert isinstance(second.parts["p"][0], FileEntry) and second.parts["p"][0] == first.parts["p"][1]


def test_a_dump_that_lacks_a_file_is_none_to_go_on_from(tmp_path):
    first = saved(tmp_path, "kind", lambda before: {"p": ["a"]})
    (tmp_path / first.parts["p"][0].name).write_bytes(b"short")
    seen = []
    saved(tmp_path, "kind", lambda before: seen.append(before) or {"p": ["b"]})
    (tmp_path / MANIFEST).write_bytes(b"torchrb dump, and so on")
    saved(tmp_path, "kind", lambda before: seen.append(before) or {"p": ["c"]})
    assert seen == [None, None] and read(tmp_path) == ["c"]


def test_a_load_waits_for_a_dump_and_a_dump_for_a_load(tmp_path):
    saved(tmp_path, "kind", lambda before: {"p": [0]})
    order = []

    def slow(before):
        other.start()
        order.append("dump")
        return {"p": [1]}

    other = threading.Thread(target=lambda: order.append(read(tmp_path)))
    saved(tmp_path, "kind", slow)
    other.join()
    assert order == ["dump", [1]]
    other = threading.Thread(target=lambda: saved(tmp_path, "kind", lambda before: order.append("dump") or {"p": [2]}))
    with opened(tmp_path) as dump:
        other.start()
        other.join(0.05)
        order.append([dump.read(entry) for entry in dump.parts["p"]])
    other.join()
    assert order[2:] == [[1], "dump"] and read(tmp_path) == [2]


def test_two_loads_do_not_wait_for_each_other(tmp_path):
    saved(tmp_path, "kind", lambda before: {"p": [0]})
    with opened(tmp_path), opened(tmp_path) as dump:
        assert dump.read(dump.parts["p"][0]) == 0


def test_what_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        saved(tmp_path / "new", "kind", lambda before: {"p": [1 // 0]})
    assert os.listdir(tmp_path) == []
    with pytest.raises(TypeError):
        saved(tmp_path, "kind", lambda before: {"p": ["whole", object()]})
    assert os.listdir(tmp_path) == []
