"""A group index as a GPU keeps it: brought up to date by emulated kernels, and taken apart to look at every link."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.cases import Index, Records
from torchrb.ops import reference_draws, rng
from torchrb.ops.schemas import group_links_size

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
_HEAD, _FAN = 16, 32


class GpuIndex(Index):
    """Like `Index`, by the kernels of the emulated module. ``block_entries``: up to how many entries of the journal one
    block handles alone; beyond, they are spread over blocks of ``threads``.
    """

    def __init__(self, records: Records, key: int, kernels: Any, block_entries: int = 4096, threads: int = 256) -> None:
        super().__init__(records, key)
        self.kernels, self.block_entries, self.threads = kernels, block_entries, threads
        self.most_blocks = 4  # of a draw
        self.links = torch.zeros(group_links_size(records.capacity, "cuda"), dtype=torch.int32)

    def _call(self, name: str) -> Any:
        return {"group_index_update_": self._update, "sample_groups": self._sample}[name]

    def _update(self, keys, links, state, control, journal, tables, leaf, template, rebuild) -> None:
        table, offset, nbytes = leaf
        cells = tables[table][:, offset:]
        self.kernels.update(
            keys, keys.shape[1], links, keys.shape[0], state, control, journal, journal.shape[0],
            tables[0], tables[0].stride(0), cells, cells.stride(0), nbytes, DTYPES.index(template.dtype), rebuild,
            self.block_entries, self.threads,
        )  # fmt: skip

    def _sample(self, seed, keys, links, tables, leaf, template, groups, per_group, strategy):
        capacity = keys.shape[0]
        table, offset, nbytes = leaf or (0, 0, 0)
        cells = tables[table][:, offset:]
        elements = nbytes // template.dtype.itemsize if leaf else 1
        slots, drawn, flags = torch.full((groups * per_group,), -7), torch.full((groups, 3), -7), torch.tensor([-7])
        numbers = torch.full((4 * groups + 2,), -7, dtype=torch.int32)
        rows = torch.full((24 * capacity,), 7, dtype=torch.uint8)
        sums = torch.full((2 * capacity,), 7.0, dtype=torch.float64)
        self.kernels.sample(
            seed, keys, keys.shape[1], links, capacity, tables[0], tables[0].stride(0), cells, cells.stride(0),
            DTYPES.index(template.dtype) if leaf else 0, elements, groups, per_group, strategy,
            slots, drawn, flags, numbers, rows, sums, self.most_blocks,
        )  # fmt: skip
        return slots, drawn, flags

    def members(self) -> list[list[int]]:
        """The slots of each group, ascending, groups by rank; on the way every link, size and count is checked."""
        capacity = self.records.capacity
        num = 32
        while 2 * num < capacity:
            num *= 2
        rest = self.links[_HEAD:].tolist()
        rows = [rest[4 * i : 4 * i + 4] for i in range(capacity + 1)]
        rest = rest[4 * (capacity + 1) :]
        assert rest[: capacity + 1] == [0] * (capacity + 1), "no row is on its way between updates"
        rest = rest[2 * (capacity + 1) :]
        firsts, owners, counts = rest[0 : 2 * num : 2], rest[1 : 2 * num : 2], rest[2 * num :]
        assert owners == [0] * num, "nobody owns a bucket between updates"

        seen = set()

        def list_of(head: int, size_of_member: int) -> list[int]:
            found, before, row = [], head, rows[head][0]
            while row:
                row -= 1
                assert row not in seen and rows[row][1] == before + 2 and rows[row][2] == size_of_member
                seen.add(row)
                found.append(row)
                before, row = row, rows[row][0]
            return found

        groups, in_bucket = [], []
        for bucket in range(num):
            chain, of_bucket = firsts[bucket], 0
            while chain:
                head = chain - 1
                assert head not in seen and rows[head][1] == 1
                seen.add(head)
                members = [head, *list_of(head, -1)]
                assert rows[head][2] == len(members)
                assert {self._place(row) * num >> 64 for row in members} == {bucket}
                groups.append(members)
                chain, of_bucket = rows[head][3], of_bucket + 1
            in_bucket.append(of_bucket)
        while True:
            assert counts[: len(in_bucket)] == in_bucket
            counts = counts[len(in_bucket) :]
            if len(in_bucket) <= _FAN:
                break
            in_bucket = [sum(in_bucket[i : i + _FAN]) for i in range(0, len(in_bucket), _FAN)]
        assert counts == []
        outcasts = list_of(capacity, -2)
        assert rows[capacity][2] == len(outcasts)
        assert all(rows[row][1] == 0 for row in range(capacity) if row not in seen)

        state = self.state.tolist()
        sizes = [len(members) for members in groups]
        assert state[1:3] == [len(groups), sizes.count(1)]
        assert state[3] in outcasts or (state[3] == -1 and not outcasts)
        return [sorted(members) for members in groups]

    def _place(self, row: int) -> int:
        """Where a row's key stands among all, as 64 bits."""
        mixed = torch.zeros((), dtype=torch.int64)
        for word in self.keys[row]:
            mixed = rng.mix64(mixed ^ word)
        return int(mixed) + 2**63


def members_by_twin(index: Index) -> list[list[int]]:
    """The groups of a twin's index, in order."""
    inside = torch.nonzero(index.links[: index.records.capacity] == 1).view(-1)
    slots, offsets = reference_draws._grouped(index.keys[inside], inside)
    return [sorted(slots[a:b].tolist()) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
