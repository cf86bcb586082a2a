"""Law 8 for dumps: cut off at any step, by an error or by a kill, a directory holds the old dump or the new one."""

from __future__ import annotations

import functools
import os
import random
import signal
import time

import pytest

from tests.spec import dumps
from tests.spec.snapshot import assert_unchanged, snapshot

# What a dump does to the file system. The last ones tidy up when all is done.
STEPS = ("pwritev", "fsync", "replace", "open", "mkdir", "unlink", "rmdir")


class Stepping:
    """Counts the steps of a dump, and does something else at one of them."""

    def __init__(self, monkeypatch, at=None, act=None):
        self.steps: list[str] = []
        self._at, self._act = at, act
        for name in STEPS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name, real):
        def step(*args, **kwargs):
            self.steps.append(name)
            if len(self.steps) - 1 == self._at:
                self._act(name, real, args)
            return real(*args, **kwargs)

        return step


def steps_of_a_dump(rb, place, monkeypatch):
    with monkeypatch.context() as patch:
        stepping = Stepping(patch)
        rb.dumps(place)
    return stepping.steps


def an_old_dump_and_a_buffer_to_be_dumped_over_it(place):
    rb = dumps.buffer(0)
    rb.dumps(place)
    old = dumps.told(rb)
    rb.extend(dumps.rows(10, 3))
    return rb, old, dumps.told(rb)


def loaded(place):
    rb = dumps.buffer(num=0)
    rb.loads(place)
    return dumps.told(rb)


def test_a_dump_has_steps_to_be_cut_off_at(tmp_path, monkeypatch):
    rb, *_ = an_old_dump_and_a_buffer_to_be_dumped_over_it(tmp_path)
    steps = steps_of_a_dump(rb, tmp_path, monkeypatch)
    assert {"pwritev", "fsync", "replace", "open", "unlink"} <= set(steps)
    assert steps.count("replace") == 1
    written = [place for place, name in enumerate(steps) if name == "pwritev"]
    synced = [place for place, name in enumerate(steps) if name == "fsync"]
    switch = steps.index("replace")
    assert max(written) < max(place for place in synced if place < switch) and switch < max(synced)
    assert steps.index("unlink") > switch


def test_all_that_was_written_is_on_the_disk_before_the_switch(tmp_path, monkeypatch):
    rb, *_ = an_old_dump_and_a_buffer_to_be_dumped_over_it(tmp_path)
    dirty: set[tuple[int, int]] = set()
    switched, write, sync, replace = [], os.pwritev, os.fsync, os.replace

    def file_of(fd):
        return os.fstat(fd).st_dev, os.fstat(fd).st_ino

    def written(fd, *args):
        dirty.add(file_of(fd))
        return write(fd, *args)

    def synced(fd):
        dirty.discard(file_of(fd))
        sync(fd)

    def switch(*args):
        assert not dirty
        switched.append(args)
        replace(*args)
        dirty.add((tmp_path.stat().st_dev, tmp_path.stat().st_ino))

    for name, instead in (("pwritev", written), ("fsync", synced), ("replace", switch)):
        monkeypatch.setattr(os, name, instead)
    rb.dumps(tmp_path)
    assert len(switched) == 1 and not dirty  # nor is the switch itself left to chance


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_at_any_step_leaves_the_directory_as_it_was(tmp_path, monkeypatch, error):
    rb, old, new = an_old_dump_and_a_buffer_to_be_dumped_over_it(tmp_path / "count")
    num = len(steps_of_a_dump(rb, tmp_path / "count", monkeypatch))
    raised = 0
    for at in range(num):
        place = tmp_path / str(at)
        rb, old, new = an_old_dump_and_a_buffer_to_be_dumped_over_it(place)
        files, before = dumps.files_of(place), snapshot(rb)

        def fail(name, real, args):
            raise error

        with monkeypatch.context() as patch:
            Stepping(patch, at, fail)
            try:
                rb.dumps(place)
            except BaseException as caught:
                assert caught is error
                raised += 1
            else:
                assert loaded(place) == new  # cut off while it tidied up
                continue
        assert_unchanged(before, rb)
        assert loaded(place) in (old, new)
        if isinstance(error, OSError):
            assert dumps.files_of(place) == files
        rb.dumps(place)
        assert loaded(place) == new
        assert len(dumps.content_files(place)) <= 4  # nothing is left over
    assert raised >= num // 2


