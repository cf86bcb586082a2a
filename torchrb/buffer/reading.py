"""The buffer's reads: sampler -> slots -> storage -> one op -> transforms -> batch.

Slots are chosen and read while the storage's lock is held; transforms run without it, as they may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb import transforms
from torchrb.buffer.making import as_it_is, checked_batch_size
from torchrb.buffer.querying import Querying
from torchrb.consumption import Claim, Exhausted
from torchrb.prefetch import Draw, Scene, modes_of
from torchrb.sample_unit import SampleUnit, expanded
from torchrb.samplers import Sampler
from torchrb.storages import ListStorage, Storage


class Reading(Querying):
    """Records come out as a draw chooses them, or by their slots."""

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch with the sampler, and transform it.

        ``batch_size``: records to draw; default: that of the constructor. ``return_info``: also return a dict with
        ``"index"`` (slots), ``"index_generation"`` when the writer tracks generations, and what the sampler tells,
        as a `PrioritizedSampler` does ``"priority_weight"``. RuntimeError when the storage is empty, when no record is
        left with ``consume_after_n_samples``, or when no batch size is known.
        """
        num = self._batch_size if batch_size is None else checked_batch_size(batch_size, "sample")
        if num is None:
            raise RuntimeError("sample: batch_size is not known. Give it to the constructor or to sample().")
        early, consumption = self._early, self._consumption
        claim = None if consumption is None else Claim(consumption)
        try:
            if early is None or claim is not None:
                storage, collate = self._read_from
                if claim is not None:
                    storage = claim.consumption.storage
                sampler = self._sampler
                with storage.lock:
                    draw = self._draw(storage, sampler, num, self.generator, claim)
                sampler.notice(draw.drawn)
                data = self._answer(collate, draw)
                if early is not None:
                    data = early.finished(data)
            else:
                data, draw = early.batch(self, num)
            if not return_info:
                return data
            told = draw.sampler.explain(draw.drawn) if self._sample_unit is None else {}
            return data, {key: _own(value) for key, value in draw.info.items()} | told | (draw.marks or {})
        except BaseException:  # a transform's, perhaps: nobody has seen these records
            if claim is not None:
                claim.consumption.give_back(claim)
            raise

    def _draw(
        self,
        storage: Storage,
        sampler: Sampler,
        num: int,
        generator: torch.Generator | None,
        claim: Claim | None = None,
    ) -> Draw:
        """Choose records and read them. The caller holds the storage's lock."""
        if claim is None:
            slots, drawn = sampler.sample(storage, num, generator)
        else:
            slots, drawn = claim.consumption.draw(sampler, num, generator, claim)
        if self._sample_unit is not None:
            return self._draw_around(self._sample_unit, slots, storage, sampler, drawn)
        data, generations = storage.read(slots)
        info: dict[str, Any] = {"index": slots if storage.ndim == 1 else storage.coordinates(slots)}
        if self._writer.tracks_generations:
            info["index_generation"] = generations
        if sampler.keeps_priorities:
            info |= drawn
        return Draw(data, info, sampler, drawn, {} if sampler.marks_records else None)

    def _draw_around(self, unit: SampleUnit, anchors: Tensor, storage: Storage, sampler: Sampler, drawn: Any) -> Draw:
        """Read what a sample unit makes of the records that were chosen."""
        slots, marks = expanded(unit, anchors, drawn if sampler.keeps_priorities else sampler.explain(drawn), storage)
        data, generations = storage.read(slots.reshape(-1), slots.shape)
        info: dict[str, Any] = {"index": storage.coordinates(slots)}
        if self._writer.tracks_generations:
            info |= {"index_generation": generations.view(slots.shape)}
        return Draw(data, info, sampler, drawn, marks)

    def _scene(self, num: int) -> Scene:
        """What a draw depends on that its caller cannot hand in later."""
        (storage, collate), steps = self._read_from, self._transform.steps()
        modes = modes_of(bool(steps) or collate is not as_it_is)
        return Scene(storage, collate, self._sampler, steps, num, self._writer.tracks_generations, modes)

    def _answer(self, collate: Callable[[Any], Any], draw: Draw) -> Any:
        """A draw as it is returned."""
        data = collate(draw.data)
        if draw.marks is not None:
            if self._sample_unit is None:
                draw.marks.update(draw.sampler.marks(draw.drawn, data))
            self._mark(data, draw.marks)
        return self._transformed(data, draw.info)

    def _mark(self, data: Any, marks: Mapping[Any, Any]) -> None:
        """Add what is told of each record to merged records, before transforms see them."""

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
            slots = storage.locate(index, "ReplayBuffer[...]", self.dim_extend)
            data, _ = storage.read(slots.flat, slots.shape)
        if slots.shape or not isinstance(storage, ListStorage):  # a single object is no list to be merged
            data = collate(data)
        return self._transformed(data, {"index": storage.coordinates(slots.flat.view(slots.shape).clone())})

    def read_all_in_order(self, end: int | None = None) -> Any:
        """The first ``end`` records (default: all) in slot order."""
        if end is not None and not hasattr(end, "__index__"):
            raise TypeError(f"read_all_in_order: end must be an int or None, got {end!r}.")
        return self[:end]

    def _transformed(self, data: Any, info: Mapping[str, Any]) -> Any:
        """Merged records, as they are returned. Their handles come last: no transform can change what they name."""
        if not self._transform.steps():
            return self._finished(data, info)
        data = transforms.for_reader(self._transform, data)
        try:
            return self._finished(data, info)
        except RuntimeError as error:
            slots = info["index"][0] if isinstance(info["index"], tuple) else info["index"]
            raise RuntimeError(
                f"{type(self).__name__}: the slots of {[*slots.shape]} records do not go with the batch of "
                f"{[*data.batch_size]} that a transform returned. Keep the rows, and choose among them after sampling."
            ) from error

    def _finished(self, data: Any, info: Mapping[str, Any]) -> Any:
        """Transformed records, as they are returned. ``info``: their slots (a tuple, when there are several dimensions)
        and generations.
        """
        return data


def _own(value: Tensor | tuple[Tensor, ...]) -> Any:
    return tuple(part.clone() for part in value) if isinstance(value, tuple) else value.clone()
