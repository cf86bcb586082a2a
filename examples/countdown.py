"""The task: *countdown*. Reach a target from three or four digits with ``+``, ``-`` and ``*``, each digit used once.

A prompt is nine characters, ``"357 =022:"``: the digits (where there are three, a blank follows), the target, a
colon. A completion is an expression and an end mark, ``"3*5+7$"``. All widths are fixed, so a batch needs no
attention mask.

The reward is *verified*: the completion is parsed and evaluated. It earns 1 if it is an expression over exactly the
given digits whose value is the target, else 0. There is no partial credit, so a policy that writes well-formed
expressions at random earns almost nothing, and at first most groups of a GRPO learner are all wrong.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import torch
from torch import Tensor

ALPHABET = "0123456789+-*=: $"
END = ALPHABET.index("$")
PROMPT_LENGTH = 9
COMPLETION_LENGTH = 8  # four digits, three operators, the end mark

_CODE = {char: code for code, char in enumerate(ALPHABET)}
_EXPRESSION = re.compile(r"[1-9]([+*-][1-9])*")


@dataclass(frozen=True)
class Problem:
    """Some digits and the target to reach with them.

    >>> Problem((3, 5, 7), 22).prompt
    '357 =022:'
    """

    numbers: tuple[int, ...]
    target: int

    @property
    def prompt(self) -> str:
        return f"{''.join(map(str, self.numbers)):<4}={self.target:03d}:"


def verify(problem: Problem, completion: str) -> float:
    """Evaluates a completion: 1.0 if it reaches the target with exactly the given digits, else 0.0.

    Only what matches the grammar, digits and operators in turn, is evaluated: nothing else is ever executed.

    >>> problem = Problem((3, 5, 7), 22)
    >>> [verify(problem, completion) for completion in ("3*5+7", "7+5*3", "3+5*7", "22", "3*5+")]
    [1.0, 1.0, 0.0, 0.0, 0.0]
    """
    if not _EXPRESSION.fullmatch(completion) or sorted(map(int, completion[::2])) != sorted(problem.numbers):
        return 0.0
    return float(eval(completion) == problem.target)


def random_expression(numbers: tuple[int, ...], rng: random.Random) -> str:
    """A well-formed expression over all of ``numbers``, in a random order and with random operators."""
    first, *others = map(str, rng.sample(numbers, len(numbers)))
    return first + "".join(rng.choice("+-*") + digit for digit in others)


def random_problem(rng: random.Random) -> Problem:
    """A problem that has a solution, with a target from 1 to 999."""
    while True:
        numbers = tuple(rng.randint(1, 9) for _ in range(rng.choice((3, 4))))
        target = eval(random_expression(numbers, rng))
        if 1 <= target <= 999:
            return Problem(numbers, target)


def distinct_problems(count: int, rng: random.Random) -> list[Problem]:
    """``count`` different problems, each of which has a solution."""
    problems: dict[Problem, None] = {}  # a set that keeps its order
    while len(problems) < count:
        problems[random_problem(rng)] = None
    return list(problems)


def encode(texts: list[str], length: int) -> Tensor:
    """Texts to codes, int64 ``[len(texts), length]``; short texts are filled up with end marks."""
    return torch.tensor([[_CODE[char] for char in text.ljust(length, ALPHABET[END])] for text in texts])


def decode(codes: Tensor) -> list[str]:
    """Codes ``[batch, length]`` to texts, each cut at its first end mark.

    >>> decode(encode(["3*5+7"], COMPLETION_LENGTH))
    ['3*5+7']
    """
    return ["".join(ALPHABET[code] for code in row).partition(ALPHABET[END])[0] for row in codes.tolist()]
