"""Writers, readers and updaters of one storage on several streams at once. (On a CPU they are threads and no more.)"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.gpu.test_paths import CAPACITY, GROUPS, SAMPLERS, buffer_on, records
from tests.spec.builders import numbers_of

TURNS, ROWS = 60, 12


def on_stream(device: torch.device) -> Any:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@pytest.mark.parametrize("strategy", SAMPLERS)
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_writers_and_readers_race_and_every_row_is_whole(device, strategy):
    rb = buffer_on(device, strategy)
    rb.extend(records(0, CAPACITY, device))
    data = [records(CAPACITY + ROWS * turn, ROWS, device) for turn in range(TURNS)]
    wait(device)
    batches: list[Any] = []
    failures: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            with on_stream(device):
                work()
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        for batch in data:
            rb.extend(batch)

    def read() -> None:
        for _ in range(TURNS):
            batches.append(rb.sample())

    def patch() -> None:
        for _ in range(TURNS):
            drawn = rb.sample()
            handles = {"index": drawn["index"], "generation": drawn["index_generation"]}
            rb.update_if_present(**handles, patch={"n": drawn["n"], "wide": drawn["wide"]})

    threads = [threading.Thread(target=run, args=(work,)) for work in (write, read, patch, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for batch in batches:
        numbers = numbers_of(batch.to("cpu"))  # fails on a row of two records
        generations = [number // CAPACITY for number in numbers]
        assert batch["index_generation"].tolist() == generations
        assert batch["index"].tolist() == [number % CAPACITY for number in numbers]
        if strategy != "uniform":
            groups = torch.tensor([number % GROUPS for number in numbers]).view(GROUPS, -1)
            assert (groups == groups[:, :1]).all(), "a group is one group, whoever writes meanwhile"
    assert sorted(numbers_of(rb[:].to("cpu"))) == [*range(ROWS * TURNS, CAPACITY + ROWS * TURNS)]


def test_what_was_written_on_one_stream_is_drawn_on_another(device):
    """With nothing but the order of the calls to go by."""
    rb = buffer_on(device, "recency")
    data = [records(ROWS * turn, ROWS, device) for turn in range(TURNS)]
    wait(device)
    for turn, batch in enumerate(data):
        with on_stream(device):
            rb.extend(batch)
        with on_stream(device):
            drawn = rb.sample()
            newest = ROWS * (turn + 1)
            assert set(numbers_of(drawn.to("cpu"))) == {*range(newest - ROWS, newest)}
