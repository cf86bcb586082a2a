"""The buffer's reads: sampler -> slots -> storage -> one op -> transforms -> batch.

Slots are chosen and read while the storage's lock is held; transforms run without it, as they may be slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb import transforms
from torchrb.buffer.making import checked_batch_size
from torchrb.buffer.parts import Parts
from torchrb.consumption import Claim, Exhausted
from torchrb.prefetch import Draw, Scene, modes_of
from torchrb.samplers import Sampler
from torchrb.storages import ListStorage, Storage


class Reading(Parts):
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
                    data, info, drawn = self._draw(storage, sampler, num, self.generator, claim)
                sampler.notice(drawn)
                data = self._transformed(collate(data), info)
                if early is not None:
                    data = early.finished(data)
            else:
                data, (_, info, drawn), sampler = early.batch(self, num)
            if not return_info:
                return data
            return data, {key: value.clone() for key, value in info.items()} | sampler.explain(drawn)
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
        data, generations = storage.read(slots)
        info = {"index": slots}
        if self._writer.tracks_generations:
            info["index_generation"] = generations
        if sampler.keeps_priorities:
            info |= drawn
        return Draw(data, info, drawn)

    def _scene(self, num: int) -> Scene:
        """What a draw depends on that its caller cannot hand in later."""
        steps = self._transform.steps()
        return Scene(*self._read_from, self._sampler, steps, num, self._writer.tracks_generations, modes_of(steps))

    def _answer(self, scene: Scene, draw: Draw) -> Any:
        """A draw as it is returned."""
        return self._transformed(scene.collate(draw.data), draw.info)

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

    def _finished(self, data: Any, info: Mapping[str, Tensor]) -> Any:
        """Transformed records, as they are returned. ``info``: their slots and generations."""
        return data
