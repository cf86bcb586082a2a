"""The lock of a storage on a GPU, with streams that write down what they are told."""

from __future__ import annotations

import threading

import pytest
import torch

from torchrb.storages.streams import DeviceLock

GPU = torch.device("cuda", 0)


class Device:
    """A device with a current stream, and a log of what was put on any."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.stream = Stream(self, "a")
        self.capturing = False


class Stream:
    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name

    def wait_event(self, event: object) -> None:
        self.device.log.append((self.name, "waits"))


@pytest.fixture
def device(monkeypatch):
    device = Device()

    class Event:
        def record(self, stream):
            device.log.append((stream.name, "records"))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda which=None: device.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: device.capturing)
    return device


def test_a_stream_waits_for_the_call_before_when_that_was_on_another(device):
    lock = DeviceLock(GPU)
    with lock:
        device.log.append(("a", "writes"))
    with lock, lock:
        device.log.append(("a", "draws"))
    device.stream = Stream(device, "b")
    with lock:
        device.log.append(("b", "draws"))
    assert device.log == [
        ("a", "writes"),
        ("a", "records"),
        ("a", "draws"),
        ("a", "records"),
        ("b", "waits"),
        ("b", "draws"),
        ("b", "records"),
    ]


def test_a_call_that_raises_is_waited_for_all_the_same(device):
    lock = DeviceLock(GPU)
    with pytest.raises(ValueError), lock:
        raise ValueError
    assert device.log == [("a", "records")]
    with lock:
        pass


def test_owned_memory_is_kept_for_a_stream_that_joins(device, monkeypatch):
    kept = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append((tensor, stream.name)))
    lock, mine, dropped = DeviceLock(GPU), torch.zeros(1), torch.zeros(2)
    with lock:
        lock.owns(mine, dropped)
    del dropped
    device.stream = Stream(device, "b")
    with lock:
        pass
    assert [(tensor is mine, name) for tensor, name in kept] == [(True, "b")]


def test_a_capture_orders_nothing(device):
    lock = DeviceLock(GPU)
    with lock:
        pass
    device.stream, device.capturing = Stream(device, "capture"), True
    with lock:
        pass
    assert device.log == [("a", "records")]


def test_without_a_device_it_is_a_lock(device):
    lock, held = DeviceLock(), threading.Event()

    def other():
        with lock:
            held.set()

    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        assert not held.wait(0.05)
    thread.join()
    assert held.is_set() and device.log == []
    with lock:
        lock.settle(GPU)
    assert device.log == [("a", "records")]


def test_a_thread_knows_whether_it_has_the_lock():
    lock, told = DeviceLock(), []
    assert not lock._is_owned()
    with lock, lock:
        assert lock._is_owned()
        other = threading.Thread(target=lambda: told.append(lock._is_owned()))
        other.start()
        other.join()
    assert told == [False] and not lock._is_owned()
