"""torchrl's own transforms give the same stored records and the same batches here as in torchrl."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.parity.peer import WHY, both, outcome

peers = pytest.importorskip("torchrl.envs.transforms", reason=WHY)

F64, F32 = torch.float64, torch.float32


def rows(*numbers: int) -> TensorDict:
    n = torch.tensor(numbers, dtype=torch.int64)
    fields = {"n": n, "x": n.to(F64), "wide": n[:, None].to(F64) + torch.arange(3), "in": {"b": n[:, None].to(F64)}}
    return TensorDict(fields, [len(numbers)])


def make(lib: Any, transform: Any = None, storage: str = "LazyTensorStorage", **kwargs: Any) -> Any:
    writer = lib.TensorDictRoundRobinWriter(track_generations=True)
    storage = getattr(lib, storage)(6)
    return lib.TensorDictReplayBuffer(storage=storage, writer=writer, transform=transform, batch_size=64, **kwargs)


def plain(records: Any) -> dict[str, Any]:
    """Fields with their dtypes, without the slots: those come with a draw of each library's own."""
    keys = records.keys(include_nested=True, leaves_only=True)
    return {
        str(key): (str(records[key].dtype), records[key].tolist())
        for key in sorted(keys, key=str)
        if key not in ("index", "index_generation")
    }


def in_order(batch: TensorDict) -> TensorDict:
    """One row of each record that was drawn."""
    first = {int(slot): row for row, slot in reversed(list(enumerate(batch["index"].tolist())))}
    return batch[torch.tensor([first[slot] for slot in sorted(first)])]


TRANSFORMS = {
    "cast": lambda: peers.DoubleToFloat(in_keys=["x", "wide"]),
    "cast both ways": lambda: peers.DTypeCastTransform(F64, F32, in_keys=["x"], in_keys_inv=["x"]),
    "scale both ways": lambda: peers.ObservationNorm(3.0, 2.0, in_keys=["x"], in_keys_inv=["x"], standard_normal=True),
    "rename": lambda: peers.RenameTransform(in_keys=["x", ("in", "b")], out_keys=["y", "c"]),
    "rename both ways": lambda: peers.RenameTransform(
        in_keys=["x"], out_keys=["y"], in_keys_inv=["x"], out_keys_inv=["y"]
    ),
    "unsqueeze": lambda: peers.UnsqueezeTransform(-1, in_keys=["x"]),
    "select": lambda: peers.SelectTransform("x"),
    "exclude": lambda: peers.ExcludeTransform("wide", ("in", "b")),
    "concatenate": lambda: peers.CatTensors(in_keys=["wide", ("in", "b")], out_key="both", dim=-1),
    "clip": lambda: peers.ClipTransform(in_keys=["x"], low=1.0, high=3.0),
    "composed": lambda: peers.Compose(
        peers.DoubleToFloat(in_keys=["x"]), peers.RenameTransform(in_keys=["x"], out_keys=["y"])
    ),
}
WRITES = {
    "extend": lambda rb: rb.extend(rows(0, 1, 2, 3)),
    "add": lambda rb: [rb.add(row) for row in rows(4, 5).unbind(0)],
}


EITHER_WAY = [
    (name, invert)
    for name in TRANSFORMS
    for invert in (False, True)
    if (name, invert) != ("rename both ways", False)  # which takes records with a field "y"
]


@pytest.mark.parametrize(("name", "invert"), EITHER_WAY)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_stored_and_what_is_read(write, name, invert):
    def history(lib):
        rb = make(lib)
        rb.append_transform(TRANSFORMS[name](), invert=invert)
        WRITES[write](rb)
        return plain(rb.storage[:]), plain(rb[:]), plain(in_order(rb.sample()))

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyStackStorage"])
def test_a_transform_of_the_constructor(storage):
    def history(lib):
        rb = make(lib, TRANSFORMS["cast both ways"](), storage)
        rb.extend(rows(0, 1, 2))
        return plain(rb.storage[:]), plain(rb[:]), plain(rb[1])

    theirs, ours = both(history)
    assert ours == theirs


def add(number: float):
    def step(batch):
        return batch.set("x", batch["x"] * 2 + number)

    return step


@pytest.mark.parametrize("seed", range(6))
def test_callables_appended_and_inserted_in_either_direction(seed):
    def history(lib):
        rng = torch.Generator().manual_seed(seed)

        def chance(below):
            return int(torch.randint(below, (), generator=rng))

        rb = make(lib, add(1.0) if chance(2) else None)
        for number in range(5):
            invert, at = bool(chance(2)), chance(len(rb.transform) + 1)
            if chance(2):
                rb.append_transform(peers.Compose(add(number)), invert=invert)
            else:
                rb.insert_transform(at, peers.Compose(add(number)), invert=invert)
        rb.extend(rows(0, 1, 2))
        rb[1] = rows(7)[0]
        rb.write_all(rows(4))
        return len(rb.transform), plain(rb.storage[:]), plain(rb[:]), plain(in_order(rb.sample()))

    theirs, ours = both(history)
    assert ours == theirs


def test_fields_written_on_their_own_are_not_transformed():
    def history(lib):
        rb = make(lib)
        rb.append_transform(peers.Compose(add(1.0)), invert=True)
        rb.extend(rows(0, 1, 2))
        rb.set_("x", torch.zeros(3, dtype=F64))
        rb.set_at_("x", torch.ones(1, dtype=F64), torch.tensor([1]))
        rb.update_if_present(
            index=torch.tensor([2]), generation=torch.tensor([0]), patch={"x": torch.full((1,), 5.0, dtype=F64)}
        )
        rb.writer.write_at(torch.tensor([0]), rows(9))
        return plain(rb.storage[:])

    theirs, ours = both(history)
    assert ours == theirs


def test_the_errors_of_the_constructor_and_of_a_place_past_the_end():
    def history(lib):
        return [
            outcome(lambda: make(lib, add(1.0), transform_factory=lambda: add(1.0))),
            outcome(lambda: make(lib).insert_transform(3, peers.Compose(add(1.0)))),
            outcome(lambda: make(lib, transform_factory=3).transform),
        ]

    theirs, ours = both(history)
    assert ours == theirs == [TypeError, ValueError, TypeError]


def test_a_factory_is_left_alone_until_the_transform_is_needed():
    def history(lib):
        made = []
        rb = make(lib, transform_factory=lambda: made.append(1) or add(1.0))
        before = len(made)
        rb.extend(rows(0, 1))
        return before, plain(rb[:]), len(rb.transform), len(made)

    theirs, ours = both(history)
    assert ours == theirs and ours[0] == 0 and ours[-1] == 1
