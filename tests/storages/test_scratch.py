"""Files belong to one storage; they are begun, gone on with or refused, never mixed; and room is a question of time."""

from __future__ import annotations

import os
import re

import pytest

from torchrb.storages import scratch
from torchrb.storages.scratch import LOCK, NAMES, OBJECTS, RECORDS, RUN, VERSION, Scratch
from torchrb.storages.shared_memory import PAGE


def told(directory, max_size=4):
    """Files that say what their records are, as a storage leaves them."""
    files = Scratch.at(directory, max_size, False, "test")
    files.grow(2 * PAGE, "test")
    files.tell(files.prepare_to_tell({"tensor": "int8"}, "test"), PAGE)
    files.use()
    return files


def changed(directory, word, value):
    with open(directory / RECORDS, "r+b") as file:
        file.seek(8 * word)
        file.write(value.to_bytes(8, "little"))


def test_files_of_nobody_have_no_name_and_take_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = Scratch.nameless(10**6, "test")
    files.grow(10**9, "test")
    assert os.listdir(tmp_path) == [] and files.directory is None
    assert os.fstat(files.records.fd).st_blocks * 512 <= 8192 and os.fstat(files.objects.fd).st_blocks == 0
    assert str(files) == f"the temporary directory {str(tmp_path)!r}"


def test_a_directory_is_made_and_its_files_say_whose_they_are(tmp_path):
    files = Scratch.at(tmp_path / "a" / "b", 4, False, "test")
    assert sorted(os.listdir(tmp_path / "a" / "b")) == sorted(NAMES) and all(
        name.startswith("torchrb") for name in NAMES
    )
    assert not files.is_told and not files.was_interrupted


def test_what_was_told_is_there_again(tmp_path):
    told(tmp_path).close(remove=False)
    files = Scratch.at(tmp_path, 4, True, "test")
    assert files.is_told and files.told("test") == ({"tensor": "int8"}, PAGE) and not files.was_interrupted


def test_files_in_use_are_refused_whoever_uses_them(tmp_path):
    files = told(tmp_path)
    for existsok in (False, True):
        with pytest.raises(RuntimeError, match=f"is in use by process {os.getpid()}. Give another directory"):
            Scratch.at(tmp_path, 4, existsok, "test")
    assert files.told("test") == ({"tensor": "int8"}, PAGE)


def test_files_left_over_are_refused_or_gone_on_with(tmp_path):
    told(tmp_path).close(remove=False)
    with pytest.raises(FileExistsError, match="has the records of an earlier storage. existsok=True goes on with them"):
        Scratch.at(tmp_path, 4, False, "test")
    with pytest.raises(ValueError, match="holds a storage of max_size=4, got max_size=5"):
        Scratch.at(tmp_path, 5, True, "test")
    assert Scratch.at(tmp_path, 4, True, "test").is_told


@pytest.mark.parametrize("existsok", [False, True])
def test_files_that_were_only_begun_are_begun_anew(tmp_path, existsok):
    Scratch.at(tmp_path, 7, False, "test")
    assert not Scratch.at(tmp_path, 4, existsok, "test").is_told
    (tmp_path / RECORDS).write_bytes(b"\0" * 100)
    assert not Scratch.at(tmp_path, 4, existsok, "test").is_told


def test_files_of_somebody_else_are_left_alone(tmp_path):
    (tmp_path / RECORDS).write_bytes(b"a diary" * 1000)
    with pytest.raises(ValueError, match=r"torchrb.records' is not a file of torchrb"):
        Scratch.at(tmp_path, 4, True, "test")
    assert (tmp_path / RECORDS).read_bytes() == b"a diary" * 1000
    (tmp_path / RECORDS).unlink()
    (tmp_path / "diary").write_text("dear")
    (tmp_path / RECORDS).symlink_to(tmp_path / "diary")
    with pytest.raises(OSError, match="cannot keep records in scratch_dir"):
        Scratch.at(tmp_path, 4, True, "test")
    assert (tmp_path / "diary").read_text() == "dear"


