"""Passes over the storage: each record once, in an order of the seed's, whatever is written meanwhile."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading

import pytest
import torch
from tensordict import TensorDict

from tests.cases import STORAGES, buffer
from tests.spec.pretended_gpu import GPU, pretended_gpu
from torchrb import LazyTensorStorage, RandomSampler, SamplerWithoutReplacement, ops
from torchrb.samplers import without_replacement


def rows(*numbers):
    return TensorDict({"n": torch.tensor(numbers, dtype=torch.int64)}, [len(numbers)])


def filled(stored, kind="packed", capacity=None, **options):
    rb = buffer(kind, capacity or stored, sampler=SamplerWithoutReplacement(**options))
    rb.extend(rows(*range(stored)))
    return rb


def drawn(rb, size):
    """The slots of a draw, which hold what is returned with them."""
    data, info = rb.sample(size, return_info=True)
    slots = info["index"].tolist()
    assert [int(rb[slot]["n"]) for slot in slots] == data["n"].tolist()
    return slots


def one_pass(rb, size):
    """The slots of each draw up to the end of the pass."""
    batches = [drawn(rb, size)]
    while not rb.sampler.ran_out:
        batches.append(drawn(rb, size))
    return batches


def flat(batches):
    return list(itertools.chain(*batches))


# --- a pass


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize(("stored", "size"), [(1, 1), (1, 3), (7, 1), (8, 3), (8, 4), (8, 8), (8, 20), (11, 5)])
def test_each_record_is_drawn_once_in_a_pass(kind, stored, size, shuffle):
    rb = filled(stored, kind, capacity=8, shuffle=shuffle)
    present = min(stored, 8)
    for _ in range(3):
        batches = one_pass(rb, size)
        assert sorted(flat(batches)) == list(range(present))
        assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        assert len(batches[-1]) == (present % size or size if present > size else present)
        assert shuffle or flat(batches) == list(range(present))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("stored", "size", "batches"), [(10, 4, 2), (8, 4, 2), (7, 7, 1), (9, 5, 1)])
def test_the_rest_of_a_pass_is_dropped(stored, size, batches, shuffle):
    rb = filled(stored, drop_last=True, shuffle=shuffle)
    seen = set()
    for _ in range(20):
        drops = one_pass(rb, size)
        assert [len(batch) for batch in drops] == [size] * batches and len(set(flat(drops))) == size * batches
        seen |= set(flat(drops))
    assert seen == set(range(stored if shuffle else size * batches))  # with shuffle not always the same are dropped


def test_batches_of_several_sizes_share_a_pass():
    rb = filled(20)
    batches = [drawn(rb, size) for size in (3, 1, 9, 7)]
    assert sorted(flat(batches)) == list(range(20)) and rb.sampler.ran_out
    rb = filled(10, drop_last=True)
    first = drawn(rb, 4)
    assert len(set(drawn(rb, 6)) | set(first)) == 10
    drawn(rb, 4)
    assert len(set(drawn(rb, 7))) == 7 and rb.sampler.ran_out  # six were left: this is another pass
    assert len(drawn(rb, 10)) == 10


@pytest.mark.parametrize("stored", [2, 64, 65, 900])
def test_the_order_depends_on_no_batch_and_on_no_block(monkeypatch, stored):
    whole = None
    for block, size in ((2048, stored), (2048, 170), (200, stored), (200, 33)):
        monkeypatch.setattr(without_replacement, "_BLOCK", block)
        rb, slots = filled(stored), []
        while not rb.sampler.ran_out:
            slots += rb.sample(size)["index"].tolist()
        whole = whole or slots
        assert slots == whole


def test_each_record_is_equally_likely_at_each_place():
    trials = 1500
    passes = torch.stack([ops.draw_permuted(torch.tensor([seed]), 5, 0, 5) for seed in range(trials)])
    for place in range(5):
        share = torch.bincount(passes[:, place], minlength=5) / trials
        assert (share - 0.2).abs().max() < 4.5 * (0.16 / trials) ** 0.5
    pairs = torch.bincount(passes[:, 0] * 5 + passes[:, 1], minlength=25).view(5, 5) / trials
    off = pairs[~torch.eye(5, dtype=torch.bool)]
    assert (off - 0.05).abs().max() < 4.5 * (0.0475 / trials) ** 0.5


# --- seeds


def test_a_pass_is_of_the_seed_its_first_draw_took():
    one, other = filled(50), filled(50)
    first = drawn(one, 10)
    other.generator.manual_seed(0)
    assert drawn(other, 10) == first
    other.generator.manual_seed(99)
    assert [drawn(other, 10) for _ in range(4)] == [drawn(one, 10) for _ in range(4)]
    assert drawn(other, 10) != drawn(one, 10)


def test_a_draw_takes_one_number_and_one_in_order_takes_none():
    for shuffle in (True, False):
        rb, alone = filled(10, shuffle=shuffle), torch.Generator().manual_seed(0)
        for _ in range(7):
            rb.sample(4)
            if shuffle:
                torch.empty(1, dtype=torch.int64).random_(generator=alone)
            assert torch.equal(rb.generator.get_state(), alone.get_state())


# --- writes in the middle of a pass


@pytest.mark.parametrize("kind", STORAGES)
def test_a_record_is_drawn_as_it_is_now(kind):
    rb = filled(8, kind)
    done = drawn(rb, 3)
    rb[torch.arange(8)] = rows(*range(100, 108))
    rest = drawn(rb, 5)  # `drawn` compares with what is stored now
    assert sorted(done + rest) == list(range(8)) and rb.sampler.ran_out


@pytest.mark.parametrize("shuffle", [True, False])
def test_new_slots_wait_for_the_next_pass(shuffle):
    rb = filled(6, capacity=12, shuffle=shuffle)
    first = drawn(rb, 4)
    rb.extend(rows(10, 11, 12))
    assert rb.stats()["pass_size"] == 6 and rb.stats()["pass_drawn"] == 4
    assert sorted(first + drawn(rb, 4)) == list(range(6)) and rb.sampler.ran_out
    assert sorted(flat(one_pass(rb, 4))) == list(range(9))


def test_a_pass_ends_however_much_is_written_meanwhile():
    rb = filled(8, capacity=40)
    for _ in range(6):
        stored, seen = len(rb), []
        for _ in range(-(-stored // 3)):
            seen += drawn(rb, 3)
            rb.extend(rows(7, 8))
        assert sorted(seen) == list(range(stored)) and rb.sampler.ran_out
    assert stored == 40


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("again", [2, 6, 8])
@pytest.mark.parametrize("through", ["buffer", "another buffer", "storage"])
def test_emptying_begins_anew(kind, again, through):
    rb = filled(6, kind, capacity=8)
    drawn(rb, 4)
    {"buffer": rb.empty, "another buffer": buffer(rb.storage).empty, "storage": rb.storage.clear}[through]()
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample(1)
    assert rb.stats()["pass_size"] == rb.stats()["pass_drawn"] == 0
    rb.extend(rows(*range(50, 50 + again)))
    assert sorted(flat(one_pass(rb, 3))) == list(range(again))


# --- whose pass


def test_samplers_do_not_know_of_each_other():
    rb = filled(9)
    other = buffer(rb.storage, sampler=SamplerWithoutReplacement())
    drawn(rb, 5)
    assert sorted(flat(one_pass(other, 4))) == list(range(9))
    assert len(drawn(rb, 5)) == 4


def test_buffers_that_share_a_sampler_share_the_pass():
    rb = filled(9)
    other = buffer(rb.storage, sampler=rb.sampler)
    assert sorted(drawn(rb, 4) + drawn(other, 4) + drawn(rb, 4)) == list(range(9))


def test_each_storage_has_a_pass_of_its_own():
    one, other = filled(6), filled(4)
    other.set_sampler(one.sampler)
    mine, its = drawn(one, 4), drawn(other, 3)
    assert sorted(mine + drawn(one, 4)) == list(range(6)) and one.sampler.ran_out
    assert sorted(its + drawn(other, 3)) == list(range(4))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_begins_anew(copied):
    rb = filled(9, drop_last=True)
    drawn(rb, 5)
    twin = copied(rb.sampler)
    assert (twin.drop_last, twin.shuffle, twin.ran_out) == (True, True, False)
    rb.set_sampler(twin)
    assert len(drawn(rb, 9)) == 9


def test_a_storage_that_is_gone_is_not_kept():
    rb = filled(6)
    sampler, storage = rb.sampler, rb.set_storage(LazyTensorStorage(3))
    buffer(storage, sampler=sampler).sample(2)
    assert len(sampler._passes) == 1
    del storage
    assert not len(sampler._passes)


def test_threads_draw_each_record_once():
    rb, seen, failed = filled(600), [], []

    def work():
        try:
            for _ in range(20):
                seen.extend(rb.sample(10)["n"].tolist())
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and sorted(seen) == list(range(600))


def test_what_was_drawn_is_its_user_s():
    rb = filled(64)
    seen = []
    for _ in range(4):
        batch, info = rb.sample(16, return_info=True)
        seen += info["index"].tolist()
        batch["index"].fill_(-7), info["index"].fill_(-9)
    assert sorted(seen) == list(range(64))


# --- what is told


def test_the_counters_tell_how_far_the_pass_is():
    rb = filled(10)
    told = []
    for _ in range(4):
        told.append((rb.stats()["pass_size"], rb.stats()["pass_drawn"], rb.sampler.ran_out))
        rb.sample(4)
    assert told == [(0, 0, False), (10, 4, False), (10, 8, False), (0, 0, True)]
    assert repr(rb.sampler) == "SamplerWithoutReplacement(drop_last=False, shuffle=True)"


def test_a_batch_that_no_pass_holds_is_refused_and_changes_nothing():
    rb = filled(6, capacity=20, drop_last=True)
    first, state = drawn(rb, 2), rb.generator.get_state()
    with pytest.raises(ValueError, match="got batch_size=7 and 6 stored records. Write more first.*drop_last=False"):
        rb.sample(7)
    assert torch.equal(rb.generator.get_state(), state) and rb.stats()["pass_drawn"] == 2
    assert len(set(first + drawn(rb, 4))) == 6


@pytest.mark.parametrize("options", [{"drop_last": 1}, {"shuffle": None}, {"shuffle": "no"}])
def test_options_are_yes_or_no(options):
    (name,) = options
    with pytest.raises(TypeError, match=f"SamplerWithoutReplacement: {name} must be True or False, got"):
        SamplerWithoutReplacement(**options)


def test_another_sampler_in_between_changes_nothing():
    rb = filled(8)
    first = drawn(rb, 5)
    own = rb.set_sampler(RandomSampler())
    rb.sample(100)
    rb.set_sampler(own)
    assert sorted(first + drawn(rb, 5)) == list(range(8))


def test_a_draw_into_a_graph_is_refused(monkeypatch):
    """Its replays would know nothing of the pass."""
    with pretended_gpu():
        rb = buffer(LazyTensorStorage(8, device=GPU), sampler=SamplerWithoutReplacement())
        rb.extend(rows(*range(8)).to(GPU))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="every replay of a CUDA graph would draw the records of its capture"):
            rb.sample(2)


def test_a_draw_that_is_cut_off_can_be_made_again(monkeypatch):
    rb = filled(300)
    permuted = ops.draw_permuted
    monkeypatch.setattr(without_replacement, "_BLOCK", 64)
    first = drawn(rb, 100)

    def struck(*args):
        monkeypatch.setattr(ops, "draw_permuted", permuted)
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, "draw_permuted", struck)
    with pytest.raises(KeyboardInterrupt):
        rb.sample(150)
    assert rb.stats()["pass_drawn"] == 100 and not rb.sampler.ran_out
    assert sorted(first + drawn(rb, 150) + drawn(rb, 150)) == list(range(300))
