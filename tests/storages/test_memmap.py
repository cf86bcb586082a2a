"""Records in a file are records like any others, and are there another day; what cannot be gone on with says so."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, is_tensor_collection, tensorclass
from torch.utils._pytree import tree_leaves

from tests.spec import processes
from tests.spec.builders import group_sampler, numbered, numbers_of
from tests.spec.processes import call
from tests.spec.snapshot import assert_unchanged, same, snapshot
from torchrb import LazyMemmapStorage, ReplayBuffer, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from torchrb.storages.scratch import NAMES, RUN


def buffer_at(directory, capacity=8, *, numbers=(), sampler=None, **kwargs):
    rb = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(capacity, scratch_dir=directory, **kwargs),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=sampler or group_sampler("reward", num_groups=2),
        generator=torch.Generator().manual_seed(0),
    )
    if len(numbers):
        rb.extend(numbered(numbers))
    return rb


# --- another day ----------------------------------------------------------------------------------------------------


def test_another_day_rows_handles_counters_and_draws_are_there(tmp_path):
    rb = buffer_at(tmp_path, numbers=range(11))
    index, generation = rb.extend(numbered([20, 21]), return_generations=True)
    before = (len(rb), rb.write_count, rb.storage.cursor, numbers_of(rb[:]), rb.writer.generations_of(torch.arange(9)))
    drawn = numbers_of(rb.sample(4))
    del rb
    rb = buffer_at(tmp_path, existsok=True)
    after = (len(rb), rb.write_count, rb.storage.cursor, numbers_of(rb[:]), rb.writer.generations_of(torch.arange(9)))
    assert after[:4] == before[:4] and torch.equal(after[4], before[4])
    assert numbers_of(rb.sample(4)) == drawn
    assert rb.update_if_present(index=index, generation=generation, patch={"text": ["p", "q"]}).updated_count == 2
    assert rb[index]["text"] == ["p", "q"]
    assert rb.extend(numbered([30])).tolist() == [5] and numbers_of(rb[5:6]) == [30]


def test_handles_of_yesterday_never_name_a_record_of_today(tmp_path):
    rb = buffer_at(tmp_path)
    handles = [rb.extend(numbered(range(8)), return_generations=True) for _ in range(3)]
    for _ in range(3):
        del rb
        rb = buffer_at(tmp_path, existsok=True)
        handles.append(rb.extend(numbered(range(8)), return_generations=True))
    given = [pair for index, generation in handles for pair in zip(index.tolist(), generation.tolist(), strict=True)]
    assert len(set(given)) == len(given)
    for index, generation in handles[:-1]:
        patch = {"n": torch.zeros(8, dtype=torch.int64)}
        assert rb.update_if_present(index=index, generation=generation, patch=patch).stale_count == 8


def test_a_storage_is_gone_on_with_only_when_that_is_asked_for(tmp_path):
    rb = buffer_at(tmp_path, numbers=range(3))
    with pytest.raises(RuntimeError, match=f"LazyMemmapStorage: scratch_dir=.* is in use by process {os.getpid()}"):
        buffer_at(tmp_path, existsok=True)
    del rb
    with pytest.raises(FileExistsError, match="LazyMemmapStorage: .*existsok=True goes on with them"):
        buffer_at(tmp_path)
    assert numbers_of(buffer_at(tmp_path, existsok=True)[:]) == [0, 1, 2]


def test_an_emptied_storage_is_gone_on_with_too(tmp_path):
    rb = buffer_at(tmp_path, numbers=range(3))
    rb.empty()
    del rb
    rb = buffer_at(tmp_path, existsok=True)
    assert len(rb) == 0
    with pytest.raises(KeyError):
        rb.extend(TensorDict({"other": torch.zeros(2)}, [2]))
    rb.extend(numbered([7]))
    assert numbers_of(rb[:]) == [7]


def test_nothing_written_is_nothing_left_over(tmp_path):
    LazyMemmapStorage(4, scratch_dir=tmp_path)
    rb = buffer_at(tmp_path, 5)
    with pytest.raises(TypeError):
        rb.extend(TensorDict({"g": [object(), object()]}, [2]))
    del rb
    assert buffer_at(tmp_path, 6).extend(numbered([1])).tolist() == [0]


def plain(batch):
    """A batch as tensors and lists of values."""
    if not is_tensor_collection(batch):
        return tree_leaves(batch)
    return [value if isinstance(value, torch.Tensor) else value.tolist() for value in batch.values(True, True)]


@tensorclass
class Rollout:
    tokens: torch.Tensor
    prompt: str


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.arange(n),
        lambda n: (torch.arange(n), [torch.zeros(n, 2, dtype=torch.bfloat16)]),
        lambda n: {"a": torch.arange(n), 30: {"c": (torch.ones(n, 0),)}},
        lambda n: Rollout(tokens=torch.arange(n), prompt=[f"é{i}" for i in range(n)], batch_size=[n]),
        lambda n: TensorDict({"a": TensorDict({"b": torch.arange(2 * n).view(n, 2)}, [n, 2])}, [n, 2]),
        lambda n: TensorDict({"a": TensorDict({"text": [None] * n}, [n])}, [n]),
    ],
)
def test_records_of_every_make_are_there_another_day(tmp_path, make):
    batch = make(3)
    rb = ReplayBuffer(storage=LazyMemmapStorage(5, scratch_dir=tmp_path))
    rb.extend(batch)
    before = rb[:]
    del rb
    rb = ReplayBuffer(storage=LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True))
    assert type(rb[:]) is type(before) is type(batch) and repr(rb[:]) == repr(before)
    assert same(plain(rb[:]), plain(before)) and same(plain(before), plain(batch))
    rb.extend(batch)
    assert len(rb) == 5


def test_a_resume_that_fails_leaves_the_files_as_they_were(tmp_path, monkeypatch):
    ReplayBuffer(storage=LazyMemmapStorage(5, scratch_dir=tmp_path)).extend(
        Rollout(tokens=torch.arange(3), prompt=["a"] * 3, batch_size=[3])
    )
    with open(tmp_path / NAMES[0], "r+b") as file:  # as if the machine had stopped
        file.seek(8 * RUN)
        file.write((77).to_bytes(8, "little"))
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules[__name__], "Rollout")
        with pytest.raises(TypeError, match="records are of Rollout in the module .* Import that module first"):
            LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True)
    with pytest.warns(RuntimeWarning, match="was in use when its machine stopped, or is on another one"):
        storage = LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True)
    assert storage[:].tokens.tolist() == [0, 1, 2]


def test_only_the_same_kind_of_records_goes_on(tmp_path):
    buffer_at(tmp_path, numbers=range(3))
    rb = buffer_at(tmp_path, existsok=True)
    before = snapshot(rb)
    with pytest.raises(ValueError, match="field 'half' is stored as torch.bfloat16"):
        rb.extend(numbered([1]).apply(lambda leaf: leaf.float() if leaf.dtype == torch.bfloat16 else leaf))
    assert_unchanged(before, rb)


# --- files ----------------------------------------------------------------------------------------------------------


def test_without_a_directory_nothing_can_be_seen_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rb = buffer_at(None, numbers=range(4))
    assert os.listdir(tmp_path) == [] and rb.storage.scratch_dir is None
    assert rb.storage.cleanup() is False and numbers_of(rb[:]) == [0, 1, 2, 3]


def test_a_large_storage_takes_up_what_was_written(tmp_path):
    rb = ReplayBuffer(storage=LazyMemmapStorage(1_000_000, scratch_dir=tmp_path))
    rb.extend(torch.ones(10, 1000))

    def on_disk():
        return sum(os.stat(tmp_path / name).st_blocks * 512 for name in NAMES)

    assert on_disk() < 10 * 4016 + 150_000 and os.stat(tmp_path / NAMES[0]).st_size > 4_000_000_000
    rb.extend(torch.ones(5000, 1000))
    assert on_disk() < 1.3 * 5010 * 4016


def test_files_go_when_that_was_asked_for(tmp_path, monkeypatch):
    there = tmp_path / "there"
    rb = buffer_at(there, numbers=range(3), auto_cleanup=True)
    assert sorted(os.listdir(there)) == sorted(NAMES)
    del rb
    assert not there.exists()

    rb = buffer_at(there, numbers=range(3))
    assert rb.storage.cleanup() is True and not there.exists() and rb.storage.cleanup() is False
    rb.extend(numbered([3]))
    assert numbers_of(rb[:]) == [0, 1, 2, 3]

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rb = buffer_at(None, numbers=range(3), auto_cleanup=False)
    kept = rb.storage.scratch_dir
    del rb
    assert kept.startswith(str(tmp_path / "torchrb-memmap-"))
    assert numbers_of(buffer_at(kept, existsok=True)[:]) == [0, 1, 2]


def test_files_are_closed_or_gone_when_a_process_ends(tmp_path):
    script = f"""
