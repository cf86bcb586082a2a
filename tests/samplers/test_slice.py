"""Slices are runs of records of one trajectory; each trajectory is as likely as any other, and in it each start."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle

import pytest
import torch
from tensordict import TensorDict

from tests.ops.chance import chi_square_tail
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

SAMPLERS = (SliceSampler, SliceSamplerWithoutReplacement)
each_sampler = pytest.mark.parametrize("kind", SAMPLERS)


def steps(ids, **fields):
    num = len(ids)
    return TensorDict({"episode": torch.tensor(ids), "obs": torch.arange(num), **fields}, [num])


def filled(ids, sampler, capacity=None, seed=0, storage=LazyTensorStorage, **fields):
    rb = TensorDictReplayBuffer(
        storage=storage(capacity or len(ids)), sampler=sampler, generator=torch.Generator().manual_seed(seed)
    )
    rb.extend(steps(ids, **fields))
    return rb


def slices(batch, key="index"):
    """The slices of a batch, told apart by where they end."""
    found, current = [], []
    for value, last in zip(batch[key].tolist(), batch["next", "truncated"].view(-1).tolist(), strict=True):
        current.append(value)
        if last:
            found.append(tuple(current))
            current = []
    assert not current
    return found


def assert_frequencies(counts, chances):
    expected = [sum(counts) * chance for chance in chances]
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))
    assert chi_square_tail(statistic, len(counts) - 1) > 1e-6, counts


# --- which records


@each_sampler
@pytest.mark.parametrize("counts", [{"num_slices": 2}, {"slice_len": 3}])
def test_a_batch_is_slices_of_trajectories(kind, counts):
    rb = filled([0] * 7 + [1] * 3 + [2] * 2 + [3] * 4, kind(traj_key="episode", **counts))
    for _ in range(20):
        batch, info = rb.sample(6, return_info=True)
        found = slices(batch)
        assert {len(run) for run in found} == {3} and torch.equal(info["index"], batch["index"])
        for run in found:
            assert list(run) == list(range(run[0], run[0] + 3))
            assert len({rb[slot]["episode"].item() for slot in run}) == 1


@each_sampler
def test_a_slice_follows_the_ring_round_its_wrap_point(kind):
    rb = filled([0, 0, 0, 0, 1, 1, 1], kind(slice_len=4), capacity=7)
    rb.extend(steps([1, 1, 2]))
    assert {run for _ in range(60) for run in slices(rb.sample(4))} == {(4, 5, 6, 0), (5, 6, 0, 1)}


def test_each_trajectory_is_equally_likely_and_in_it_each_start():
    rb = filled([0] * 7 + [1] * 3 + [2], SliceSampler(slice_len=2, traj_key="episode"))
    counts = collections.Counter(slices(rb.sample(8000)))
    expected = {(i, i + 1): 1 / 12 for i in range(6)} | {(7, 8): 1 / 4, (8, 9): 1 / 4}
    assert counts.keys() == expected.keys()
    assert_frequencies([counts[run] for run in expected], list(expected.values()))


NONE, LEFT_1, LEFT_2, RIGHT_1, RIGHT_2 = (
    {(0, 3), (1, 4), (2, 5)},
    {(0, 2)},
    {(0, 2), (0, 1)},
    {(3, 5)},
    {(3, 5), (4, 5)},
)
SPANS = [
    (False, NONE),
    (0, NONE),
    (1, NONE | LEFT_1 | RIGHT_1),
    (2, NONE | LEFT_2 | RIGHT_2),
    (True, NONE | LEFT_2 | RIGHT_2),
    (9, NONE | LEFT_2 | RIGHT_2),
    ((True, False), NONE | LEFT_2),
    ((0, True), NONE | RIGHT_2),
    ((1, 2), NONE | LEFT_1 | RIGHT_2),
]


@pytest.mark.parametrize(("span", "ends"), SPANS)
def test_spanning_slices_are_cut_at_the_ends_and_equally_likely(span, ends):
    rb = filled([0] * 5, SliceSampler(slice_len=3, traj_key="episode", span=span))
    counts = collections.Counter(run for _ in range(4) for run in slices(rb.sample(3 * 700)))
    expected = [tuple(range(*pair)) for pair in sorted(ends)]
    assert set(counts) == set(expected)
    assert_frequencies([counts[run] for run in expected], [1 / len(expected)] * len(expected))


@each_sampler
def test_without_strict_length_short_trajectories_are_drawn_whole(kind):
    rb = filled([0] * 5 + [1] * 2 + [2], kind(slice_len=3, traj_key="episode", strict_length=False))
    seen = {run for _ in range(60) for run in slices(rb.sample(6))}
    assert seen == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (5, 6), (7,)}


@each_sampler
def test_padded_slices_are_of_one_length_and_say_what_is_padding(kind):
    rb = filled([0] * 5 + [1] * 2 + [2], kind(slice_len=3, traj_key="episode", strict_length=False, pad_output=True))
    for _ in range(20):
        batch = rb.sample(6)
        index, mask = batch["index"].view(-1, 3), batch["collector", "mask"].view(-1, 3)
        last = batch["next", "truncated"].view(-1, 3)
        for run, real, end in zip(index.tolist(), mask.tolist(), last.tolist(), strict=True):
            num = sum(real)
            assert real == [True] * num + [False] * (3 - num) and end == [i == num - 1 for i in range(3)]
            assert run[num:] == run[num - 1 : num] * (3 - num) and num == (3 if run[0] < 5 else 2 if run[0] < 7 else 1)


def test_records_that_lie_anywhere_are_drawn_in_the_order_of_their_steps():
    sampler = SliceSampler(slice_len=3, traj_key="episode", fragmented=True)
    rb = filled([0, 1, 0, 1, 0, 1], sampler, step_count=torch.tensor([0, 0, 1, 1, 2, 2]))
    assert set(slices(rb.sample(300))) == {(0, 2, 4), (1, 3, 5)}


@each_sampler
def test_boundaries_that_the_caller_gives(kind):
    ends = torch.tensor([0, 0, 1, 0, 0, 0, 1]).bool()
    for given in ({"ends": ends}, {"trajectories": torch.tensor([4, 4, 4, 7, 7, 7, 7])}):
        rb = filled([0] * 7, kind(slice_len=3, cache_values=True, **given))
        assert {run for _ in range(40) for run in slices(rb.sample(3))} == {(0, 1, 2), (3, 4, 5), (4, 5, 6)}
    plain = ReplayBuffer(storage=LazyTensorStorage(7), sampler=kind(slice_len=3, ends=ends))
    plain.extend(torch.arange(7))
    batch, info = plain.sample(3, return_info=True)
    assert batch.diff().tolist() == [1, 1] and info["next", "truncated"].view(-1).tolist() == [False, False, True]


def test_a_draw_sees_what_was_written_since():
    rb = filled([0] * 4, SliceSampler(slice_len=2), capacity=6)
    rb.sample(2)
    rb.set_at_("episode", torch.tensor([1, 1]), [0, 1])
    assert set(slices(rb.sample(200))) == {(0, 1), (2, 3)}
    rb.extend(steps([0, 2]))
    assert set(slices(rb.sample(200))) == {(0, 1), (2, 3), (3, 4)}


@each_sampler
def test_records_written_over_used_ones_do_not_go_on_where_those_lay(kind):
    """With records that are used up a ring is none any more: new ones lie where there is room."""
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=kind(slice_len=3, end_key=("next", "done"), strict_length=False),
        generator=torch.Generator().manual_seed(1),
        consume_after_n_samples=1,
    )
    written = drawn = 0
    for _ in range(40):
        number = torch.arange(written, written + 4)
        rb.extend(TensorDict({"number": number, "next": {"done": (number % 7 == 6)[:, None]}}, [4]))
        written += 4
        batch = rb.sample(3)
        for run in slices(batch, "number"):
            assert list(run) == list(range(run[0], run[-1] + 1)) and run[0] // 7 == run[-1] // 7
        drawn += len(batch)
    assert drawn > 60


# --- what is marked


def test_marks_keep_what_is_stored():
    flags = {name: torch.tensor([[i in at] for i in range(6)]) for name, at in
             {"done": (2, 4), "terminated": (2,), "truncated": (4,)}.items()}  # fmt: skip
    rb = filled([0] * 6, SliceSampler(slice_len=6, traj_key="episode"), next=TensorDict(flags, [6]))
    batch = rb.sample(6)["next"]
    assert {key: value.view(-1).nonzero().view(-1).tolist() for key, value in batch.items()} == {
        "done": [2, 4, 5], "terminated": [2], "truncated": [4, 5]
    }  # fmt: skip


def test_what_is_done_and_was_not_cut_is_terminated():
    """Where only done is stored: else the value of what comes after would be learned from."""
    flags = {"done": torch.tensor([[0], [1], [0], [1]]).bool(), "truncated": torch.tensor([[0], [0], [0], [1]]).bool()}
    for stored, expected in ((("done",), [1, 3]), (("done", "truncated"), [1])):
        rb = filled([0] * 4, SliceSampler(slice_len=4, traj_key="episode"), next={key: flags[key] for key in stored})
        assert rb.sample(4)["next", "terminated"].view(-1).nonzero().view(-1).tolist() == expected


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyStackStorage])
def test_marks_go_where_the_caller_says(storage):
    first = torch.tensor([True, False, False, False])
    rb = filled([0] * 4, SliceSampler(slice_len=2, truncated_key="cut"), storage=storage, is_init=first)
    batch, info = rb.sample(4, return_info=True)
    for told in (batch, info):
        assert told["cut"].view(-1).tolist() == told["done"].view(-1).tolist() == [False, True, False, True]
        assert told["is_init"].tolist() == [True, False, True, False]
    rb.set_sampler(SliceSampler(slice_len=2, truncated_key=None, init_key=None))
    assert set(rb.sample(2).keys()) == {"episode", "obs", "is_init", "index"}
    rb.set_sampler(SliceSampler(slice_len=2))
    assert rb.sample(2)["next", "truncated"].shape == (2, 1)


def test_transforms_see_the_marks():
    seen = []
    rb = filled([0] * 4, SliceSampler(slice_len=2))
    rb.append_transform(lambda td: seen.append(td["next", "done"].view(-1).tolist()) or td)
    rb.sample(2)
    assert seen == [[False, True]]


def test_marks_are_the_caller_s_own():
    rb = filled([0] * 4, SliceSampler(slice_len=2))
    batch, info = rb.sample(2, return_info=True)
    info["next", "truncated"].fill_(False)
    assert batch["next", "truncated"].any()


# --- passes


def test_a_pass_has_one_slice_of_each_trajectory():
    sampler = SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")
    rb = filled(list(itertools.chain(*([e] * (2 + e % 3) for e in range(11)))) + [11], sampler)
    starts, orders = collections.defaultdict(set), set()
    for _ in range(30):
        drawn, sizes = [], []
        while True:
            batch = rb.sample(8)
            sizes.append(len(batch))
            drawn += [rb[run[0]]["episode"].item() for run in slices(batch)]
            starts[drawn[-1]].add(slices(batch)[-1])
            if sampler.ran_out:
                break
        assert sorted(drawn) == list(range(11)) and sizes == [8, 8, 6]
        orders.add(tuple(drawn))
    assert len(orders) == 30 and max(map(len, starts.values())) > 1


def test_drop_last_and_the_order_of_writing():
    ids = [0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 5]
    sampler = SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode", shuffle=False, drop_last=True)
    rb = filled(ids, sampler)
    told = [(rb.sample(4)["episode"][::2].tolist(), sampler.ran_out, rb.stats()["pass_left"]) for _ in range(3)]
    assert told == [([0, 1], False, 3), ([2, 4], True, 1), ([0, 1], False, 3)]
    with pytest.raises(ValueError, match="must fit into a pass, got 6 slices and 5 trajectories of 2 records or more"):
        rb.sample(12)
    assert rb.sample(4)["episode"][::2].tolist() == [2, 4]


def test_a_pass_goes_on_while_the_buffer_is_written():
    sampler = SliceSamplerWithoutReplacement(num_slices=1, traj_key="episode", shuffle=False, strict_length=False)
    rb = filled([0, 0, 1, 1, 2, 2], sampler, capacity=8)
    assert rb.sample(9)["index"].tolist() == [0, 1]
    rb.extend(steps([2, 3]))  # the one that is being written grows; a new one waits
    assert rb.sample(9)["index"].tolist() == [2, 3]
    rb.extend(steps([3, 4, 4, 4]))  # over 0 and 1
    assert rb.sample(9)["index"].tolist() == [4, 5, 6] and sampler.ran_out
    assert rb.sample(9)["index"].tolist() == [4, 5, 6]
    rb.extend(steps([4, 4, 4, 5, 5]))  # what was left of 2, and 3, are gone
    assert rb.sample(9)["index"].tolist() == [1, 2, 3, 4, 5, 6]
    rb.empty()
    rb.extend(steps([0, 0]))
    assert rb.sample(9)["index"].tolist() == [0, 1]


def test_a_pass_is_saved_by_the_handles_of_what_is_left():
    def sampler():
        return SliceSamplerWithoutReplacement(slice_len=2, traj_key="episode")

    rb = filled([e for e in range(9) for _ in range(2)], sampler())
    first = rb.sample(8)["episode"].unique().tolist()
    state, generator = rb.sampler.state_dict(rb.storage), rb.generator.get_state()
    rest = [rb.sample(8)["episode"].tolist() for _ in range(2)]
    other = sampler()
    other.load_state_dict(rb.storage, state)
    rb.set_sampler(other)
    rb.generator.set_state(generator)
    assert [rb.sample(8)["episode"].tolist() for _ in range(2)] == rest
    assert sorted({*first, *rest[0], *rest[1]}) == list(range(9)) and other.ran_out
    beyond = state["handles"] + torch.tensor([[99], [0]])
    for wrong in ({}, state | {"ran_out": 1}, state | {"handles": torch.zeros(2, 4)}, state | {"handles": beyond}):
        with pytest.raises(ValueError, match="load: SliceSamplerWithoutReplacement: "):
            other.load_state_dict(rb.storage, wrong)
    assert SliceSampler(num_slices=1).state_dict(rb.storage) == {}


@each_sampler
def test_a_saved_buffer_goes_on_as_it_would_have(kind, tmp_path):
    def made():
        return filled([e for e in range(9) for _ in range(3)], kind(slice_len=2, traj_key="episode"), capacity=30)

    rb, other = made(), made()
    rb.sample(8)
    rb.dumps(tmp_path)
    state = rb.state_dict()
    rest = [rb.sample(8)["index"].tolist() for _ in range(4)]
    rb.load_state_dict(state)
    other.loads(tmp_path)
    for again in (rb, other):
        assert [again.sample(8)["index"].tolist() for _ in range(4)] == rest


def test_records_that_were_drawn_often_enough_are_in_no_slice():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2, traj_key="episode"), consume_after_n_samples=1
    )
    rb.extend(steps([0] * 4 + [1] * 4))
    seen = []
    while True:
        try:
            batch = rb.sample(4)
        except RuntimeError as error:
            assert "no trajectory has the 2 records" in str(error) or "are left" in str(error)
            break
        seen += batch["index"].tolist()
        for run in slices(batch):
            assert list(run) == list(range(run[0], run[-1] + 1)) and len({slot // 4 for slot in run}) == 1
    assert len(seen) == len(set(seen)) >= 4


@each_sampler
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_begins_anew(kind, copied):
    rb = filled([0] * 3 + [1] * 3, kind(slice_len=2, traj_key="episode", span=(0, 1)))
    rb.sample(2)
    twin = copied(rb.sampler)
    assert (twin.slice_len, twin.traj_key, twin.span) == (2, "episode", (0, 1)) and repr(twin) == repr(rb.sampler)
    rb.set_sampler(twin)
    assert len(rb.sample(2))


# --- seeds


@each_sampler
@pytest.mark.parametrize(
    "options", [{}, {"strict_length": False}, {"span": True}, {"strict_length": False, "pad_output": True}]
)
def test_the_same_seed_draws_the_same_whatever_was_drawn_or_looked_at_before(kind, options):
    def history(look):
        rb = filled([0] * 4 + [1] * 4, kind(slice_len=3, traj_key="episode", **options), capacity=12, seed=3)
        for i in range(4):
            if look:
                SliceSampler(slice_len=1).sample(rb.storage, 1)
                rb.sampler._boundaries_of(rb.storage)
            rb.extend(steps([i] * 3))
        return [rb.sample(6)["index"].tolist() for _ in range(5)]

    assert history(False) == history(True)


@each_sampler
@pytest.mark.parametrize("options", [{}, {"strict_length": False}])
def test_slices_that_are_drawn_ahead_are_the_same(kind, options):
    def history(prefetch):
        sampler = kind(slice_len=3, traj_key="episode", **options)
        rb = TensorDictReplayBuffer(
            storage=LazyTensorStorage(30), sampler=sampler, batch_size=6, prefetch=prefetch,
            generator=torch.Generator().manual_seed(7), transform=lambda td: td.set("seen", td["next", "done"] * 1),
        )  # fmt: skip
        rb.extend(steps([0] * 5 + [1] * 2 + [2] * 3 + [3] * 8))
        told = []
        for turn in range(24):
            batch, info = rb.sample(return_info=True)
            assert torch.equal(batch["seen"] != 0, info["next", "done"])
            told.append((batch["index"].tolist(), info["next", "truncated"].tolist(), getattr(sampler, "ran_out", 0)))
            if turn % 7 == 6:
                rb.extend(steps([turn] * 3))
        rb.shutdown()
        return told

    assert history(3) == history(None)


@each_sampler
def test_a_draw_that_is_refused_takes_no_random_number(kind):
    rb = filled([0] * 4, kind(slice_len=5, traj_key="episode"))
    state = rb.generator.get_state()
    with pytest.raises(RuntimeError, match="no trajectory has the 5 records of a slice; the longest of 1 has 4"):
        rb.sample(5)
    with pytest.raises(
        ValueError, match="batch_size must be a multiple of slice_len, got batch_size=7 and slice_len=5"
    ):
        rb.sample(7)
    rb.empty()
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample(5)
    assert torch.equal(rb.generator.get_state(), state)


# --- options


@each_sampler
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, TypeError, "give exactly one of num_slices and slice_len"),
        ({"num_slices": 2, "slice_len": 2}, TypeError, "give exactly one of num_slices and slice_len"),
        ({"num_slices": 0}, ValueError, "num_slices must be a positive int, got 0"),
        ({"slice_len": 1.5}, ValueError, "slice_len must be a positive int, got 1.5"),
        ({"num_slices": 1, "end_key": "a", "end_keys": ["b"]}, TypeError, "end_key and end_keys exclude each other"),
        ({"num_slices": 1, "ends": torch.ones(2), "traj_key": "a"}, TypeError, "ends and traj_key exclude each other"),
        ({"num_slices": 1, "ends": [1, 0]}, TypeError, "ends must be a tensor"),
        ({"num_slices": 1, "end_keys": []}, ValueError, "end_keys must name at least one field"),
        ({"num_slices": 1, "span": "x"}, ValueError, "span must be a bool, an int from 0, or a pair"),
        ({"num_slices": 1, "span": -1}, ValueError, "span must be a bool, an int from 0, or a pair"),
        ({"num_slices": 1, "span": (1, 2, 3)}, ValueError, "span must be a bool, an int from 0, or a pair"),
        ({"num_slices": 1, "fragmented": True, "end_key": "a"}, TypeError, "fragmented=True goes with a traj_key"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options, error, says):
    with pytest.raises(error, match=f"{kind.__name__}: {says}"):
        kind(**options)


def test_options_of_a_pass_are_yes_or_no():
    for name in ("drop_last", "shuffle"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 1"):
            SliceSamplerWithoutReplacement(num_slices=1, **{name: 1})


@each_sampler
def test_a_key_that_is_not_stored_is_named(kind):
    rb = filled([0] * 4, kind(slice_len=2, traj_key="episodes"))
    with pytest.raises(KeyError, match=f"{kind.__name__}: no field 'episodes' is stored; stored are"):
        rb.sample(2)
