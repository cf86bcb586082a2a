"""Law 4 among processes: a sampler sees the storage as it is now, whichever process wrote to it."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from tests.spec import processes
from tests.spec.builders import STRATEGIES, group_sampler, numbers_of
from tests.spec.processes import STORAGES, call, records, shared_buffer

pytestmark = pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # small groups run short


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", STORAGES)
def test_a_draw_sees_what_another_process_wrote_and_patched(kind, strategy):
    rb = shared_buffer(kind, 9, range(6), sampler=group_sampler(strategy))
    used = rb.sampler
    processes.draw(rb, used, 6, 5)  # it has an index now
    for numbers in ([100, 101, 102, 103], [200, 201], range(300, 309)):
        slots, generations = call(processes.extend, rb, list(numbers))
        assert processes.draw(rb, used, 6, 5) == processes.draw(rb, group_sampler(strategy), 6, 5)
        assert [numbers_of(rb[slot : slot + 1])[0] for slot in slots] == list(numbers)
    assert call(processes.patch, rb, slots[:3], generations[:3], [7, 7, 7]) == (3, 0)
    assert processes.draw(rb, used, 6, 5) == processes.draw(rb, group_sampler(strategy), 6, 5)
    assert sorted(processes.contents(rb)) == sorted([7, 7, 7, *range(303, 309)])
    call(processes.empty, rb)
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample(3)


@pytest.mark.parametrize("kind", STORAGES)
def test_another_process_that_has_an_index_sees_what_this_one_writes(kind):
    rb = shared_buffer(kind, 9, range(6))
    requests, answers = processes.SERVER.Queue(), processes.SERVER.Queue()
    other = processes.start(_serve_draws, rb, requests, answers)
    for numbers in ([], [100, 101, 102, 103], range(200, 209), [5]):
        if len(numbers):
            rb.extend(records(numbers))
        requests.put(6)
        assert answers.get(timeout=processes.PATIENCE) == processes.draw(rb, group_sampler("reward"), 6, 3)
    requests.put(None)
    other.join(processes.PATIENCE)


def _serve_draws(rb, requests, answers):
    sampler = group_sampler("reward")
    for num in iter(requests.get, None):
        answers.put(processes.draw(rb, sampler, num, 3))


@pytest.mark.parametrize("kind", ["packed", "columns"])
def test_the_first_batch_may_come_from_any_process(kind):
    rb = shared_buffer(kind, 5)
    assert call(processes.extend, rb, [3, 4]) == ([0, 1], [0, 0])
    assert len(rb) == 2 and processes.contents(rb) == [3, 4]
    assert call(processes.extend, rb, [5]) == ([2], [0])  # from one that has not seen the first
    with pytest.raises(KeyError, match="fields must be those of the storage"):
        rb.extend(records([1]).exclude("n"))
    assert processes.contents(rb) == [3, 4, 5]


def test_a_first_batch_of_each_kind_of_data_is_understood_elsewhere():
    for batch in (torch.arange(6.0).view(3, 2), {"a": torch.arange(3), "b": (torch.ones(3, 1), [torch.zeros(3)])}):
        rb = processes.TensorDictReplayBuffer(storage=STORAGES["packed"](4), shared=True)
        assert call(_extend_with, rb, batch) == [0, 1, 2]
        assert call(_same_as, rb, batch) and _same_as(rb, batch)


def _extend_with(rb, batch):
    return rb.extend(batch).tolist()


def _same_as(rb, batch):
    leaves, spec = torch.utils._pytree.tree_flatten(rb[:])
    expected, expected_spec = torch.utils._pytree.tree_flatten(batch)
    return spec == expected_spec and all(torch.equal(a, b) for a, b in zip(leaves, expected, strict=True))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["spawn", "fork", "forkserver"])
def test_processes_of_every_kind_are_handed_the_same_records(how):
    rb = shared_buffer("packed", 6, [1, 2])
    assert call(processes.extend, rb, [3], context=mp.get_context(how)) == ([2], [0])
    assert processes.contents(rb) == [1, 2, 3]
    assert call(processes.contents, rb, context=mp.get_context(how)) == [1, 2, 3]


def test_processes_draw_by_generators_that_start_alike():
    rb = shared_buffer("packed", 50, range(50))
    elsewhere = call(processes.draw_own, rb, 20)
    assert elsewhere == processes.draw_own(rb, 20)
    rb.generator.manual_seed(9)
    assert call(processes.draw_own, rb, 20) != elsewhere