import torch, torchrb
for name, cleanup in (("kept", None), ("gone", True)):
    storage = torchrb.LazyMemmapStorage(4, scratch_dir={str(tmp_path)!r} + "/a " + name, auto_cleanup=cleanup)
    storage.append(torch.arange(3))
    globals()[name] = storage
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    process = processes.start(leave_files, tmp_path, "b")
    process.join(processes.PATIENCE)
    for name in ("a", "b"):
        assert sorted(os.listdir(tmp_path)) == ["a kept", "b kept"]
        there = tmp_path / f"{name} kept"
        assert not int.from_bytes((there / NAMES[0]).read_bytes()[8 * RUN : 8 * RUN + 8], "little")
        assert LazyMemmapStorage(4, scratch_dir=there, existsok=True)[:].tolist() == [0, 1, 2]


_left = []


def leave_files(directory, name):
    for kind, cleanup in (("kept", None), ("gone", True)):
        _left.append(LazyMemmapStorage(4, scratch_dir=directory / f"{name} {kind}", auto_cleanup=cleanup))
        _left[-1].append(torch.arange(3))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("word", range(24))
def test_a_damaged_beginning_is_refused_or_harmless(tmp_path, word):
    for number, value in enumerate((-1, 3, 2**62)):
        there = tmp_path / str(number)
        buffer_at(there, numbers=range(3))
        with open(there / NAMES[0], "r+b") as file:
            file.seek(8 * word)
            file.write(value.to_bytes(8, "little", signed=True))
        try:
            rb = buffer_at(there, existsok=True)
        except (ValueError, FileExistsError) as error:
            assert "scratch_dir" in str(error) or "is not a file of torchrb" in str(error)
            continue
        if len(rb) == 3:
            with contextlib.suppress(ValueError):  # a string that is not where it was
                assert numbers_of(rb[:]) == [0, 1, 2]


