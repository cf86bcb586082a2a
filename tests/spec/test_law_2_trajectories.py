"""Law 2 for trajectories: what a query returns is of one moment, and a slice is of one trajectory, under writers."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, TensorDictRoundRobinWriter, traj


def steps(first: int, num: int) -> TensorDict:
    """Records whose fields all follow from a number, ten a trajectory."""
    number = torch.arange(first, first + num)
    reward = (number % 10)[:, None].double()
    return TensorDict({"episode": number // 10, "number": number, "next": {"reward": reward}}, [num])


def buffer() -> TensorDictReplayBuffer:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=SliceSampler(slice_len=5),
        batch_size=20,
    )
    rb.extend(steps(0, 100))
    return rb


def check(trajectories: list, num: int) -> None:
    """They are neighbours in time, hold each slot once, and the records of one number range."""
    numbers = torch.cat([t.number for t in trajectories])
    assert torch.equal(numbers, torch.arange(int(numbers[0]), int(numbers[0]) + len(numbers)))
    assert len(numbers) == num and len({*torch.cat([t.index for t in trajectories]).tolist()}) == num
    for t in trajectories:
        assert len(set(t.episode.tolist())) == 1 and torch.equal(t.reward.view(-1), (t.number % 10).double())


@pytest.mark.parametrize("writes", [1, 2, 9])
def test_a_write_between_the_two_looks_of_a_query_is_noticed(writes):
    """The transform that the predicate depends on writes: once, twice, or as often as it is run."""
    rb, left, first = buffer(), [writes], [100]

    class Writing:
        in_keys = out_keys = ("number",)

        def __call__(self, td):
            if left[0]:
                left[0] -= 1
                first[0] += 30
                rb.extend(steps(first[0] - 30, 30))
            return td

    rb.append_transform(Writing())
    check(rb.query(traj.number.min() >= 0), 100)


def test_queries_and_slices_while_others_write():
    rb, failed, done = buffer(), [], threading.Event()

    def write() -> None:
        first = 100
        while not done.is_set():
            rb.extend(steps(first, 7))
            first += 7

    def look() -> None:
        try:
            for _ in range(15):
                check(rb.query(), 100)
                check(rb.query(traj.length > 0), 100)
                batch = rb.sample().view(4, 5)
                assert (batch["number"].diff(dim=1) == 1).all() and (batch["episode"].diff(dim=1) == 0).all()
                assert batch["next", "truncated"].view(4, 5).sum(1).tolist() == [1] * 4
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    writer = threading.Thread(target=write)
    for thread in (writer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    writer.join()
    assert not failed
