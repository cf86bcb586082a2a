"""Law 7 for trajectories: a draw of slices looks at the records written since the last one, and at no other."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrb.storages.tensor import LazyTensorStorage as _Storage


def steps(first: int, num: int) -> TensorDict:
    number = torch.arange(first, first + num)
    return TensorDict({"episode": number // 10, "next": {"done": number[:, None] % 10 == 9}}, [num])


@pytest.mark.parametrize("key", [{"traj_key": "episode"}, {"end_key": ("next", "done")}])
@pytest.mark.parametrize("stored", [300, 3000])
def test_a_draw_reads_the_boundaries_of_what_was_written_since(monkeypatch, stored, key):
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(stored), sampler=SliceSampler(slice_len=4, **key), batch_size=16
    )
    rb.extend(steps(0, stored + stored // 3))
    rb.sample()
    read, looked = _Storage.read_fields, []
    monkeypatch.setattr(
        _Storage, "read_fields", lambda self, paths, slots: looked.append(len(slots)) or read(self, paths, slots)
    )
    for num in (1, 5, 40):
        for write in (
            lambda num=num: rb.extend(steps(0, num)),
            lambda num=num: rb.set_at_("episode", torch.zeros(num, dtype=torch.int64), torch.arange(num) * 3),
        ):
            looked.clear()
            write()
            rb.sample()
            assert 0 < max(looked) <= 2 * num and len(looked) <= 2
            looked.clear()
            rb.sample(), rb.sample()
            assert not looked
