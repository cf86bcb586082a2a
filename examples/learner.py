"""A GRPO learner whose steps mix fresh groups with replayed ones (RePO, https://arxiv.org/abs/2506.09340).

One step, as ``Learner.train`` has it: sample candidates for some prompts and verify them; keep a balanced group of
each prompt; draw past groups from the ring; write the fresh groups into it; take a gradient step on both. Meanwhile
the reference service patches log-probs of the frozen reference policy into rows written earlier.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from countdown import PROMPT_LENGTH, decode, distinct_problems, encode, verify
from policy import Policy
from reference_service import ReferenceService
from tensordict import TensorDict
from torch import Tensor

from torchrb import (
    LazyTensorStorage,
    MCAdvantageSelector,
    PromptGroupSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    group_advantages,
)

GROUP = 8  # completions of one prompt that are compared with each other


@dataclass(frozen=True)
class Config:
    """What a run is made of. ``replay`` is None for GRPO alone, else the strategy that picks rows within a group."""

    replay: str | None = None
    passes: int = 1  # gradient steps on each batch
    rollouts: int = 40_000  # the budget; candidates that are not kept count too
    prompts: int = 64  # the pool: every prompt comes back again and again
    prompts_per_step: int = 8
    capacity: int = 1024  # rows of the ring
    oversample: int = 3  # a hard prompt gets this many times GROUP candidates
    hard_below: float = 0.25  # a prompt is hard while its running success rate is below this
    learning_rate: float = 1e-3
    clip: float = 0.2
    kl: float = 0.01  # pull towards the reference policy, on replayed rows that have reference log-probs
    evaluations: int = 12


@dataclass
class Outcome:
    """What a run leaves behind: a point of the curve for each evaluation, and counters."""

    rollouts: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Learner:
    """One run of one method with one seed: ``Learner(config, warm, seed).train()``."""

    def __init__(self, config: Config, warm: Policy, seed: int):
        self.config, self.policy, self.version = config, deepcopy(warm), 0
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.problems = distinct_problems(config.prompts, self.rng)
        self.prompts = encode([problem.prompt for problem in self.problems], PROMPT_LENGTH)
        self.success = torch.zeros(config.prompts)  # running success rate: hard until shown otherwise
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.selector = MCAdvantageSelector()
        self.outcome = Outcome()
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(config.capacity),
            writer=TensorDictRoundRobinWriter(track_generations=True),
            sampler=PromptGroupSampler(
                num_groups=config.prompts_per_step,
                group_key="prompt_id",
                strategy=config.replay or "random",
                reward_key="reward",
            ),
            batch_size=config.prompts_per_step * GROUP,
            generator=torch.Generator().manual_seed(seed),
        )
        self.reference = ReferenceService(deepcopy(warm), self.buffer, seed)

    def train(self, on_rollouts: Callable[[int], None] = lambda new: None) -> Outcome:
        """Trains until the budget of rollouts is spent; tells ``on_rollouts`` about each batch of them."""
        counts, every, due = self.outcome.counts, self.config.rollouts / self.config.evaluations, 0.0
        while counts["rollouts"] < self.config.rollouts:
            while counts["rollouts"] >= due:
                self.evaluate()
                due += every
            candidates = self.generate()
            on_rollouts(len(candidates))
            fresh = self.select(candidates)
            self.reference.wait()
            replayed = self.draw()
            self.reference.advance()  # the thread patches old rows while the lines below overwrite some of them
            if fresh is not None:
                self.store(fresh)
            self.update(fresh, replayed)
        while len(self.outcome.reward) <= self.config.evaluations:  # every run has as many points
            self.evaluate()
        self.reference.close()
        counts.update(self.reference.counts)
        counts["unsolved"], counts["prompts"] = int((self.success < 0.01).sum()), self.config.prompts
        self.check_patches(self.buffer[:])
        return self.outcome

    def generate(self) -> TensorDict:
        """Samples candidates for the next prompts, more of them for hard prompts, and verifies each."""
        config = self.config
        chosen = torch.tensor(self.rng.sample(range(config.prompts), config.prompts_per_step))
        hard = self.success[chosen] < config.hard_below
        prompt_id = chosen.repeat_interleave(torch.where(hard, GROUP * config.oversample, GROUP))
        tokens, log_prob, mask = self.policy.sample(self.prompts[prompt_id], self.generator)
        reward = self.rewards(prompt_id, tokens)
        for prompt in chosen.tolist():
            self.success[prompt] += 0.5 * (reward[prompt_id == prompt].mean() - self.success[prompt])
        self.outcome.counts["rollouts"] += len(reward)
        leaves = {"prompt_id": prompt_id, "tokens": tokens, "log_prob": log_prob, "mask": mask, "reward": reward}
        return TensorDict(leaves, batch_size=[len(reward)])

    def rewards(self, prompt_id: Tensor, tokens: Tensor) -> Tensor:
        """The verified reward of each completion, float32 ``[batch]``."""
        pairs = zip(prompt_id.tolist(), decode(tokens), strict=True)
        return torch.tensor([verify(self.problems[prompt], text) for prompt, text in pairs])

    def select(self, candidates: TensorDict) -> TensorDict | None:
        """Keeps GROUP completions of each prompt, right and wrong ones in balance; drops a prompt without both."""
        groups = []
        for prompt in candidates["prompt_id"].unique().tolist():
            group = candidates[candidates["prompt_id"] == prompt]
            returns = TensorDict({"return": group["reward"]}, batch_size=group.batch_size)
            rows = self.selector.select(returns, group_size=GROUP, keep_return_bounds=(0.0, 1.0))
            self.outcome.counts["dropped" if rows is None else "kept"] += 1
            if rows is not None:
                groups.append(group[torch.tensor(rows)])
        return torch.cat(groups) if groups else None

    def store(self, fresh: TensorDict) -> None:
        """Writes fresh groups into the ring and asks for their reference log-probs, one question a group."""
        rows, first = len(fresh), self.outcome.counts["stored"]
        self.outcome.counts["stored"] += rows
        record = fresh.copy()
        record["record_id"] = torch.arange(first, first + rows)
        record["policy_version"] = torch.full((rows,), self.version)
        record["ref_log_prob"] = torch.zeros_like(fresh["log_prob"])
        record["ref_record_id"] = torch.full((rows,), -1)
        record["ref_version"] = torch.zeros(rows, dtype=torch.int64)  # 0: no reference log-probs yet
        index, generation = self.buffer.extend(record, return_generations=True)
        for group in torch.arange(rows).split(GROUP):
            self.ask(index[group], generation[group], record[group])

    def ask(self, index: Tensor, generation: Tensor, rows: TensorDict) -> None:
        """Asks for the reference log-probs of stored rows."""
        prompts = self.prompts[rows["prompt_id"]]
        self.reference.ask(index, generation, prompts, rows["tokens"], rows["record_id"])

    def draw(self) -> TensorDict | None:
        """Draws groups once the ring holds enough prompts; asks again for reference log-probs that are missing."""
        if self.config.replay is None or self.buffer.stats()["num_groups"] < self.config.prompts_per_step:
            return None
        rows = self.buffer.sample()
        self.check_patches(rows)
        missing = rows[rows["ref_version"] == 0]
        if len(missing):
            self.ask(missing["index"], missing["index_generation"], missing)
        self.outcome.counts["replayed"] += len(rows)
        self.outcome.counts["age"] += int((self.version - rows["policy_version"]).sum())
        return rows

    def update(self, fresh: TensorDict | None, replayed: TensorDict | None) -> None:
        """Takes a step on the sum of a fresh and a replayed loss, each with advantages of its own."""
        for _ in range(self.config.passes):
            losses = [self.loss(rows) for rows in (fresh, replayed) if rows is not None]
            if not losses:  # no group had both right and wrong completions, and the ring is not in use yet
                return
            self.optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.optimizer.step()
            self.version += 1

    def loss(self, rows: TensorDict) -> Tensor:
        """The clipped surrogate of GRPO for rows laid out group by group, plus the pull towards the reference.

        The importance ratio is against the policy that wrote the row, however long ago that was.
        """
        log_prob = self.policy.log_probs(self.prompts[rows["prompt_id"]], rows["tokens"])
        advantage = group_advantages(rows["reward"].view(-1, GROUP), kind="std").view(-1, 1)
        ratio = (log_prob - rows["log_prob"]).exp()
        clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        loss = -torch.minimum(ratio * advantage, clipped * advantage)
        if "ref_version" in rows.keys():
            answered = (rows["ref_version"] > 0).unsqueeze(1)
            gap = torch.where(answered, rows["ref_log_prob"] - log_prob, 0.0)
            loss = loss + self.config.kl * (gap.exp() - gap - 1)
        return loss[rows["mask"]].mean()

    @torch.no_grad()
    def evaluate(self, samples: int = 8) -> None:
        """Adds to the curve the mean reward over the whole pool; these completions are not trained on or counted."""
        prompt_id = torch.arange(self.config.prompts).repeat_interleave(samples)
        tokens, _, _ = self.policy.sample(self.prompts[prompt_id], torch.Generator().manual_seed(0))
        self.outcome.rollouts.append(self.outcome.counts["rollouts"])
        self.outcome.reward.append(self.rewards(prompt_id, tokens).mean().item())

    @torch.no_grad()
    def check_patches(self, rows: TensorDict) -> None:
        """Counts patched rows that carry another record's answer: by its id, and by computing the answer again."""
        rows = rows[rows["ref_version"] > 0]
        again = self.reference.policy.log_probs(self.prompts[rows["prompt_id"]], rows["tokens"])
        same = (rows["ref_log_prob"] - again).abs().amax(1) < 1e-4
        self.outcome.counts["checked"] += len(rows)
        self.outcome.counts["wrong"] += int((~same | (rows["ref_record_id"] != rows["record_id"])).sum())
