"""A background thread that computes reference log-probs and patches them into the ring, late and out of order.

In a large run the frozen reference policy sits on other machines, and when its answers arrive the ring has moved on.
Here the wait is counted in steps of the learner: most answers take one, some up to ``MAX_DELAY``, and by then another
record may be in the slot. ``update_if_present`` decides, row by row, whether the record is still the one the question
was about.

Waits are drawn from a seed, and before the learner draws again it lets the thread finish what was due. So the thread
writes while the learner trains and the ring turns, and yet two runs of one seed draw the same rows with the same
content.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter

import torch
from policy import Policy
from torch import Tensor

from torchrb import TensorDictReplayBuffer

MAX_DELAY = 24

Question = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # index, generation, prompts, completions, record ids


class ReferenceService:
    """Answers questions about stored records.

    ``counts`` tells how many rows were ``asked`` about, and how many answers were ``patched`` in, ``late`` (the record
    was gone) or ``second`` (the record had been asked about twice and had its answer).
    """

    def __init__(self, policy: Policy, buffer: TensorDictReplayBuffer, seed: int):
        self.policy = policy
        self.counts: Counter[str] = Counter()
        self._buffer = buffer
        self._rng = random.Random(seed)
        self._step = 0
        self._waiting: list[tuple[int, Question]] = []  # the step at which the answer arrives, the question
        self._due: queue.Queue[list[Question] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="reference", daemon=True)
        self._thread.start()

    def ask(self, *question: Tensor) -> None:
        """Takes a question about some rows; its answer arrives one to ``MAX_DELAY`` steps later."""
        delay = 1 if self._rng.random() < 0.75 else self._rng.randint(2, MAX_DELAY)
        self._waiting.append((self._step + delay, question))
        self.counts["asked"] += len(question[0])

    def advance(self, steps: int = 1) -> None:
        """Moves time on and lets the thread write the answers that are due."""
        self._step += steps
        due = [question for step, question in self._waiting if step <= self._step]
        self._waiting = [(step, question) for step, question in self._waiting if step > self._step]
        if due:
            self._due.put(due)

    def wait(self) -> None:
        """Returns when every answer that was due is written; raises what the thread raised."""
        self._due.join()
        if self._failure is not None:
            raise RuntimeError("the reference thread failed") from self._failure

    def close(self) -> None:
        """Delivers the answers that are still on their way, then ends the thread."""
        self.advance(MAX_DELAY)
        self._due.put(None)
        self._thread.join()
        self.wait()

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            try:
                if self._failure is None:
                    self._answer(*(torch.cat(parts) for parts in zip(*due, strict=True)))
            except BaseException as failure:
                self._failure = failure
            finally:
                self._due.task_done()
        self._due.task_done()

    @torch.no_grad()
    def _answer(self, index: Tensor, generation: Tensor, prompts: Tensor, tokens: Tensor, record_id: Tensor) -> None:
        result = self._buffer.update_if_present(
            index=index,
            generation=generation,
            patch={"ref_log_prob": self.policy.log_probs(prompts, tokens), "ref_record_id": record_id},
            version_key="ref_version",
            version=1,
            require_newer=True,  # rows start at version 0: the first answer is taken, a second one is not
        )
        self.counts["patched"] += result.updated_count
        self.counts["late"] += result.stale_count
        self.counts["second"] += result.version_rejected_count