def test_a_short_file_is_refused(tmp_path):
    buffer_at(tmp_path, numbers=range(3))
    os.truncate(tmp_path / NAMES[0], os.stat(tmp_path / NAMES[0]).st_size - 1)
    with pytest.raises(ValueError, match="damaged: the file of records is short"):
        buffer_at(tmp_path, existsok=True)


# --- room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_is_an_error_that_changes_nothing(tmp_path, monkeypatch, first):
    rb = buffer_at(tmp_path, 100_000, numbers=() if first else [1])
    before = snapshot(rb)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("posix_fallocate", "pwrite", "ftruncate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            if name != "ftruncate" or first:
                with pytest.raises(OSError, match=r"no room for .*No space left on device\. Free some space"):
                    rb.extend(numbered(range(5000)))
            assert_unchanged(before, rb)
    rb.extend(numbered([2]))
    assert numbers_of(rb[:]) == ([2] if first else [1, 2])


def test_a_limit_on_the_size_of_files_is_an_error(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    rb = buffer_at(tmp_path, 1_000_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="no room for a file of .* bytes in .*File too large"):
            rb.extend(numbered(range(3)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    rb.extend(numbered(range(3)))
    assert numbers_of(rb[:]) == [0, 1, 2]


# --- strings and other values ---------------------------------------------------------------------------------------


def test_values_beside_the_records_come_back_as_what_they_were(tmp_path):
    values = ["a", "", "é\ud800\0", None, 3, 2.5, True, b"\0", ["x", ("y", {"z": None})], 2**100]
    rb = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path))
    for value in values:
        rb.add(TensorDict({"v": NonTensorData(value)}, []))
    for _ in range(2):
        assert [row["v"] for row in rb[:].unbind(0)] == values
        rb = None
        rb = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True))


