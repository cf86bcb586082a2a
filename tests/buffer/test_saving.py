import pytest
import torch

from tests.spec import dumps
from torchrb import ImmutableDatasetWriter, LazyTensorStorage, ListStorage, ReplayBuffer
from torchrb.buffer import saving


def test_aliases_do_what_they_are_aliases_of(tmp_path):
    rb = dumps.buffer(0)
    rb.dump(tmp_path / "a")
    rb.save(path=tmp_path / "b")
    for place in ("a", "b"):
        new = dumps.buffer(num=0)
        new.load(str(tmp_path / place))
        assert dumps.told(new) == dumps.told(rb)
    assert [rb.dumps(tmp_path), rb.loads(tmp_path), rb.state_dict() and None] == [None, None, None]


def test_a_snapshot_goes_through_torch_save_without_pickled_objects(tmp_path):
    rb, new = dumps.buffer(0), dumps.buffer(num=0)
    torch.save(rb.state_dict(), tmp_path / "file")
    new.load_state_dict(torch.load(tmp_path / "file", weights_only=True))
    assert dumps.told(new) == dumps.told(rb)
    assert new.sample()["id"].tolist() == rb.sample()["id"].tolist()


def test_snapshots_and_dumps_are_the_same_states(tmp_path):
    rb, new = dumps.buffer(0), dumps.buffer(num=0)
    rb.dumps(tmp_path)
    new.loads(tmp_path)
    kept = new.state_dict()
    kept["buffer"]["generator"]["state"] = rb.state_dict()["buffer"]["generator"]["state"]
    assert repr(kept) == repr(rb.state_dict())


@pytest.mark.parametrize("missing", ["storage", "buffer"])
def test_a_state_that_lacks_a_part_is_refused(missing):
    rb = dumps.buffer(0)
    state = rb.state_dict()
    del state[missing]
    with pytest.raises(ValueError, match=f"load_state_dict: the saved state has no entry '{missing}'"):
        rb.load_state_dict(state)
    for wrong in (None, [], {"storage": 1, "buffer": 2}):
        with pytest.raises(ValueError, match="load_state_dict"):
            rb.load_state_dict(wrong)


def test_without_a_generator_of_its_own_a_buffer_leaves_the_global_one_alone(tmp_path):
    rb = dumps.plain_buffer()
    rb.dumps(tmp_path)
    before = torch.get_rng_state()
    rb.loads(tmp_path)
    new = ReplayBuffer(
        storage=LazyTensorStorage(5), generator=torch.Generator(), writer=rb.writer.__class__(track_generations=True)
    )
    own = new.generator.get_state()
    new.loads(tmp_path)
    assert torch.equal(torch.get_rng_state(), before) and torch.equal(new.generator.get_state(), own)


def test_a_data_set_that_is_only_drawn_from_can_be_loaded(tmp_path):
    rb = ReplayBuffer(storage=ListStorage(5), writer=ImmutableDatasetWriter())
    rb.storage.append([1, 2])
    rb.dumps(tmp_path)
    new = ReplayBuffer(storage=ListStorage(5), writer=ImmutableDatasetWriter(), collate_fn=list)
    new.loads(tmp_path)
    assert new[:] == [1, 2]


def test_hooks_are_the_storages(tmp_path):
    rb = dumps.plain_buffer(3)
    rb.register_save_hook(lambda data: data + 1)
    rb.register_load_hook(lambda data: data * 10)
    rb.dumps(tmp_path)
    rb.loads(tmp_path)
    assert rb[:].tolist() == [10, 20, 30]
    other = ReplayBuffer(storage=rb.storage, writer=rb.writer)
    other.dumps(tmp_path)
    other.loads(tmp_path)
    assert rb[:].tolist() == [110, 210, 310]


def test_transforms_are_neither_saved_nor_applied(tmp_path):
    rb = dumps.plain_buffer(3)
    rb.append_transform(lambda x: x * 100)
    rb.append_transform(lambda x: x + 1, invert=True)
    rb.dumps(tmp_path)
    rb.loads(tmp_path)
    assert rb.storage[:].tolist() == [0, 1, 2] and rb[:].tolist() == [0, 100, 200]


def test_an_interrupt_while_parts_are_put_in_place_is_raised_when_all_are():
    done = []

    def interrupted():
        done.append("interrupted")
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saving._call_all([lambda: done.append("first"), interrupted, lambda: done.append("last")])
    assert done == ["first", "interrupted", "first", "interrupted", "last"]
