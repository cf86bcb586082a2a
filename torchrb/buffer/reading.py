"""The buffer's reads: sampler -> slots -> storage -> one op -> transforms -> batch.

Slots are chosen and read while the storage's lock is held; transforms run without it, as they may be slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchrb import transforms
from torchrb.buffer.parts import checked_batch_size
from torchrb.buffer.querying import Querying
from torchrb.consumption import Claim, Exhausted
from torchrb.storages import ListStorage


class Reading(Querying):
    """Records come out as a draw chooses them, or by their slots."""

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch with the sampler, and transform it.

        ``batch_size``: records to draw; default: that of the constructor. ``return_info``: also return a dict with
        ``"index"`` (slots), ``"index_generation"`` when the writer tracks generations, and what the sampler tells.
        RuntimeError when the storage is empty, when no record is left with ``consume_after_n_samples``, or when no
        batch size is known.
        """
        num = self._batch_size if batch_size is None else checked_batch_size(batch_size, "sample")
        if num is None:
            raise RuntimeError("sample: batch_size is not known. Give it to the constructor or to sample().")
        if self._consumption is None:
            return self._batch(num, return_info, None)
        claim = Claim()
        try:
            return self._batch(num, return_info, claim)
        except BaseException:  # a transform's, perhaps: nobody has seen these records
            self._consumption.give_back(claim)
            raise

    def _batch(self, num: int, return_info: bool, claim: Claim | None) -> Any:
        """A sample of a known size. ``claim``: where to note the records that are counted, if they are."""
        storage, collate = self._read_from
        with storage.lock:
            if claim is None or self._consumption is None:
                slots, drawn = self._sampler.sample(storage, num, self.generator)
            else:
                slots, drawn = self._consumption.draw(self._sampler, num, self.generator, claim)
            anchors, marks = slots, None
            if self._sample_unit is None:
                data, generations = storage.read(slots)
            else:
                slots, marks = self._sample_unit.expand(anchors, self._sampler.explain(drawn), storage)
                found = storage.locate(slots, f"{type(self._sample_unit).__name__}.expand")
                data, generations = storage.read(found.flat, found.shape)
                generations = generations.view(found.shape)
        self._sampler.notice(drawn)
        info = {"index": slots}
        if self._writer.tracks_generations:
            info["index_generation"] = generations
        data = collate(data)
        if self._sampler.marks_records and slots is anchors:
            marks = self._sampler.marks(drawn, data) | (marks or {})
        if marks:
            self._mark(data, marks)
        data = self._transformed(data, info)
        if not return_info:
            return data
        told = self._sampler.explain(drawn) if self._sample_unit is None else {}
        return data, {key: value.clone() for key, value in info.items()} | told | (marks or {})

    def __iter__(self) -> Iterator[Any]:
        if self._batch_size is None:
            raise RuntimeError("Iterating over a replay buffer needs a batch size. Give batch_size to the constructor.")
        while True:
            try:
                batch = self.sample()
            except Exhausted:
                return
            yield batch

    def next(self) -> Any:
        """The next batch, as iterating gives it."""
        return next(iter(self))

    def __getitem__(self, index: Any) -> Any:
        storage, collate = self._read_from
        with storage.lock:
            slots = storage.locate(index, "ReplayBuffer[...]")
            data, _ = storage.read(slots.flat, slots.shape)
        if slots.shape or not isinstance(storage, ListStorage):  # a single object is no list to be merged
            data = collate(data)
        return self._transformed(data, {"index": slots.flat.view(slots.shape).clone()})

    def read_all_in_order(self, end: int | None = None) -> Any:
        """The first ``end`` records (default: all) in slot order."""
        if end is not None and not hasattr(end, "__index__"):
            raise TypeError(f"read_all_in_order: end must be an int or None, got {end!r}.")
        return self[:end]

    def _transformed(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        """Merged records, as they are returned. Their handles come last: no transform can change what they name."""
        if not self._transform.steps():
            return self._finished(data, info)
        data = transforms.for_reader(self._transform, data)
        try:
            return self._finished(data, info)
        except RuntimeError as error:
            raise RuntimeError(
                f"{type(self).__name__}: the slots of {[*info['index'].shape]} records do not go with the batch of "
                f"{[*data.batch_size]} that a transform returned. Keep the rows, and choose among them after sampling."
            ) from error

    def _mark(self, data: Any, marks: Mapping[Any, Any]) -> None:
        """Add what the sampler, or the sample unit, says of each record, before transforms see the records."""

    def _finished(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        """Transformed records, as they are returned. ``info``: their slots and generations."""
        return data
