"""Law 8 for records in files: a killed process leaves whole records, one storage at a time has a directory, and nothing
that stands in a file is executed.
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import re
import signal
import sys
import warnings

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict

from tests.spec import processes
from tests.spec.builders import group_sampler, numbered, numbers_of
from tests.spec.processes import call, kill_and_join, start
from torchrb import LazyMemmapStorage, PromptGroupSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from torchrb.storages.scratch import NAMES


def buffer_at(directory, capacity=6, existsok=False):
    return TensorDictReplayBuffer(
        storage=LazyMemmapStorage(capacity, scratch_dir=directory, existsok=existsok),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=group_sampler("recency", num_groups=1),
    )


# --- killed ---------------------------------------------------------------------------------------------------------


def test_records_that_a_killed_process_had_not_finished_are_dropped(tmp_path):
    process = start(_die_writing, tmp_path)
    process.join(processes.PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    told = rf"LazyMemmapStorage: process {process.pid} ended while it was writing; 2 records .* were dropped"
    with pytest.warns(RuntimeWarning, match=told):
        rb = buffer_at(tmp_path, existsok=True)
    assert sorted(numbers_of(rb[:])) == [2, 3, 6, 7] and len(rb) == 4
    generations = rb.writer.generations_of(torch.arange(6))
    rb.extend(numbered([10, 11]))
    assert sorted(numbers_of(rb[:])) == [2, 3, 6, 7, 10, 11]
    assert not (rb.writer.generations_of(torch.tensor([4, 5])) == generations[4:]).any()
    assert numbers_of(rb.sample(2))  # no op waits for the one that never ended


def _die_writing(directory):
    rb = buffer_at(directory)
    rb.extend(numbered(range(8)))  # 6, 7, 2, 3, 4, 5
    processes.die_holding(rb, [4, 5])


def test_whenever_a_process_is_killed_whole_records_are_left(tmp_path):
    rng = random.Random(0)
    for turn in range(6):
        started = processes.SERVER.Event()
        process = start(_write_for_ever, tmp_path, started)
        assert started.wait(processes.PATIENCE)
        process.join(rng.random() / 20)
        kill_and_join(process)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # records were dropped, or not
            rb = buffer_at(tmp_path, 16, existsok=True)
        numbers = numbers_of(rb[:])  # with its strings
        assert len(numbers) == len(rb) == len(set(numbers)) and (turn == 0 or len(rb) >= 8)
        index, generation = rb.extend(numbered([2**19]), return_generations=True)
        assert rb.update_if_present(index=index, generation=generation, patch={"text": ["x"]}).updated_count == 1
        rb.set_at_("text", [f"record {2**19}"], index)
        assert 2**19 in numbers_of(rb[:])
        rb = None


def _write_for_ever(directory, started):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rb, number = buffer_at(directory, 16, existsok=True), 0
    while mp.parent_process().is_alive():
        size = number % 5 + 1
        index, generation = rb.extend(numbered([(number + i) % 2**18 for i in range(size)]), return_generations=True)
        again = numbered([(number + i) % 2**18 + 2**18 for i in range(size)])
        patch = {key: again[key] for key in (*processes.WHOLE, "text")}
        rb.update_if_present(index=index, generation=generation, patch=patch)
        number += size
        if number > 16:
            started.set()


# --- one at a time --------------------------------------------------------------------------------------------------


def test_two_processes_never_mix_their_records_in_one_directory(tmp_path):
    rb = buffer_at(tmp_path)
    rb.extend(numbered(range(3)))
    with pytest.raises(AssertionError, match=f"scratch_dir=.* is in use by process {os.getpid()}"):
        call(_extend_at, tmp_path, [7])
    assert numbers_of(rb[:]) == [0, 1, 2]
    rb = None
    assert call(_extend_at, tmp_path, [7]) == [0, 1, 2, 7]
    assert numbers_of(buffer_at(tmp_path, existsok=True)[:]) == [0, 1, 2, 7]


def _extend_at(directory, numbers):
    rb = buffer_at(directory, existsok=True)
    rb.extend(numbered(numbers))
    return numbers_of(rb[:])


# --- what stands in the files ---------------------------------------------------------------------------------------


class _Executed:
    def __reduce__(self):
        return os._exit, (3,)


def test_nothing_in_the_files_is_executed(tmp_path):
    evil = pickle.dumps(_Executed())
    rb = buffer_at(tmp_path / "0")
    rb.extend(numbered(range(3)))
    rb = None
    files = {name: (tmp_path / "0" / name).read_bytes() for name in NAMES}
    places = [("torchrb.records", at) for at in (0, 8, 4096, 4100, 2 << 20)] + [("torchrb.objects", 0)]
    for number, (name, at) in enumerate(places, 1):
        there = tmp_path / str(number)
        there.mkdir()
        for each, content in files.items():
            if each == name:
                content = content[:at] + evil + content[at + len(evil) :]
            (there / each).write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                buffer_at(there, existsok=True)[:]
        except (ValueError, TypeError, FileExistsError) as error:
            assert str(error)


def test_the_files_hold_no_pickle_and_no_code(tmp_path):
    buffer_at(tmp_path).extend(numbered(range(3)))
    content = b"".join((tmp_path / name).read_bytes() for name in NAMES)
    assert re.search(rb'\{"tensordict":\[\["n",\{"tensor":"int64","shape":\[\]\}\]', content)
    for sign in (
        b"\x80\x02",
        b"\x80\x03",
        b"\x80\x04\x95",
        b"\x80\x05\x95",
        b"ctorch",
        b"cbuiltins",
        b"tensordict._td",
    ):
        assert sign not in content


def test_nothing_is_imported_for_a_file(tmp_path, monkeypatch):
    """A class is named in the file, and found only where the process has imported it."""
    (tmp_path / "its_classes.py").write_text(
        "import collections\nimports = []\nPair = collections.namedtuple('Pair', 'tokens score')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("its_classes").Pair
    LazyMemmapStorage(4, scratch_dir=tmp_path / "x").append(kind(torch.arange(3), torch.zeros(3)))
    monkeypatch.delitem(sys.modules, "its_classes")
    with pytest.raises(TypeError, match="records are of Pair in the module its_classes.* Import that module first"):
        LazyMemmapStorage(4, scratch_dir=tmp_path / "x", existsok=True)
    assert "its_classes" not in sys.modules
    kind = importlib.import_module("its_classes").Pair
    assert type(LazyMemmapStorage(4, scratch_dir=tmp_path / "x", existsok=True)[:]) is kind
    monkeypatch.delitem(sys.modules, "its_classes")


def test_another_day_goes_on_with_strings_of_every_kind(tmp_path):
    """Case 19, and the same after the process is gone."""
    texts = ["a", "b", "é", None]
    rb = buffer_at(tmp_path)
    rb.extend(TensorDict({"g": texts, "r": torch.arange(4.0)}, [4]))
    rb = None
    rb = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(6, scratch_dir=tmp_path, existsok=True),
        sampler=_texts_sampler(),
    )
    assert rb[:]["g"] == texts
    assert sorted(rb.sample(4)["r"].tolist()) == [0, 1, 2, 3] and rb.stats()["num_groups"] == 4


def _texts_sampler():

    return PromptGroupSampler(num_groups=4, group_key="g", reward_key="r")