@pytest.mark.parametrize("value", [object(), {1}, np.float32, 1j])
def test_other_objects_are_refused_by_name_with_nothing_changed(value):
    rb = buffer_at(None, numbers=range(3))
    before = snapshot(rb)
    calls = [
        ("extend", lambda: rb.extend(numbered([1, 2]).set("text", NonTensorStack("x", NonTensorData(value))))),
        ("set_at_", lambda: rb.set_at_("text", [value], [1])),
        ("update_if_present", lambda: rb.update_if_present(
            index=torch.tensor([0]), generation=torch.tensor([0]), patch={"text": [value]})),
    ]  # fmt: skip
    for name, attempt in calls:
        with pytest.raises(TypeError, match=rf"{name}: field 'text' must be strings, None"):
            attempt()
        assert_unchanged(before, rb)


def test_values_that_were_overwritten_leave_the_disk(tmp_path):
    rb = ReplayBuffer(storage=LazyMemmapStorage(8, scratch_dir=tmp_path))
    for turn in range(60):
        rb.extend(TensorDict({"text": [f"{turn} {i}" * 10_000 for i in range(8)]}, [8]))
    assert rb[:]["text"] == [f"59 {i}" * 10_000 for i in range(8)]
    status = os.stat(tmp_path / "torchrb.objects")
    assert status.st_blocks * 512 < 8 << 20 < status.st_size


# --- other processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["as it is", "shared_init"])
def test_other_processes_see_the_same_records_and_strings(tmp_path, how):
    rb = buffer_at(tmp_path, shared_init=how == "shared_init")
    assert rb.shared is (how == "shared_init")
    call(_extend, rb, [1, 2])
    rb.extend(numbered([3]))
    assert call(_contents, rb) == numbers_of(rb[:]) == [1, 2, 3]
    assert rb.sample(2)["text"] == call(_texts, rb) and rb.share().shared
    with pytest.raises(AssertionError, match="is in use by process"):
        call(_numbers_at, tmp_path)
    rb = None
    assert call(_numbers_at, tmp_path) == [1, 2, 3]


def _extend(rb, numbers):
    rb.extend(numbered(numbers))


def _contents(rb):
    return numbers_of(rb[:])


def _texts(rb):
    rb.generator.manual_seed(0)
    return list(rb.sample(2)["text"])


def _numbers_at(directory):
    return numbers_of(buffer_at(directory, existsok=True)[:])


def test_a_forked_process_has_the_same_records_and_leaves_the_files_alone(tmp_path):
    rb = buffer_at(tmp_path, numbers=[1], auto_cleanup=True)
    pid = os.fork()
    if pid == 0:
        try:
            rb.extend(numbered([2]))
            rb = None
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert numbers_of(rb[:]) == [1, 2] and sorted(os.listdir(tmp_path)) == sorted(NAMES)


def test_files_are_in_use_as_long_as_any_process_has_them(tmp_path):
    rb = buffer_at(tmp_path, numbers=[1])
    started, go = processes.SERVER.Event(), processes.SERVER.Event()
    worker = processes.start(_hold, rb, started, go)
    assert started.wait(processes.PATIENCE)
    rb = None
    gc.collect()
    with pytest.raises(RuntimeError, match="is in use by process"):
        buffer_at(tmp_path, existsok=True)
    go.set()
    worker.join(processes.PATIENCE)
    assert numbers_of(buffer_at(tmp_path, existsok=True)[:]) == [1, 2]


def _hold(rb, started, go):
    rb.extend(numbered([2]))
    started.set()
    go.wait(processes.PATIENCE)


# --- what is not supported ------------------------------------------------------------------------------------------


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="LazyMemmapStorage: records in a file are on the CPU, got device='cuda'"):
        LazyMemmapStorage(4, device="cuda")
    with pytest.raises(ValueError, match="max_size must be an int from 1"):
        LazyMemmapStorage(0)
    assert LazyMemmapStorage(4, device="auto", compilable=True).device == torch.device("cpu")


def test_it_says_what_it_is(tmp_path):
    storage = LazyMemmapStorage(4, scratch_dir=tmp_path)
    assert repr(storage) == f"LazyMemmapStorage(len=0, max_size=4, device='cpu', scratch_dir={str(tmp_path)!r})"
