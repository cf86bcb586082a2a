"""Extend, sample and update captured once and replayed: the ring really turns, and each replay draws anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.on_device import replayed, without_waiting
from tests.gpu.test_paths import CAPACITY, SAMPLERS, buffer_on, records
from tests.spec.builders import numbers_of

ROWS, REPLAYS = 12, 10


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("strategy", SAMPLERS)
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_a_replay_writes_draws_and_patches_as_a_call_does(device, strategy, layout):
    rb = buffer_on(device, strategy, layout)
    rb.extend(records(0, ROWS, device))  # allocates
    rb.sample()
    batch = records(ROWS, ROWS, device)

    def step() -> dict[str, Any]:
        index, generation = rb.extend(batch, return_generations=True)
        drawn = rb.sample()
        handles = {"index": drawn["index"], "generation": drawn["index_generation"]}
        result = rb.update_if_present(**handles, patch={"byte": drawn["byte"]})
        late = rb.update_if_present(
            index=index, generation=generation, patch={"byte": batch["byte"]}, version_key="n", version=batch["n"]
        )
        return {
            "index": index,
            "generation": generation,
            "drawn": drawn,
            "updated": result.updated,
            "stale": result.stale,
            "versioned": late.updated,
        }

    replay, kept = replayed(step, device)
    calls = rb.write_count // ROWS
    drawn = []
    for turn in range(REPLAYS):
        first = ROWS * calls
        for key, value in records(first, ROWS).items(True, True):
            batch[key].copy_(value)
        if turn % 2:
            with without_waiting(device):
                replay()
        else:
            replay()
        calls += 1
        slots = [(first + row) % CAPACITY for row in range(ROWS)]
        assert kept["index"].tolist() == slots
        assert kept["generation"].tolist() == [(first + row) // CAPACITY for row in range(ROWS)]
        assert rb.write_count == ROWS * calls and len(rb) == min(ROWS * calls, CAPACITY)
        assert rb.storage.cursor == ROWS * calls % CAPACITY
        stored = numbers_of(rb[:].to("cpu"))
        assert [stored[slot] for slot in slots] == [*range(first, first + ROWS)]
        numbers = numbers_of(kept["drawn"].to("cpu"))
        assert numbers == [stored[slot] for slot in kept["drawn"]["index"].tolist()]
        assert rb.writer.generations_of(kept["drawn"]["index"]).equal(kept["drawn"]["index_generation"])
        assert not kept["stale"].any() and kept["versioned"].all()
        drawn.append(tuple(kept["drawn"]["index"].tolist()))
    if strategy in ("uniform", "random"):
        assert len(set(drawn)) > REPLAYS // 2, "each replay takes a new number from the generator"


def test_calls_and_replays_may_alternate(device):
    """What a replay wrote, a call sees, and the other way round: the index of groups included."""
    rb = buffer_on(device, "recency")
    rb.extend(records(0, ROWS, device))
    rb.sample()
    batch = records(0, ROWS, device)
    replay, _ = replayed(lambda: (rb.extend(batch), rb.sample()), device)
    first = rb.write_count
    for turn in range(6):
        numbers = records(first + ROWS * turn, ROWS, device)
        if turn % 2:
            rb.extend(numbers)
        else:
            for key, value in numbers.items(True, True):
                batch[key].copy_(value)
            replay()
        drawn = numbers_of(rb.sample().to("cpu"))
        newest = first + ROWS * (turn + 1)
        assert set(drawn) == {*range(newest - ROWS, newest)}  # three groups of the four newest records each
