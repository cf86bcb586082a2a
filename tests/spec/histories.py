"""Random histories of a buffer, beside a model that says what must be in it.

`History.step` makes one call on the buffer and does the same to the model: a list of what each slot holds, and a book
of every handle ever given out with the record it named. The laws are then statements about the two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from tests.spec.builders import TENSOR_STORAGES, buffer_of, numbered
from torchrb import RandomSampler, RoundRobinWriter, TensorDictReplayBuffer

WHOLE = ("add", "extend", "extend_list", "write_at", "set_item", "set_one", "write_all", "storage_set", "other_buffer")
PARTS = ("set_", "set_at_", "update_", "update_if_present")
OTHER = ("empty", "empty_keep_count", "back_and_forth")


@dataclass
class Record:
    """What one slot holds: the number in its fields, a note that partial writes change, and when it was written."""

    number: int
    note: float
    written: int


@dataclass
class History:
    """A buffer of `numbered` records, whose field ``half`` is the note, and the model of it."""

    kind: str
    capacity: int
    seed: int
    steps: tuple[str, ...] = WHOLE + PARTS + OTHER
    slots: list[Record | None] = field(default_factory=list)
    handles: dict[tuple[int, int], Record] = field(default_factory=dict)  # every handle, also of records long gone
    length: int = 0
    cursor: int = 0
    writes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.rb = buffer_of(self.kind, self.capacity, sampler=RandomSampler())
        self.other = TensorDictReplayBuffer(
            storage=self.rb.storage, writer=RoundRobinWriter(), generator=torch.Generator()
        )
        self.slots = [None] * self.capacity
        self.next_number, self.clock = 0, 0
        self.lost: set[tuple[int, int]] = set()  # handles of rows overwritten by their own batch
        if self.kind not in TENSOR_STORAGES:
            self.steps = tuple(step for step in self.steps if step != "update_if_present")
        if self.kind == "list":
            self.steps = tuple(step for step in self.steps if step not in PARTS)

    # --- the model

    @property
    def live(self) -> list[int]:
        """Slots that hold a record, ascending: the first ``length`` ones."""
        return list(range(self.length))

    def fresh(self, num: int) -> list[int]:
        """Numbers never used before."""
        first, self.next_number = self.next_number, self.next_number + num
        return [number % 2**20 for number in range(first, first + num)]

    def keep(self, slots: list[int], numbers: list[int]) -> None:
        for slot, number in zip(slots, numbers, strict=True):
            self.clock += 1
            self.slots[slot] = Record(number, note_of(number), self.clock)
            self.length = max(self.length, slot + 1)
        told = self.rb.writer.generations_of(torch.tensor(slots, dtype=torch.int64)).tolist()
        for slot, generation in zip(slots, told, strict=True):
            self.name(slot, generation)

    def name(self, slot: int, generation: int) -> None:
        """Write a handle down; a handle that was given out before may only name the record it named then."""
        record = self.slots[slot]
        assert record is not None
        assert (slot, generation) not in self.lost, f"{(slot, generation)} named a lost row, now {record}"
        before = self.handles.setdefault((slot, generation), record)
        assert before is record, f"{(slot, generation)} named {before}, now it names {record}"

    # --- steps

    def step(self, name: str | None = None) -> str:
        name = name or self.rng.choice(self.steps)
        if self.length == 0 and name not in ("add", "extend", "extend_list", "other_buffer", *OTHER):
            name = "extend"
        getattr(self, name.rstrip("_") if name != "set_" else "set_field")()
        return name

    def run(self, num: int) -> History:
        for _ in range(num):
            self.step()
        return self

    def _appended(self, numbers: list[int], index: torch.Tensor, generation: list[int] | None = None) -> None:
        slots = [(self.cursor + i) % self.capacity for i in range(len(numbers))]
        assert index.tolist() == slots
        last = {slot: i for i, slot in enumerate(slots)}
        if generation is not None:
            for i, slot in enumerate(slots):
                if last[slot] != i:
                    handle = (slot, generation[i])
                    assert handle not in self.handles and handle not in self.lost, f"{handle} is handed out twice"
                    self.lost.add(handle)
        kept = sorted(last.values())
        self.keep([slots[i] for i in kept], [numbers[i] for i in kept])
        self.cursor = (self.cursor + len(numbers)) % self.capacity
        self.writes += len(numbers)

    def add(self) -> None:
        numbers = self.fresh(1)
        self._appended(numbers, torch.tensor([int(self.rb.add(numbered(numbers)[0]))]))

    def extend(self) -> None:
        numbers = self.fresh(self.rng.choice([1, 2, 3, self.capacity, self.capacity + 3, 2 * self.capacity + 1]))
        index, generation = self.rb.extend(numbered(numbers), return_generations=True)
        self._appended(numbers, index, generation.tolist())

    def extend_list(self) -> None:
        numbers = self.fresh(self.rng.randint(1, self.capacity))
        self._appended(numbers, self.rb.extend(list(numbered(numbers).unbind(0))))

    def other_buffer(self) -> None:
        numbers = self.fresh(self.rng.randint(1, 3))
        self._appended(numbers, self.other.extend(numbered(numbers)))

    def _some(self) -> list[int]:
        return self.rng.sample(self.live, self.rng.randint(1, len(self.live)))

    def write_at(self) -> None:
        slots = self._some()
        numbers = self.fresh(len(slots))
        self.rb.writer.write_at(torch.tensor(slots), numbered(numbers))
        self.keep(slots, numbers)

    def set_item(self) -> None:
        slots = self._some()
        numbers = self.fresh(len(slots))
        self.rb[torch.tensor(slots)] = numbered(numbers)
        self.keep(slots, numbers)

    def set_one(self) -> None:
        slot, numbers = self.rng.choice(self.live), self.fresh(1)
        self.rb[slot] = numbered(numbers)[0]
        self.keep([slot], numbers)

    def write_all(self) -> None:
        numbers = self.fresh(self.rng.randint(1, self.length))
        self.rb.write_all(numbered(numbers))
        self.keep(list(range(len(numbers))), numbers)

    def storage_set(self) -> None:
        numbers = self.fresh(self.length)
        self.rb.storage[:] = numbered(numbers)
        self.keep(self.live, numbers)

    def _notes(self, num: int) -> tuple[list[float], torch.Tensor]:
        notes = [float(self.rng.randrange(128)) for _ in range(num)]
        return notes, torch.tensor(notes, dtype=torch.bfloat16)[:, None]

    def _renote(self, slots: list[int], notes: list[float]) -> None:
        for slot, note in zip(slots, notes, strict=True):
            self.slots[slot].note = note

    def set_field(self) -> None:
        notes, value = self._notes(self.length)
        self.rb.set_("half", value)
        self._renote(self.live, notes)

    def set_at(self) -> None:
        slots = self._some()
        notes, value = self._notes(len(slots))
        self.rb.set_at_("half", value, torch.tensor(slots))
        self._renote(slots, notes)

    def update(self) -> None:
        notes, value = self._notes(self.length)
        self.rb.update_({"half": value})
        self._renote(self.live, notes)

    def update_if_present(self) -> None:
        """Patch by handles of all ages: exactly those of records still there may be taken."""
        handles = self.rng.sample(sorted(self.handles), min(len(self.handles), 6)) + sorted(self.lost)[:2]
        notes, value = self._notes(len(handles))
        index, generation = torch.tensor(handles).unbind(1)
        result = self.rb.update_if_present(index=index, generation=generation, patch={"half": value})
        there = [handle in self.handles and self.slots[handle[0]] is self.handles[handle] for handle in handles]
        assert result.updated.tolist() == there and result.stale.tolist() == [not one for one in there]
        self._renote([h[0] for h, one in zip(handles, there, strict=True) if one],
                     [note for note, one in zip(notes, there, strict=True) if one])  # fmt: skip

    def empty(self, keep_count: bool = False) -> None:
        self.rb.empty(empty_write_count=not keep_count)
        self.slots = [None] * self.capacity
        self.length, self.cursor = 0, 0
        self.writes = self.writes if keep_count else 0

    def empty_keep_count(self) -> None:
        self.empty(keep_count=True)

    def back_and_forth(self) -> None:
        """What was read goes back as it is: new records of the same content."""
        if self.length:
            numbers = [self.slots[slot].number for slot in self.live]
            self.rb[:] = self.rb[:]
            notes = [self.slots[slot].note for slot in self.live]
            self.keep(self.live, numbers)
            self._renote(self.live, notes)

    # --- the statement that the buffer is what the model says

    def check(self) -> None:
        rb = self.rb
        assert (len(rb), rb.storage.cursor, rb.write_count) == (self.length, self.cursor, self.writes)
        if self.length:
            batch = rb[:]
            records = [self.slots[slot] for slot in self.live]
            assert batch["n"].tolist() == [record.number for record in records]
            assert batch["half"].view(-1).tolist() == [record.note for record in records]


def note_of(number: int) -> float:
    """The note of a record that was not patched: what `numbered` puts into ``half``."""
    return float(torch.tensor(number % 128).to(torch.bfloat16))
