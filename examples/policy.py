"""The policy: a small character-level transformer that completes countdown prompts, and its supervised warm-up."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from countdown import ALPHABET, COMPLETION_LENGTH, END, PROMPT_LENGTH, encode, random_expression, random_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each normalized before and added after."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.from_heads = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:  # [batch, length, width]
        batch, length, width = x.shape
        qkv = self.to_qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class Policy(nn.Module):
    """A decoder-only transformer over ``prompt + completion``, 17 characters at most.

    Sequences are so short that sampling runs the whole prefix again for each character and keeps no cache.
    """

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Embedding(PROMPT_LENGTH + COMPLETION_LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, codes: Tensor, last: int) -> Tensor:
        """For codes ``[batch, length]``, logits ``[batch, last, alphabet]`` of what follows each of the last ones."""
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        return self.head(self.norm(self.blocks(x)[:, -last:]))

    def log_probs(self, prompts: Tensor, completions: Tensor) -> Tensor:
        """The log-prob of each character of the completions, float32 ``[batch, COMPLETION_LENGTH]``."""
        codes = torch.cat([prompts, completions], dim=1)[:, :-1]
        return self(codes, last=COMPLETION_LENGTH).log_softmax(-1).gather(2, completions.unsqueeze(2)).squeeze(2)

    @torch.no_grad()
    def sample(self, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Completes prompts ``[batch, PROMPT_LENGTH]``: codes, log-probs and mask, each ``[batch, COMPLETION_LENGTH]``.

        The mask is true up to and including the first end mark; all that follows are end marks.
        """
        codes, log_probs, masks = prompts, [], []
        alive = torch.ones(len(prompts), dtype=torch.bool)
        for _ in range(COMPLETION_LENGTH):
            choices = self(codes, last=1).squeeze(1).log_softmax(-1)
            chosen = choices.exp().multinomial(1, generator=generator)
            chosen[~alive] = END
            log_probs.append(choices.gather(1, chosen).squeeze(1))
            masks.append(alive)
            codes = torch.cat([codes, chosen], dim=1)
            alive = alive & (chosen.squeeze(1) != END)
        return codes[:, PROMPT_LENGTH:], torch.stack(log_probs, 1), torch.stack(masks, 1)


def warm_up(policy: Policy, steps: int, seed: int, on_step: Callable[[], object], batch_size: int = 128) -> None:
    """Teaches the *form* of an answer, not the answer: expressions over the right digits that ignore the target."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        problems = [random_problem(rng) for _ in range(batch_size)]
        prompts = encode([problem.prompt for problem in problems], PROMPT_LENGTH)
        texts = [random_expression(problem.numbers, rng) for problem in problems]
        completions = encode(texts, COMPLETION_LENGTH)
        logits = policy(torch.cat([prompts, completions], dim=1)[:, :-1], last=COMPLETION_LENGTH)
        loss = cross_entropy(logits.flatten(0, 1), completions.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        on_step()
