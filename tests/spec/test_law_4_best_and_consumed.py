"""Law 4 for those who remember more than rows: which records are worst, which are used up, which groups are complete.
After every write, by whomever, they know what one knows who has just come.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from tests.spec.builders import STRATEGIES, TENSORDICT_STORAGES, group_sampler, numbered
from tests.spec.histories import History
from torchrb import Sampler, SamplerWithoutReplacement, TensorDictMaxValueWriter, TensorDictReplayBuffer

pytestmark = pytest.mark.filterwarnings("ignore:PromptGroupSampler")  # small groups run short


@pytest.mark.parametrize("kind", TENSORDICT_STORAGES)
def test_the_worst_record_now_makes_way(kind):
    """The field ``half`` of a history's records is what its partial writes change."""
    history, chance = History(kind, capacity=5, seed=3), random.Random(3)
    writer = TensorDictMaxValueWriter(rank_key="half")
    best = TensorDictReplayBuffer(storage=history.rb.storage, writer=writer)
    for _ in range(80):
        history.step()
        if history.length < 5:
            continue
        notes = [record.note for record in history.slots]
        written = [record.written for record in history.slots]
        lowest = min(range(5), key=lambda slot: (notes[slot], -written[slot]))
        record = numbered([chance.randrange(128)])[0]
        slot = best.add(record)
        assert slot == (lowest if float(record["half"]) > notes[lowest] else None)
        if slot is not None:  # put it as it was, for the model's sake
            history.slots[slot] = None
            history.rb[slot] = numbered([history.next_number])[0]
            history = History(kind, capacity=5, seed=chance.randrange(100))
            best = TensorDictReplayBuffer(storage=history.rb.storage, writer=TensorDictMaxValueWriter(rank_key="half"))


SAMPLERS: dict[str, object] = {strategy: lambda strategy=strategy: group_sampler(strategy) for strategy in STRATEGIES}
SAMPLERS |= {"without replacement": SamplerWithoutReplacement}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["packed", "stack"])
def test_a_sampler_over_what_is_left_draws_what_a_new_one_draws(kind, name):
    history = History(kind, capacity=9, seed=2)
    rb = TensorDictReplayBuffer(storage=history.rb.storage, consume_after_n_samples=2, sampler=SAMPLERS[name]())
    for turn in range(60):
        history.step()
        if not len(rb):
            continue
        if name == "without replacement":
            rb.set_sampler(SamplerWithoutReplacement())  # a pass of its own for each draw
        fresh = TensorDictReplayBuffer(storage=rb.storage, consume_after_n_samples=2, sampler=SAMPLERS[name]())
        fresh._consumption.load_state_dict(rb._consumption.state_dict())
        drawn = []
        for buffer in (rb, fresh):
            buffer.generator = torch.Generator().manual_seed(turn)
            drawn.append(buffer.sample(6, return_info=True)[1]["index"].tolist())
        assert drawn[0] == drawn[1], turn


def test_a_sampler_is_given_what_is_left_and_not_the_storage():
    class Looks(Sampler):
        def sample(self, storage, batch_size, generator=None):
            return storage.drawable()[:batch_size], {"left": storage.num_drawable}

    history = History("packed", capacity=6, seed=1)
    rb = TensorDictReplayBuffer(storage=history.rb.storage, consume_after_n_samples=1, sampler=Looks())
    rb.extend(numbered(range(6)))
    assert [rb.sample(4, return_info=True)[1]["left"], rb.sample(4, return_info=True)[1]["left"]] == [6, 2]


@pytest.mark.parametrize("kind", TENSORDICT_STORAGES)
def test_groups_that_are_complete_now_are_drawn_and_no_others(kind):
    history = History(kind, capacity=9, seed=6)
    history.rb.set_sampler(group_sampler(samples_per_group=3, incomplete="skip"))
    for turn in range(80):
        history.step()
        sizes = Counter(history.rb[:]["g"].tolist()) if history.length else {}
        complete = {group for group, size in sizes.items() if size >= 3}
        assert history.rb.stats()["num_groups"] == len(complete), turn
        if complete:
            batch = history.rb.sample(3 * len(complete))
            assert {*batch["g"].tolist()} == complete and batch["index"].unique().shape == (3 * len(complete),)
        elif history.length:
            with pytest.raises(RuntimeError, match="no group has the 3 records"):
                history.rb.sample(3)
