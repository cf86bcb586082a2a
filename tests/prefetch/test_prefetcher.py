"""Batches that are drawn ahead are what the calls would have drawn, and nobody has to know that they were."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from tests.spec.early import drawn_ahead, threads, until
from tests.spec.pretended_gpu import pretended_gpu
from torchrb import LazyTensorStorage, ListStorage, RandomSampler, ReplayBuffer, SamplerWithoutReplacement
from torchrb.prefetch import Prefetcher

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if threads():
        gc.collect()
    until(lambda: not threads())


def buffer(depth=3, *, own=True, storage=None, **kwargs):
    generator = torch.Generator().manual_seed(5) if own else None
    rb = ReplayBuffer(
        storage=LazyTensorStorage(20) if storage is None else storage,
        batch_size=4, prefetch=depth, generator=generator, **kwargs,
    )  # fmt: skip
    rb.extend(torch.arange(20.0))
    return rb


def draws(rb, num=6):
    told = []
    for _ in range(num):
        told.append(rb.sample().tolist())
        drawn_ahead(rb)
    return told


# --- the same batches


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_what_was_drawn_ahead_is_handed_over(depth, sampler):
    early, plain = (buffer(d, sampler=sampler(), transform=lambda x: 2 * x) for d in (depth, None))
    told = []
    for call in range(6):
        told.append(early.sample().tolist())
        assert drawn_ahead(early) == (1 if call == 0 else depth)  # one until it is seen that they are of use
    assert told == [plain.sample().tolist() for _ in range(6)]
    assert early._early.num_early == 5 and early.stats()["prefetch_queue_size"] == depth
    assert torch.equal(early.generator.get_state(), plain.generator.get_state())


WRITES = {
    "add": lambda rb: rb.add(torch.tensor(50.0)),
    "extend": lambda rb: rb.extend(torch.arange(50.0, 53.0)),
    "items": lambda rb: rb.__setitem__(slice(0, 15), torch.arange(50.0, 65.0)),
    "write_all": lambda rb: rb.write_all(torch.arange(50.0, 60.0)),
    "through the storage": lambda rb: rb.storage.set(slice(None), torch.arange(50.0, 70.0)),
    "another buffer": lambda rb: ReplayBuffer(storage=rb.storage).extend(torch.arange(50.0, 60.0)),
    "empty and anew": lambda rb: (rb.empty(), rb.extend(torch.arange(50.0, 54.0))),
    "clear the storage and anew": lambda rb: (rb.storage.clear(), rb.extend(torch.arange(50.0, 54.0))),
}
CHANGES = {
    "seed": lambda rb: rb.generator.manual_seed(77),
    "generator": lambda rb: setattr(rb, "generator", torch.Generator().manual_seed(78)),
    "a number for somebody else": lambda rb: torch.rand(1, generator=rb.generator),
    "a larger batch": lambda rb: rb.sample(7),
    "sampler": lambda rb: rb.set_sampler(SamplerWithoutReplacement()),
    "storage": lambda rb: (rb.set_storage(LazyTensorStorage(9)), rb.extend(torch.arange(9.0))),
    "transform": lambda rb: rb.append_transform(lambda x: x + 0.5),
    "first transform": lambda rb: rb.insert_transform(0, lambda x: -x),
}


@pytest.mark.parametrize("what", [*WRITES, *CHANGES])
def test_what_has_changed_since_is_drawn_again(what):
    told = []
    for depth in (None, 3):
        rb = buffer(depth, transform=lambda x: x.clone())
        rb.sample()
        if depth:
            drawn_ahead(rb)
        {**WRITES, **CHANGES}[what](rb)
        told.append(([rb.sample().tolist() for _ in range(3)], rb.generator.get_state().tolist()))
    assert told[0] == told[1]
    if what in WRITES:
        assert any(number >= 50 for batch in told[0][0] for number in batch), "the write does not show"


def test_tensors_that_were_adopted_are_looked_at_too():
    from torchrb import TensorStorage

    values = torch.zeros(6)
    rb = ReplayBuffer(storage=TensorStorage(values), batch_size=3, prefetch=2)
    rb.sample()
    assert drawn_ahead(rb)
    values.fill_(7.0)
    assert rb.sample().tolist() == [7.0] * 3


def test_a_sampler_that_cannot_say_what_it_would_draw_is_asked_at_the_call():
    class Counting(RandomSampler):
        calls = 0

        def sample(self, storage, batch_size, generator=None):
            self.calls += 1
            return super().sample(storage, batch_size, generator)

    rb = buffer(sampler=Counting())
    for number in range(1, 4):
        rb.sample()
        assert drawn_ahead(rb) == 0 and rb.sampler.calls == number
    assert rb.stats()["prefetch_queue_size"] == 0 and not threads()


def test_iterating_and_asking_for_info():
    early, plain = buffer(3, storage=ListStorage(20)), buffer(None, storage=ListStorage(20))
    for number, (mine, its) in enumerate(zip(early, plain, strict=False)):
        assert mine.tolist() == its.tolist()
        drawn_ahead(early)
        if number == 4:
            break
    data, info = early.sample(return_info=True)
    other, told = plain.sample(return_info=True)
    assert torch.equal(data, other) and torch.equal(info["index"], told["index"]) and early._early.num_early == 5


# --- transforms


def test_transforms_run_ahead_in_order_and_once():
    seen = []

    def transform(x):
        seen.append((x.tolist(), threading.current_thread().name))
        return x

    rb = buffer(2, transform=transform)
    told = draws(rb, 4)
    assert told == [batch for batch, _ in seen[:4]] and len(seen) == 6
    assert seen[0][1] == "MainThread" and {name for _, name in seen[1:]} == {"torchrb-prefetch"}


@pytest.mark.parametrize("own", [True, False])
def test_transforms_that_take_random_numbers_take_them_at_the_call(own):
    told = []
    for depth in (None, 1, 3):
        torch.manual_seed(3)
        rb = buffer(depth, own=own, transform=lambda x: x + torch.rand(4))
        told.append((draws(rb) if depth else [rb.sample().tolist() for _ in range(6)], torch.rand(1).item()))
        if depth and own:
            assert rb._early.num_early == 5, "the draws are still made ahead"
    assert told[0] == told[1] == told[2]


def test_a_transform_that_samples_from_its_buffer_does_so_at_the_call():
    told = []
    for depth in (None, 3):
        rb = buffer(depth)
        rb.append_transform(lambda x, rb=rb: torch.cat([x, rb.sample(2)]) if len(x) > 2 else x)
        told.append(draws(rb) if depth else [rb.sample().tolist() for _ in range(6)])
    assert told[0] == told[1]


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(1.0))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.counts = False

    def forward(self, x):
        if self.counts:
            self.calls += 1
        return self.dropout(x * self.by + self.calls)


@pytest.mark.parametrize("change", ["weight", "load", "train", "counts"])
def test_modules_are_as_they_are_at_the_call(change):
    told = []
    for depth in (None, 3):
        torch.manual_seed(0)
        scale = Scale().eval()
        rb = buffer(depth, own=False, transform=scale)
        scale.counts = change == "counts"
        batches = []
        for step in range(6):
            batches.append(rb.sample().detach().tolist())
            if depth:
                drawn_ahead(rb)
            if step % 2 and change == "weight":
                scale.by.data = scale.by.data  # of the same version
                with torch.no_grad():
                    scale.by += 1
            if step % 2 and change == "load":
                scale.load_state_dict(scale.state_dict() | {"by": torch.tensor(float(step))})
            if step % 2 and change == "train":
                scale.train(step == 3)
        told.append((batches, scale.calls.item()))
    assert told[0] == told[1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_transforms_run_in_the_modes_of_their_caller(mode):
    scale, seen = Scale().eval(), []
    rb = buffer(2, transform=lambda x: seen.append((torch.is_grad_enabled(), x.is_inference())) or scale(x))
    with mode():
        batches = [rb.sample() for _ in range(3) if drawn_ahead(rb) is not None]
        expected = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    assert rb._early.num_early == 2 and set(seen) == {expected}
    assert [(batch.requires_grad, batch.is_inference()) for batch in batches] == [expected] * 3
    assert not rb.sample().is_inference(), "what was drawn ahead in another mode is drawn again"


def test_a_mode_that_cannot_be_handed_over_keeps_transforms_at_the_call():
    rb = buffer(2, transform=lambda x: torch.mm(x.view(2, 2), x.view(2, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        assert [rb.sample().dtype for _ in range(3) if drawn_ahead(rb) is not None] == [torch.bfloat16] * 3
    assert rb._early.num_early == 2 and rb.sample().dtype == torch.float32


# --- errors


def failing_at(number, error):
    calls = []

    def transform(x):
        calls.append(x)
        if len(calls) == number:
            raise error
        return x

    return transform


@pytest.mark.parametrize("error", [ValueError("the third"), SystemExit(3), KeyError("k")])
def test_what_a_transform_raises_reaches_the_call_it_belongs_to(error):
    rb, plain = buffer(3, transform=failing_at(3, error)), buffer(None)
    expected = [plain.sample().tolist() for _ in range(5)]
    told = []
    for call in range(5):
        if call == 2:
            with pytest.raises(type(error)) as raised:
                rb.sample()
            assert raised.value is error
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            assert frames.index("sample") < frames.index("advance") < frames.index("transform"), "both threads show"
            told.append(expected[2])
        else:
            told.append(rb.sample().tolist())
        drawn_ahead(rb)
    assert told == expected and rb._early.num_early == 4
    error.__traceback__ = None


def test_what_a_draw_raises_is_raised_by_the_call():
    rb = buffer(2, sampler=SamplerWithoutReplacement(drop_last=True))
    rb.sample()
    rb.storage.clear()
    rb.extend(torch.arange(3.0))
    for _ in range(2):
        with pytest.raises(ValueError, match="with drop_last a batch must fit"):
            rb.sample()
        drawn_ahead(rb)
    rb.extend(torch.arange(3.0))
    assert len(rb.sample()) == 4


def test_a_draw_that_fails_ahead_and_not_at_the_call_is_drawn():
    rb = buffer(2)
    rb.sample()
    drawn_ahead(rb)
    rb.sample()  # one is ready, and the next was ordered
    drawn_ahead(rb)
    with mock.patch.object(LazyTensorStorage, "read", side_effect=MemoryError):
        rb.sample()
        assert drawn_ahead(rb) == 1
    assert [len(rb.sample()) for _ in range(4)] == [4] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefetch": 3}, "prefetch=3 draws batches before they are asked for.* Give batch_size"),
        ({"prefetch": -1, "batch_size": 2}, "prefetch must be None or an int of at least 0, got -1"),
        ({"prefetch": True, "batch_size": 2}, "got True"),
        ({"prefetch": 1.0, "batch_size": 2}, "got 1.0"),
    ],
)
def test_what_cannot_be_prefetched_is_said_at_construction(arguments, message):
    with pytest.raises(ValueError, match=f"ReplayBuffer: .*{message}"):
        ReplayBuffer(**arguments)
    assert ReplayBuffer(prefetch=0)._early is None and ReplayBuffer(prefetch=None)._early is None


# --- threads


def test_a_thread_is_there_when_it_is_needed_and_goes_with_its_buffer():
    rb = buffer(2, transform=lambda x: x + 1)
    assert not threads()
    draws(rb, 3)
    assert len(threads()) == 1
    gone = weakref.ref(rb), weakref.ref(rb.storage)
    del rb
    until(lambda: not threads())
    assert [ref() for ref in gone] == [None, None]


def test_many_buffers_that_come_and_go_leave_nothing():
    for _ in range(20):
        rb = buffer(2)
        rb.sample()
        rb.sample()
    del rb
    until(lambda: not threads())


def test_several_threads_sample_at_once():
    rb, lock, told = buffer(4, transform=lambda x: x + 0), threading.Lock(), []

    def work():
        for _ in range(50):
            batch, info = rb.sample(return_info=True)
            assert torch.equal(batch, info["index"].float())
            with lock:
                told.append(tuple(batch.tolist()))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    plain = buffer(None)
    assert sorted(told) == sorted(tuple(plain.sample().tolist()) for _ in range(200))


def test_whoever_holds_the_lock_waits_for_no_transform():
    going, go_on = threading.Event(), threading.Event()

    def transform(x):
        if threading.current_thread() is not threading.main_thread():
            going.set()
            go_on.wait()
        return x * 10

    rb, plain = buffer(1, transform=transform), buffer(None)
    rb.sample()
    assert going.wait(60)
    with rb.storage.lock:  # the transform may want it, for all that is known here
        second = rb.sample()
    go_on.set()
    assert rb._early.num_early == 0
    assert second.tolist() == [10 * x for x in [plain.sample(), plain.sample()][1].tolist()]


def test_dropping_and_stopping():
    rb = buffer(3)
    draws(rb, 2)
    rb._early.drop()
    assert rb._early.pending == 0 and drawn_ahead(rb) == 0
    draws(rb, 2)
    rb._early.stop()
    assert rb._early.pending == 0 and not threads()
    rb._early.stop()
    plain = buffer(None)
    assert [plain.sample().tolist() for _ in range(5)][4] == rb.sample().tolist() and not threads()


def test_a_pickled_prefetcher_is_a_new_one():
    rb = buffer(3)
    draws(rb, 2)
    again = pickle.loads(pickle.dumps(rb._early))
    assert isinstance(again, Prefetcher) and (again.depth, again.pin, again.pending) == (3, False, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own():
    for _ in range(5):
        rb = buffer(2, transform=lambda x: x.clone())
        rb.sample()
        rb.sample()
        read, write = os.pipe()
        child = os.fork()  # wherever the thread is now
        if not child:
            try:
                first = rb.sample().tolist()
                os.write(write, pickle.dumps((first, drawn_ahead(rb), len(threads()))))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as told:
            assert pickle.loads(told.read()) == (rb.sample().tolist(), 1, 1)
        os.waitpid(child, 0)


PROGRAM = """
import threading, torch, torchrb
rb = torchrb.ReplayBuffer(
    storage=torchrb.LazyTensorStorage(8), batch_size=2, prefetch=2,
    transform=lambda x: x if threading.current_thread() is threading.main_thread() else threading.Event().wait(),
)
rb.extend(torch.arange(8))
rb.sample()
print("done", flush=True)
raise SystemExit(3)
"""


def test_threads_end_with_the_process():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TORCHRB_BACKEND": "reference"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")


# --- GPUs


def test_on_a_gpu_a_draw_is_made_at_its_call():
    with pretended_gpu():
        storage = LazyTensorStorage(8, device="cuda")
        rb = ReplayBuffer(storage=storage, batch_size=4, prefetch=3)
        rb.extend(torch.arange(8.0, device="cuda"))
        assert [rb.sample().shape for _ in range(3)] == [torch.Size([4])] * 3
        assert rb._early.pending == 0 and rb._early._thread is None


def test_batches_that_a_transform_puts_on_a_gpu_are_put_there_at_the_call():
    rb, names = buffer(2), []
    rb.append_transform(lambda x: names.append(threading.current_thread().name) or x)
    with mock.patch("torchrb.prefetch.prefetcher.any_on_gpu", lambda data: bool(names)):
        draws(rb, 3)
    assert rb._early.num_early == 2 and set(names) == {"MainThread"}


@pytest.mark.parametrize("depth", [None, 2])
def test_samples_are_pinned_where_there_is_a_gpu(depth):
    threads_of = []

    def pinned(data):
        threads_of.append(threading.current_thread().name)
        return data, "pinned"

    with mock.patch("torchrb.prefetch.prefetcher.pinned", pinned), mock.patch("torchrb.prefetch.line.pinned", pinned):
        rb = buffer(depth, pin_memory=True)
        assert [rb.sample()[1] for _ in range(3) if drawn_ahead(rb) is not None] == ["pinned"] * 3
        assert isinstance(rb[:], torch.Tensor)
        drawn_ahead(rb)
    assert ("torchrb-prefetch" in threads_of) == (depth is not None), "pinning takes time, and is done ahead"
    plain = buffer(depth)
    assert torch.equal(plain.sample(), buffer(None, pin_memory=True).sample()), "here is none"