def test_another_format_is_refused(tmp_path):
    told(tmp_path)
    changed(tmp_path, VERSION, 99)
    with pytest.raises(ValueError, match="was written in format 99, and this torchrb reads 1"):
        Scratch.at(tmp_path, 4, True, "test")


@pytest.mark.parametrize("word", [scratch.TABLE_AT, scratch.TOLD_BYTES, scratch.TOLD_HASH])
@pytest.mark.parametrize("value", [1, 77, 2**40, 2**63 - 1])
def test_a_damaged_beginning_is_noticed(tmp_path, word, value):
    told(tmp_path)
    changed(tmp_path, word, value)
    with pytest.raises(ValueError, match="is damaged: it does not say what its records are"):
        Scratch.at(tmp_path, 4, True, "test").told("test")


def test_a_damaged_description_is_noticed(tmp_path):
    told(tmp_path)
    content = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(content.replace(b"int8", b"int9"))
    with pytest.raises(ValueError, match="is damaged"):
        Scratch.at(tmp_path, 4, True, "test").told("test")


def test_a_machine_that_stopped_meanwhile_is_noticed(tmp_path):
    told(tmp_path)  # never closed
    assert not Scratch.at(tmp_path, 4, True, "test").was_interrupted  # but its machine still runs
    changed(tmp_path, RUN, 12345)
    files = Scratch.at(tmp_path, 4, True, "test")
    assert files.was_interrupted
    files.use()
    assert not files.was_interrupted
    files.close(remove=False)
    del files
    assert not Scratch.at(tmp_path, 4, True, "test").was_interrupted


def test_removing_takes_its_own_files_and_nothing_else(tmp_path):
    (tmp_path / "mine").write_text("x")
    told(tmp_path).close(remove=True)
    assert os.listdir(tmp_path) == ["mine"]
    told(tmp_path / "new").close(remove=True)
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("where", ["/proc/torchrb", "/dev/null", "/dev/null/deeper"])
def test_a_directory_that_cannot_be_says_so(where):
    with pytest.raises(OSError, match=re.escape(f"test: cannot keep records in scratch_dir={where!r}: ")) as caught:
        Scratch.at(where, 4, False, "test")
    assert caught.value.errno and "Give a directory" in str(caught.value)


# --- room


def test_room_is_taken_some_way_ahead_of_the_rows(tmp_path):
    files = Scratch.at(tmp_path, 4, False, "test")
    files.grow(100 * PAGE, "test")
    table = files.records.tensor(PAGE, 99 * PAGE, large_pages=False)
    files.lay(PAGE, 0)

    def on_disk():
        return os.fstat(files.records.fd).st_blocks * 512

    files.reserve(0, 1000, "test")
    table[:1000] = 1
    assert 64 << 10 <= on_disk() <= 100 << 10
    files.reserve(50_000, 60_000, "test")
    assert on_disk() <= 100 << 10  # was there already
    files.reserve(10 * PAGE, 10 * PAGE + 1, "test")
    table[10 * PAGE] = 1
    assert 10 * PAGE <= on_disk() <= 14 * PAGE
    files.reserve(98 * PAGE, 99 * PAGE, "test")
    assert on_disk() <= 15 * PAGE  # far beyond the others
    files.reserve(0, 99 * PAGE, "test")
    assert 99 * PAGE <= on_disk() <= 99 * PAGE + 8192  # and never more than the file has


def test_no_room_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    files = Scratch.at(tmp_path, 4, False, "test")
    files.grow(2 * PAGE, "test")
    files.lay(PAGE, 0)
    monkeypatch.setattr(os, "posix_fallocate", _full)
    with pytest.raises(
        OSError, match="no room for more records in scratch_dir=.*No space left.*Free some space"
    ) as caught:
        files.reserve(0, 10, "test")
    assert caught.value.errno == 28
    monkeypatch.undo()
    files.reserve(0, 10, "test")


def _full(*_):
    raise OSError(28, os.strerror(28))


def test_the_lock_names_its_holder(tmp_path):
    files = Scratch.at(tmp_path, 4, False, "test")
    assert (tmp_path / LOCK).read_text() == str(os.getpid()) and (tmp_path / OBJECTS).read_bytes() == b""
    del files
