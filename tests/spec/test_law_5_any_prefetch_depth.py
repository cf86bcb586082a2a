"""Law 5, and 4: prefetching is an early answer. At any depth every sample, and the buffer after it, is what it is at
depth 0, whatever is written, seeded, exchanged or emptied in between.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.spec.builders import STORAGES, TENSOR_STORAGES, group_sampler
from tests.spec.early import drawn_ahead
from torchrb import (
    PrioritizedSampler,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

CAPACITY, BATCH = 12, 4
SAMPLERS = {
    "uniform": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "without replacement, whole batches": lambda: SamplerWithoutReplacement(drop_last=True),
    "in order": lambda: SamplerWithoutReplacement(shuffle=False),
    "groups": lambda: group_sampler("random", num_groups=2),
    "best of groups": lambda: group_sampler("reward", num_groups=2),
    "priorities": lambda: PrioritizedSampler(CAPACITY, 0.8, 0.6),
    "groups read anew": lambda: group_sampler("recency", num_groups=2, cache_groups=False),
}


def numbered(numbers: Sequence[int]) -> TensorDict:
    n = torch.tensor(numbers)
    reward = TensorDict({"reward": n[:, None] / 2}, [len(n)])
    return TensorDict({"n": n, "half": n.float() / 2, "g": n % 3, "next": reward}, [len(n)])


class Story:
    """A random history of samples and of what else is done to a buffer; what it tells does not depend on the depth."""

    STEPS = (
        *["sample"] * 12, "sample_other_size", "extend", "add", "set_item", "patch", "set_field",
        "other_buffer_writes", "other_buffer_draws", "empty", "seed", "take_a_number", "exchange_sampler",
        "exchange_storage", "change_sampler", "update_priority", "mark_update", "append_transform",
        "change_transform", "random_transform",
    )  # fmt: skip

    def __init__(self, kind: str, sampler: str, own: bool, depth: int | None, seed: int) -> None:
        self.rng, self.kind, self.count, self.told = random.Random(seed), kind, 0, []
        self.scale = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
        torch.nn.init.ones_(self.scale.weight)
        torch.manual_seed(seed)
        self.rb = TensorDictReplayBuffer(
            storage=STORAGES[kind](CAPACITY), sampler=SAMPLERS[sampler](), batch_size=BATCH, prefetch=depth,
            writer=TensorDictRoundRobinWriter(track_generations=True),
            generator=torch.Generator().manual_seed(seed) if own else None,
            transform=self.scaled,
        )  # fmt: skip
        self.add_other()

    def add_other(self) -> None:
        self.other = TensorDictReplayBuffer(
            storage=self.rb.storage, sampler=self.rb.sampler, writer=RoundRobinWriter(), batch_size=BATCH,
            generator=torch.Generator().manual_seed(9),
        )  # fmt: skip

    def scaled(self, batch: Any) -> Any:
        return batch.set("scaled", batch["n"][:, None] * 2.0)

    def run(self, steps: int) -> Any:
        self.extend()
        for _ in range(steps):
            getattr(self, self.rng.choice(self.STEPS))()
            rest = self.rng.random() < 0.6  # or the next step comes while something is being drawn
            if rest and self.rb._early is not None:
                drawn_ahead(self.rb)
        generator = self.rb.generator or torch.default_generator
        return self.told, generator.get_state().tolist(), torch.rand(2).tolist()

    # --- what is done

    def tell(self, draw: Any) -> None:
        try:
            batch, info = draw()
        except (RuntimeError, ValueError) as error:
            self.told.append(f"{type(error).__name__}: {error}")
            return
        numbers = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in info.items()}
        keys = ("n", "half", "scaled", "index", "priority_weight")
        fields = {key: batch[key].tolist() for key in keys if key in batch.keys()}
        self.told.append((numbers, fields, self.rb.sampler.stats(self.rb.storage), self.rb.sampler.ran_out
                          if isinstance(self.rb.sampler, SamplerWithoutReplacement) else None))  # fmt: skip

    def sample(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.tell(lambda: self.rb.sample(return_info=True))

    def sample_other_size(self) -> None:
        self.tell(lambda: self.rb.sample(2, return_info=True))

    def _fresh(self, num: int) -> Any:
        self.count += num
        return numbered(range(self.count - num, self.count))

    @property
    def slots(self) -> torch.Tensor:
        length = len(self.rb)
        return torch.tensor(self.rng.sample(range(length), min(length, 3)), dtype=torch.int64)

    def extend(self) -> None:
        self.rb.extend(self._fresh(self.rng.randint(1, CAPACITY)))

    def add(self) -> None:
        self.rb.add(self._fresh(1)[0])

    def set_item(self) -> None:
        slots = self.slots
        self.rb[slots] = self._fresh(len(slots))

    def patch(self) -> None:
        if self.kind in TENSOR_STORAGES:
            slots = self.slots
            patch = {"half": self._fresh(len(slots))["half"]}
            self.rb.update_if_present(index=slots, generation=self.rb.writer.generations_of(slots), patch=patch)

    def set_field(self) -> None:
        self.rb.set_("half", self._fresh(len(self.rb))["half"])

    def other_buffer_writes(self) -> None:
        self.other.extend(self._fresh(2))

    def other_buffer_draws(self) -> None:
        self.tell(lambda: self.other.sample(return_info=True))

    def empty(self) -> None:
        if self.rng.random() < 0.5:
            self.rb.empty()
            self.sample()
            self.extend()

    def seed(self) -> None:
        number = self.rng.randrange(100)
        torch.manual_seed(number) if self.rb.generator is None else self.rb.generator.manual_seed(number)

    def take_a_number(self) -> None:
        torch.rand(1)

    def exchange_sampler(self) -> None:
        self.rb.set_sampler(SAMPLERS[self.rng.choice([*SAMPLERS])]())
        self.add_other()

    def exchange_storage(self) -> None:
        if self.rng.random() < 0.5:
            self.rb.set_storage(STORAGES[self.kind](CAPACITY))
            self.add_other()
            self.extend()

    def change_sampler(self) -> None:
        if hasattr(self.rb.sampler, "num_groups"):
            self.rb.sampler.num_groups = self.rng.choice([1, 2])
        elif hasattr(self.rb.sampler, "shuffle"):
            self.rb.sampler.drop_last = self.rng.random() < 0.3
        elif hasattr(self.rb.sampler, "beta"):
            setattr(self.rb.sampler, self.rng.choice(["alpha", "beta", "eps"]), self.rng.random())

    def update_priority(self) -> None:
        if len(self.rb):
            slots = self.slots
            self.rb.update_priority(slots, torch.tensor([self.rng.random() * 9 for _ in slots]))

    def mark_update(self) -> None:
        if len(self.rb):
            self.rb.mark_update(self.slots)

    def append_transform(self) -> None:
        if len(self.rb.transform) < 4:
            self.rb.append_transform(lambda batch: batch.set("scaled", self.scale(batch["scaled"])))
            self.rb.append_transform(_Weighted(self.scale))

    def change_transform(self) -> None:
        self.scale.weight += 1

    def random_transform(self) -> None:
        if self.rng.random() < 0.2:
            self.rb.append_transform(lambda batch: batch.set("scaled", batch["scaled"] + torch.rand(len(batch), 1)))


class _Weighted(torch.nn.Module):
    def __init__(self, scale: torch.nn.Module) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, batch: Any) -> Any:
        return batch.set("scaled", self.scale(batch["scaled"]))


@pytest.fixture(autouse=True)
def no_warnings_of_groups() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PromptGroupSampler")
        yield


@pytest.mark.parametrize("own", [True, False], ids=["own", "global"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", ["packed", "stack"])
def test_no_depth_changes_a_sample_or_what_comes_after_it(kind, sampler, own):
    early = 0
    for seed in range(2):
        plain = Story(kind, sampler, own, None, seed).run(40)
        story = Story(kind, sampler, own, 1 + 2 * seed, seed)
        told = story.run(40)
        for number, (mine, its) in enumerate(zip(told[0], plain[0], strict=True)):
            assert mine == its, f"entry {number} of seed {seed}"
        assert told == plain, f"seed {seed}"
        early += story.rb._early.num_early
        story.rb.shutdown()
    assert early > 5 or sampler == "groups read anew", "so few came early that this says nothing"


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "groups read anew"])
def test_a_sample_that_was_drawn_ahead_leaves_everything_as_the_draw_would(sampler):
    """Several passes long, with nothing written: all but the first come early."""
    told = []
    for depth in (None, 1, 2, 5):
        rb = TensorDictReplayBuffer(
            storage=STORAGES["packed"](CAPACITY), sampler=SAMPLERS[sampler](), batch_size=BATCH, prefetch=depth,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        rb.extend(numbered(range(10)))
        story = []
        for _ in range(9):
            batch, info = rb.sample(return_info=True)
            stats = {key: value for key, value in rb.stats().items() if key != "prefetch_queue_size"}
            story.append((batch["n"].tolist(), info["index"].tolist(), stats, rb.generator.get_state().tolist()))
            if depth is not None:
                drawn_ahead(rb)
        told.append(story)
        assert depth is None or rb._early.num_early == 8
    assert told[0] == told[1] == told[2] == told[3]


def transformed(depth: int | None, transform: Any, between: Any = None) -> list[Any]:
    """What eight samples are with a transform, and the numbers of torch's generator after them."""
    torch.manual_seed(2)
    rb = TensorDictReplayBuffer(
        storage=STORAGES["packed"](CAPACITY), batch_size=BATCH, prefetch=depth, transform=transform,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    rb.extend(numbered(range(10)))
    told = []
    for _ in range(8):
        told.append(rb.sample()["scaled"].tolist())
        if depth is not None:
            drawn_ahead(rb)
        if between is not None:
            between()
    return [*told, torch.rand(3).tolist()]


def test_transforms_take_the_random_numbers_that_they_take_without():
    def jittered(batch: Any) -> Any:
        return batch.set("scaled", batch["half"][:, None] + torch.rand(len(batch), 1))

    assert transformed(None, jittered) == transformed(1, jittered) == transformed(3, jittered)


def test_transforms_have_the_parameters_of_their_call():
    def story(depth: int | None) -> list[Any]:
        scale = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
        torch.nn.init.ones_(scale.weight)
        first = transformed(depth, _First(scale), lambda: scale.weight.add_(1))
        return first + transformed(depth, _First(scale))  # nobody changes them now

    assert story(None) == story(1) == story(3)


class _First(_Weighted):
    def forward(self, batch: Any) -> Any:
        return super().forward(batch.set("scaled", batch["half"][:, None]))


@pytest.mark.parametrize("sampler", ["uniform", "without replacement", "groups"])
def test_records_that_are_drawn_so_often_and_no_more(sampler):
    """With `consume_after_n_samples` each sample decides what is left for the next: none is drawn ahead."""
    told = []
    for depth in (None, 3):
        rb = TensorDictReplayBuffer(
            storage=STORAGES["packed"](CAPACITY), sampler=SAMPLERS[sampler](), batch_size=BATCH, prefetch=depth,
            generator=torch.Generator().manual_seed(1), consume_after_n_samples=2, pin_memory=True,
        )  # fmt: skip
        rb.extend(numbered(range(10)))
        story: list[Any] = []
        for call in range(9):
            try:
                story.append((rb.sample()["n"].tolist(), len(rb), rb.stats()))
            except RuntimeError as error:
                story.append(str(error))
            if call == 6:
                rb.extend(numbered(range(10, 13)))
        told.append(story)
    assert told[0] == told[1] and any("are left" in entry for entry in told[0] if isinstance(entry, str))
