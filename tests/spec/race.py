"""Records that tell by themselves whether they are whole, and a ledger that knows what may be read of them, and when.

A record is one number, its id, spread over its fields. Patches write the id too, so one that lands on another record
shows. Of every patch the ledger keeps when its call began and ended, in ticks of a common counter: a read that began
after a patch was reported as done must find that patch, or one that did not end before it began.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

GROUPS = 3
SHIFT = 24  # a note is its record's id above the token of the patch, an answer the id above its version
WIDE = 24


def records_of(ids: list[int], texts: bool) -> TensorDict:
    """Records as they are when they are written: no note, version 0."""
    number = torch.tensor(ids)
    fields = {
        "id": number,
        "wide": number[:, None].expand(-1, WIDE),
        "check": checksum(number),
        "g": number % GROUPS,
        "next": TensorDict({"reward": number.to(torch.float64)[:, None] / 2}, [len(ids)]),
        "touch": torch.zeros(len(ids), 4, dtype=torch.int32),
        **note_of(number, 0),
        **answer_of(number, 0),
        "version": torch.zeros_like(number),
    }
    if texts:
        fields["text"] = [f"record {i}" for i in ids]
    return TensorDict(fields, [len(ids)])


def checksum(number: Tensor) -> Tensor:
    return (number * 2654435761 % 2**31).to(torch.int32)


def note_of(number: Tensor, token: int | Tensor) -> dict[str, Tensor]:
    note = (number << SHIFT) + token
    return {"note": note[:, None].expand(-1, 8).contiguous(), "minus": -note.to(torch.float64)}


def answer_of(number: Tensor, version: int | Tensor) -> dict[str, Tensor]:
    return {"answer": ((number << SHIFT) + version)[:, None].expand(-1, 16).contiguous()}


def check_whole(batch: TensorDict) -> None:
    """Fails where a row mixes two records, two patches, or a patch with another record."""
    number, note, version = batch["id"], batch["note"], batch["version"]
    whole = {
        "wide": (batch["wide"] == number[:, None]).all(1),
        "check": batch["check"] == checksum(number),
        "g": batch["g"] == number % GROUPS,
        "reward": batch["next", "reward"].view(-1) == number.to(torch.float64) / 2,
        "touch": (batch["touch"] == batch["touch"][:, :1]).all(1),
        "note": (note == note[:, :1]).all(1) & (note[:, 0] >> SHIFT == number),
        "minus": batch["minus"] == -note[:, 0].to(torch.float64),
        "answer": (batch["answer"] == answer_of(number, version)["answer"]).all(1),
    }
    if "text" in batch.keys() and len(number):
        texts = list(batch["text"])
        whole["text"] = torch.tensor([text == f"record {i}" for text, i in zip(texts, number.tolist(), strict=True)])
    for field, rows in whole.items():
        if not bool(rows.all()):
            torn = batch[~rows]
            raise AssertionError(
                f"rows are torn at {field!r}: ids {torn['id'].tolist()}, notes {torn['note'][:, 0].tolist()}, "
                f"versions {torn['version'].tolist()}"
            )


class Patch(NamedTuple):
    began: int
    ended: float  # in the ledger from then on


class Ledger:
    """What all threads did and saw, and what follows from it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ids, self._ticks = itertools.count(1), itertools.count(1)
        self._tokens = itertools.count(1)
        self.ids: dict[tuple[int, int], int] = {}  # (slot, generation) -> the record it names
        self.handles: dict[int, tuple[int, int]] = {}
        self.notes: dict[int, list[Patch]] = defaultdict(list)  # of a record: the notes reported as written
        self.by_token: dict[int, Patch] = {}
        self.versions: dict[int, list[tuple[float, int]]] = defaultdict(list)  # ... when reported, and the version
        self.tried: dict[int, list[int]] = defaultdict(list)  # ... versions that any call ever brought
        self.gone: dict[int, int] = {}  # of a record: the first tick at which a call had reported it as gone
        self.count: Counter[str] = Counter()

    # itertools.count steps in one piece under the interpreter's lock

    def tick(self) -> int:
        return next(self._ticks)

    def fresh(self, num: int) -> list[int]:
        return [next(self._ids) for _ in range(num)]

    def tokens(self, num: int) -> list[int]:
        return [next(self._tokens) for _ in range(num)]

    def add(self, what: str, num: int = 1) -> None:
        with self.lock:
            self.count[what] += num

    def name(self, slots: Tensor, generations: Tensor, ids: list[int]) -> None:
        """A handle names one record for ever, and a record, written once, has one handle."""
        with self.lock:
            for slot, generation, number in zip(slots.tolist(), generations.tolist(), ids, strict=True):
                handle = (slot, generation)
                assert generation >= 0, f"record {number} was given the generation {generation}"
                before = self.ids.setdefault(handle, number)
                assert before == number, f"handle {handle} named record {before}, now {number}"
                place = self.handles.setdefault(number, handle)
                assert place == handle, f"record {number} had the handle {place}, now {handle}"

    def saw(self, batch: TensorDict, began: int) -> list[int]:
        """What a read that began at a tick may have found. Returns the ids."""
        check_whole(batch)
        ids, versions = batch["id"].tolist(), batch["version"].tolist()
        tokens = (batch["note"][:, 0] & ((1 << SHIFT) - 1)).tolist()
        with self.lock:
            for number, token, version in zip(ids, tokens, versions, strict=True):
                assert self.gone.get(number, math.inf) > began, f"record {number} was reported as gone, and is read"
                newest = max((patch.began for patch in self.notes[number] if patch.ended < began), default=0)
                ended = self.by_token[token].ended if token in self.by_token else (math.inf if token else 0)
                assert ended >= newest, f"record {number} lost a note that was reported as written"
                reported = max((v for tick, v in self.versions[number] if tick < began), default=0)
                assert version >= reported, f"record {number} went back from version {reported} to {version}"
                assert not version or version in self.tried[number], f"record {number} has a version nobody gave it"
        return ids

    def try_versions(self, ids: list[int], versions: list[int]) -> None:
        """Before the call: what it brings."""
        with self.lock:
            for number, version in zip(ids, versions, strict=True):
                self.tried[number].append(version)

    def updated(
        self, ids: list[int], result: Any, began: int, tokens: list[int] | None, versions: list[int] | None
    ) -> None:
        """What an `update_if_present` that began at a tick and has ended reported of each record."""
        ended = self.tick()
        fates = {
            "patched": result.updated,
            "stale": result.stale,
            "superseded": result.superseded,
            "rejected": result.version_rejected,
        }
        fates = {fate: mask.tolist() for fate, mask in fates.items() if mask is not None}
        last = {number: row for row, number in enumerate(ids)}
        done: set[int] = set()
        with self.lock:
            for row, number in enumerate(ids):
                (fate,) = [fate for fate, mask in fates.items() if mask[row]]
                self.count[fate] += 1
                if fate == "stale":
                    self.gone[number] = min(self.gone.get(number, ended), ended)
                elif fate == "superseded":
                    assert versions is None and last[number] != row, f"nothing superseded the note on record {number}"
                elif fate == "rejected":
                    others = sorted(self.tried[number])
                    others.remove(versions[row])
                    assert others and others[-1] >= versions[row], f"version {versions[row]} was rejected for no reason"
                else:
                    assert self.gone.get(number, math.inf) > began, f"record {number} was gone, and was patched"
                    assert number not in done, f"two rows of one call were both written to record {number}"
                    done.add(number)
                    self._note_done(number, row, Patch(began, ended), tokens, versions)
                    assert versions or last[number] == row, f"of several notes on record {number} not the last stayed"

    def _note_done(
        self, number: int, row: int, patch: Patch, tokens: list[int] | None, versions: list[int] | None
    ) -> None:
        if tokens is not None:
            self.notes[number].append(patch)
            self.by_token[tokens[row]] = patch
        if versions is not None:
            self.count["versioned"] += 1
            before = max((version for tick, version in self.versions[number] if tick < patch.began), default=0)
            assert versions[row] >= before, f"record {number} took version {versions[row]} after {before}"
            self.versions[number].append((patch.ended, versions[row]))