def test_an_error_at_any_step_leaves_no_new_directory(tmp_path, monkeypatch):
    rb = dumps.buffer(0)
    num = len(steps_of_a_dump(rb, tmp_path / "count" / "there", monkeypatch))
    for at in range(num):
        place = tmp_path / str(at) / "there"

        def fail(name, real, args):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            Stepping(patch, at, fail)
            try:
                rb.dumps(place)
            except OSError:
                assert not (tmp_path / str(at)).exists()
            else:
                assert loaded(place) == dumps.told(rb)


def die(name, real, args):
    if name == "pwritev" and random.random() < 0.5:
        fd, views, offset = args
        os.pwrite(fd, bytes(views[0][: len(views[0]) // 2]), offset)
    if name in ("replace", "unlink") and random.random() < 0.5:
        real(*args)
    os.kill(os.getpid(), signal.SIGKILL)


def dump_and_die(rb, place, at, monkeypatch):
    Stepping(monkeypatch, at, die)
    rb.dumps(place)


def in_a_child(work):
    """Fork, work, end. Returns the child's wait status."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_kill_at_any_step_leaves_the_old_dump_or_the_new_one(tmp_path, monkeypatch):
    rb, old, new = an_old_dump_and_a_buffer_to_be_dumped_over_it(tmp_path / "count")
    num = len(steps_of_a_dump(rb, tmp_path / "count", monkeypatch))
    seen = []
    for at in range(num):
        place = tmp_path / str(at)
        rb, old, new = an_old_dump_and_a_buffer_to_be_dumped_over_it(place)

        random.seed(at)
        assert os.WTERMSIG(in_a_child(functools.partial(dump_and_die, rb, place, at, monkeypatch))) == signal.SIGKILL
        seen.append(loaded(place))
        assert seen[-1] in (old, new), f"killed at step {at}"
        rb.dumps(place)
        assert loaded(place) == new
        listed = {entry[0] for part in dumps.manifest(place)["parts"].values() for entry in part}
        assert set(dumps.files_of(place)) == listed | {"torchrb.manifest"}  # what the killed one left is gone
    assert seen[0] == old and seen[-1] == new


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_kill_at_any_time_leaves_one_of_the_dumps_that_were_made(tmp_path):
    """Field case 21."""
    rb = dumps.buffer(0, num=5)
    rb.dumps(tmp_path)
    rng = random.Random(0)
    possible, state = {}, rb.state_dict()
    for turn in range(30):
        possible[str(dumps.told(rb))] = turn
        rb.extend(dumps.rows(10 * turn, 1 + turn % 5))
    rb.load_state_dict(state)

    def work():
        rb.loads(tmp_path)
        rb.load_state_dict(state)
        while True:
            for turn in range(30):
                rb.dumps(tmp_path)
                rb.extend(dumps.rows(10 * turn, 1 + turn % 5))
            rb.load_state_dict(state)

    for _ in range(8):
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.005, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert str(loaded(tmp_path)) in possible


def test_nobody_sees_a_dump_while_it_is_replaced(tmp_path):
    """A load beside a dump waits for it, and gets one of the two."""
    from concurrent.futures import ThreadPoolExecutor

    rb = dumps.buffer(0, num=5)
    rb.dumps(tmp_path)

    def load_often():
        return {str(loaded(tmp_path)) for _ in range(15)}

    possible = {str(dumps.told(rb))}
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load_often) for _ in range(2)]
        for turn in range(15):
            rb.extend(dumps.rows(10 * turn, 3))
            possible.add(str(dumps.told(rb)))
            rb.dumps(tmp_path)
        seen = set().union(*(load.result() for load in loads))
    assert seen <= possible


def test_what_is_not_a_dumps_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "torchrb-notes.content").write_text("mine")
    (tmp_path / "sub").mkdir()
    rb = dumps.buffer(0)
    for _ in range(3):
        rb.dumps(tmp_path)
        rb.extend(dumps.rows(10, 5))
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "torchrb-notes.content").read_text() == "mine"
    assert (tmp_path / "sub").is_dir()


def test_a_file_of_somebody_elses_in_the_way_is_refused(tmp_path):
    rb = dumps.buffer(0)
    (tmp_path / "torchrb.manifest").write_text("mine")
    with pytest.raises(FileExistsError, match="is not from torchrb.*Choose another directory"):
        rb.dumps(tmp_path)
    assert dumps.files_of(tmp_path) == {"torchrb.manifest": b"mine"}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="expected a directory"):
        rb.dumps(tmp_path / "file")
    with pytest.raises(OSError):
        rb.dumps(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
