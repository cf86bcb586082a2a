"""Law 2 where records are used up: however many draw at once, a record goes to as many batches as it may, no more."""

from __future__ import annotations

import threading
import warnings
from collections import Counter

import pytest
import torch

from tests.spec.builders import group_sampler, numbered, numbers_of
from torchrb import LazyTensorStorage, RandomSampler, SamplerWithoutReplacement, TensorDictReplayBuffer

SAMPLERS = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "groups": lambda: group_sampler("recency", samples_per_group=3),
}


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_record_goes_to_more_batches_than_it_may_and_none_is_lost(sampler, limit):
    """A producer that waits for room, and learners that never agree on anything: a queue, without a queue."""
    warnings.filterwarnings("ignore", "PromptGroupSampler")
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64), sampler=SAMPLERS[sampler](), consume_after_n_samples=limit
    )
    done, errors, lists, total = threading.Event(), [], [[], [], []], 600

    def produce() -> None:
        number = 0
        while number < total:
            if len(rb) <= 48:
                rb.extend(numbered(range(number, number + 12)))
                number += 12
        done.set()

    def learn(seen: list[int]) -> None:
        try:
            while True:
                over = done.is_set()
                try:
                    seen += numbers_of(rb.sample(6))
                except RuntimeError as error:
                    assert "left" in str(error) or "empty" in str(error)
                    if over:
                        return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=produce), *(threading.Thread(target=learn, args=(seen,)) for seen in lists)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    times = Counter(number for seen in lists for number in seen)
    assert times == Counter(dict.fromkeys(range(total), limit))


def test_two_buffers_on_one_storage_each_count_for_themselves():
    storage = LazyTensorStorage(8)
    first, second = (TensorDictReplayBuffer(storage=storage, consume_after_n_samples=1) for _ in range(2))
    first.extend(numbered(range(8)))
    for rb in (first, second):
        assert sorted(numbers_of(rb.sample(5)) + numbers_of(rb.sample(5))) == [*range(8)]
    assert torch.equal(storage[:]["n"], torch.arange(8))
