"""The ops: what each takes, gives and changes, and the shape-only fake that lets ``torch.compile`` see it.

An op is declared here once. Its plain-torch twin (``reference.py``) serves every device; the compiled library adds
kernels per device, and the dispatcher prefers them. Public functions validate, ops trust: an op skips a row whose slot
is out of range instead of touching memory, and checks nothing else about values.

**Tables and layout.** A storage hands its rows to an op as ``tables``, a list of ``uint8`` tensors
``[capacity, bytes]``, and a ``layout``, three integers a leaf: the table it lives in, its byte offset in a row of that
table, its bytes a row.
The first 16 bytes of a row of ``tables[0]`` are its header: the slot word and the write stamp, both int64.
A packed storage has one table, a storage of columns one for the headers and one a leaf.

**Slot word.** ``count << 2 | live << 1 | busy``: see the ``SLOT_*`` numbers. ``count`` goes up with every whole-record
write and every clearing, so that ``count - 1``, the generation, never names two records. A storage that takes up a
saved state begins an epoch of ``EPOCH_COUNTS`` counts at a random one, ``CONTROL_EPOCH``: a whole-record write on top
of a count of another epoch goes on from there, as counts that were given out after the save are not known any more.

**Write stamp.** ``sequence << STAMP_SHIFT | patches``. Whole-record writes take the next ``sequence``, by which records
are ordered. ``patches`` goes up, and wraps, with every partial write, which puts the same word back: a reader who looks
at the header before and after its copy must still see that the record moved.

**Control.** int64 ``[8]``: see the ``CONTROL_*`` numbers; ``CONTROL_LOCK`` is 0 whenever no op is running. **Journal.**
int64 ring of slots written, in order; position ``CONTROL_JOURNAL`` counts all that was ever noted, so entry ``p`` is at
``p % len(journal)``.

**Seed.** int64 ``[1]``, on the storage's device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

(
    CONTROL_CURSOR, CONTROL_LENGTH, CONTROL_WRITES, CONTROL_JOURNAL, CONTROL_STAMP, CONTROL_LOCK, CONTROL_CLEARS,
    CONTROL_EPOCH,
) = range(8)  # fmt: skip
CONTROL_SIZE = 8
HEADER_BYTES = 16
SLOT_BUSY, SLOT_LIVE, SLOT_COUNT_SHIFT = 1, 2, 2
STAMP_SHIFT = 12
EPOCH_COUNTS = 1 << 48

STRATEGIES = ("random", "recency", "reward", "variance")
ADVANTAGE_KINDS = ("std", "mean", "leave_one_out")
# Dtypes that ops compare: those of rewards and versions. (uint64 has no order in an int64 score, float8 none in torch.)
ORDERED_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)

# What happened to one row of a conditional update.
UPDATED, STALE, VERSION_REJECTED, SUPERSEDED = range(4)
# Bits of the flags that `sample_groups` returns.
FEW_GROUPS, SHORT_GROUP, NAN_DRAWN, NAN_KEY, NO_GROUP = 1, 2, 4, 8, 16
# Places in the state of priorities.
PRIORITY_POSITION, PRIORITY_REFUSED, PRIORITY_DRAWABLE, PRIORITY_VISITED, PRIORITY_SET = range(5)
PRIORITY_STATE_SIZE = 8
# Places in the state of a group index.
INDEX_POSITION, INDEX_GROUPS, INDEX_SINGLETONS, INDEX_OUTCAST, INDEX_VISITED = range(5)
INDEX_STATE_SIZE = 8

library = torch.library.Library("torchrb", "DEF")
SCHEMAS: dict[str, str] = {}
_Fake = TypeVar("_Fake", bound=Callable[..., Any])


def _declare(schema: str) -> Callable[[_Fake], _Fake]:
    """Declare an op and register the decorated function as its fake."""
    library.define(schema)
    name = schema.split("(", 1)[0]
    SCHEMAS[name] = schema

    def register(fake: _Fake) -> _Fake:
        @functools.wraps(fake)
        def checked(*args: Any) -> Any:
            _check_devices(name, args)
            return fake(*args)

        torch.library.register_fake(f"torchrb::{name}", checked, lib=library)
        return fake

    return register


def _check_devices(name: str, args: tuple[Any, ...]) -> None:
    """RuntimeError for tensors of several devices: one meta tensor sends a call here, and what a fake makes of the
    others' devices is memory that nobody writes.
    """
    tensors = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else (arg,))]
    devices = sorted({str(tensor.device) for tensor in tensors if isinstance(tensor, Tensor)})
    if len(devices) > 1:
        raise RuntimeError(
            f"torchrb::{name}: all tensors of a call must be on one device, got {' and '.join(devices)}. "
            "Move them to that of the first argument."
        )


# --- rows -----------------------------------------------------------------------------------------------------------


@_declare(
    "append_rows_(Tensor(a!)[] tables, Tensor(b!) control, Tensor(c!) journal, int[] layout, Tensor[] values,"
    " int num_rows) -> (Tensor slots, Tensor generations)"
)
def _append_rows(
    tables: list[Tensor], control: Tensor, journal: Tensor, layout: list[int], values: list[Tensor], num_rows: int
) -> tuple[Tensor, Tensor]:
    """Write ``num_rows`` whole records at the cursor, oldest overwritten first.

    ``values[leaf]``: contiguous, ``[num_rows, ...]``. Returns the slot of each row and the generation that this very
    row got, int64 ``[num_rows]``: where the batch wraps over itself, the earlier rows' handles are stale at once.
    Cursor, length, write count, stamps and journal move along; length is published after the rows.
    """
    return control.new_empty((num_rows,)), control.new_empty((num_rows,))


@_declare(
    "write_rows_(Tensor(a!)[] tables, Tensor(b!) control, Tensor(c!) journal, int[] layout, Tensor slots,"
    " Tensor[] values, bool renew) -> Tensor generations"
)
def _write_rows(
    tables: list[Tensor],
    control: Tensor,
    journal: Tensor,
    layout: list[int],
    slots: Tensor,
    values: list[Tensor],
    renew: bool,
) -> Tensor:
    """Write rows at given slots (int64 ``[n]``); among equal slots the last row stays.

    ``renew``: whole records. Each write steps the slot's generation, makes it live, takes a new stamp, and the length
    reaches at least the highest slot. Otherwise the leaves in ``layout`` are parts of records, which keep their
    generation and stamp. Returns the generation after each row's own write, int64 ``[n]``; -1 for a slot out of range.
    """
    return slots.new_empty(slots.shape)


@_declare(
    "read_rows(Tensor[] tables, int[] layout, Tensor[] templates, Tensor slots)"
    " -> (Tensor[] leaves, Tensor generations)"
)
def _read_rows(
    tables: list[Tensor], layout: list[int], templates: list[Tensor], slots: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Copy rows out: leaf ``i`` is ``[n, *templates[i].shape[1:]]`` of ``templates[i].dtype``, contiguous.

    ``generations``, int64 ``[n]``, belong to the very content returned; -1 for a slot never written or out of range
    (whose content is zero).
    """
    leaves = [t.new_empty((slots.shape[0], *t.shape[1:])) for t in templates]
    return leaves, slots.new_empty(slots.shape)


@_declare(
    "update_rows_if_(Tensor(a!)[] tables, Tensor(b!) control, Tensor(c!) journal, int[] layout, Tensor slots,"
    " Tensor generations, Tensor[] values, int[] version_leaf, Tensor? version, bool require_newer) -> Tensor status"
)
def _update_rows_if(
    tables: list[Tensor],
    control: Tensor,
    journal: Tensor,
    layout: list[int],
    slots: Tensor,
    generations: Tensor,
    values: list[Tensor],
    version_leaf: list[int],
    version: Tensor | None,
    require_newer: bool,
) -> Tensor:
    """Write parts of records whose slot is live and still has the given generation, row by row, all leaves at once.

    With ``version`` (``[n]``, of the stored leaf's dtype; ``version_leaf`` is its layout entry) a live row also needs
    ``version > stored`` (``require_newer``) or ``version >= stored``; NaN is never accepted, a stored NaN always gives
    way; the accepted version is stored too. Among rows addressing one record, without versions the last is written and
    the others are ``SUPERSEDED``; with versions the highest is (the last of equals), the others are
    ``VERSION_REJECTED``. Returns uint8 ``[n]``: ``UPDATED``, ``STALE``, ``VERSION_REJECTED`` or ``SUPERSEDED``.
    """
    return slots.new_empty(slots.shape, dtype=torch.uint8)


@_declare("clear_rows_(Tensor(a!)[] tables, Tensor(b!) control, Tensor(c!) journal, bool reset_writes) -> ()")
def _clear_rows(tables: list[Tensor], control: Tensor, journal: Tensor, reset_writes: bool) -> None:
    """Retire every live record (generation +1, not live); cursor and length to 0, and the write count if asked. Such
    calls are counted in ``CONTROL_CLEARS``.
    """
    return None


# --- draws ----------------------------------------------------------------------------------------------------------


@_declare("draw_uniform(Tensor seed, Tensor control, int num) -> Tensor slots")
def _draw_uniform(seed: Tensor, control: Tensor, num: int) -> Tensor:
    """``num`` independent slots below the current length, int64 ``[num]``; the length must not be 0."""
    return control.new_empty((num,))


@_declare("draw_permuted(Tensor seed, int size, int first, int num) -> Tensor slots")
def _draw_permuted(seed: Tensor, size: int, first: int, num: int) -> Tensor:
    """What the permutation of ``[0, size)`` that the seed selects has at the places from ``first`` on, int64 ``[num]``:
    ``size < 2**32``. RuntimeError for places past its end.
    """
    return seed.new_empty((num,))


def group_links_size(capacity: int, device_type: str = "cpu") -> int:
    """How many int32 the links of a group index over ``capacity`` rows take on such a device."""
    if device_type == "cuda":  # as GroupLinks::size in csrc/cuda/group_links.cuh
        buckets = 32
        while 2 * buckets < capacity:
            buckets *= 2
        size = 16 + 6 * (capacity + 1) + 3 * buckets
        while buckets > 32:
            buckets = -(-buckets // 32)
            size += buckets
        return size
    buckets = 16
    while 2 * buckets < capacity:
        buckets *= 2
    return 16 + 6 * capacity + 2 * buckets + buckets // 16 + 1


@_declare(
    "group_index_update_(Tensor(a!) keys, Tensor(b!) links, Tensor(c!) state, Tensor control, Tensor journal,"
    " Tensor[] tables, int[] key_leaf, Tensor key_template, bool rebuild) -> ()"
)
def _group_index_update(
    keys: Tensor,
    links: Tensor,
    state: Tensor,
    control: Tensor,
    journal: Tensor,
    tables: list[Tensor],
    key_leaf: list[int],
    key_template: Tensor,
    rebuild: bool,
) -> None:
    """Bring a group index from its position in the journal to the end of it: rows written since are put under their
    present key, or taken out when they are not live. Every row is looked at for ``rebuild``, and when the position is
    too old for the journal.

    ``keys``, int64 ``[capacity, w]``, ``links``, int32 ``[group_links_size(...)]``, and ``state``, int64 ``[8]``,
    all zero at first, are the index; the first two belong to the backend of their device. ``key_leaf`` places the key
    in ``tables``; ``key_template`` (empty, ``[0, *shape]``) has its dtype and its ``w`` elements. A key's words are its
    integers, sign-extended, or the bits of its values as float64, -0.0 as 0.0; keys are equal where their words are.
    Groups are ordered by a fixed 64-bit hash of the words, then by the words, both signed, so their order does not
    depend on that of the rows.

    ``state`` holds, see the ``INDEX_*`` numbers, the position, groups, groups of one row, a live row whose key is NaN
    (-1 if there is none; such rows are in no group), and rows looked at so far. It is read and written where it lies,
    so that nobody waits for it.
    """
    return None


@_declare(
    "sample_groups(Tensor seed, Tensor keys, Tensor links, Tensor[] tables, int[] reward_leaf, Tensor reward_template,"
    " int groups, int per_group, int strategy)"
    " -> (Tensor slots, Tensor drawn, Tensor flags)"
)
def _sample_groups(
    seed: Tensor,
    keys: Tensor,
    links: Tensor,
    tables: list[Tensor],
    reward_leaf: list[int],
    reward_template: Tensor,
    groups: int,
    per_group: int,
    strategy: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw ``groups`` groups and ``per_group`` rows in each; ``strategy`` is a place in ``STRATEGIES``.

    *Groups*: the first ``groups`` images of a keyed permutation of the ranks, all distinct; missing ones are drawn
    uniformly with replacement, and such a repeat takes rows that the batch has not used before others.
    *Rows*: ``random``, ``recency``, ``reward`` take the highest score (random key, stamp, reward). ``variance`` takes
    the subset of greatest variance: rewards less the group's smallest as float64 (beyond 2**500
    all times 2**-600, so that no square overflows), the k for which
    ``k * sum(x^2) - (sum x)^2`` is greatest, then the higher total, then more of the largest. Rewards are compared in
    their own type (``reward_template`` carries dtype and shape; several elements count as their float64 mean, summed in
    order); number > -inf > NaN. Equal scores: newer stamp, then lower slot. NaN rewards (non-finite ones for
    ``variance``) come only after every valid row. A group with fewer than ``per_group`` rows gives each once, then
    valid rows uniformly with replacement (any, if none is valid).
    *Order*: group-major; inside a group reward descends, recency runs oldest to newest, variance ascends, random by
    its key; NaN rows after valid ones, repeats at the end.

    Returns ``slots`` int64 ``[groups * per_group]``; ``drawn`` int64 ``[groups, 3]``: rank, rows and valid rows of each
    group; ``flags`` int64 ``[1]``: ``FEW_GROUPS | SHORT_GROUP | NAN_DRAWN``, and ``NAN_KEY`` where a live row is in no
    group. There must be a group. (A GPU finds out too late to refuse: slots are -1, ``drawn`` is 0, ``NO_GROUP`` is
    set.)
    """
    return keys.new_empty((groups * per_group,)), keys.new_empty((groups, 3)), keys.new_empty((1,))


# --- priorities -----------------------------------------------------------------------------------------------------


@_declare(
    "update_priorities_(Tensor(a!) tree, Tensor(b!) seen, Tensor(c!) state, Tensor control, Tensor journal,"
    " Tensor[] tables, Tensor slots, Tensor generations, Tensor priorities, float alpha, float eps, bool rebuild) -> ()"
)
def _update_priorities(
    tree: Tensor,
    seen: Tensor,
    state: Tensor,
    control: Tensor,
    journal: Tensor,
    tables: list[Tensor],
    slots: Tensor,
    generations: Tensor,
    priorities: Tensor,
    alpha: float,
    eps: float,
    rebuild: bool,
) -> None:
    """Bring priorities from their position in the journal to the end of it, then set those of some rows.

    *Follow*: of the rows written since, one that lives no more loses its priority; one that is another record than it
    was (its generation tells) first loses that of its predecessor, and then, when all have, gets the greatest priority
    of the rows that still have one, or 1.0 when none has. A record that was changed in part keeps its priority. Where
    the position is too old for the journal, every row is looked at.

    *Set*: rows ``slots`` (int64 ``[n]``) get ``priorities`` (``[n]``, of any dtype in ``ORDERED_DTYPES``); among equal
    slots the last one counts. Slots that hold no record are left out, and with ``generations`` (``[n]``; else ``[0]``)
    those whose record has another one. If a priority is NaN, infinite or negative, or a slot not one of the storage,
    none is set and ``state`` tells the number of the first such row, plus 1.

    ``tree``: float64, see `priority_tree.PriorityTree`; ``seen``: int64 ``[capacity]``, zero at first, the counts in
    the slot words that priorities belong to, negative where nothing lived; both belong together.

    A weight ``(priority + eps) ** alpha`` is 0 where ``priority + eps`` is, else within 2**-960 and 2**960. It is
    computed by multiplications and additions alone (`power` of ``reference_priorities.py``), thus alike everywhere.
    ``rebuild``, or a negative position: look at every row, and compute every weight and node again, as after a change
    of ``alpha`` or ``eps``.

    ``state``, int64 ``[8]``, zero at first: position, the refused row (stays until somebody puts 0 there), whether any
    weight is positive (0 or 1), rows looked at so far, and calls so far that set priorities.
    """
    return None


@_declare(
    "draw_priorities(Tensor seed, Tensor? masses, Tensor tree, int capacity, int num, float beta, bool wide)"
    " -> (Tensor slots, Tensor weights)"
)
def _draw_priorities(
    seed: Tensor, masses: Tensor | None, tree: Tensor, capacity: int, num: int, beta: float, wide: bool
) -> tuple[Tensor, Tensor]:
    """``num`` independent rows, each with a probability in proportion to its weight in the tree.

    Draw ``i`` looks for a mass, ``masses[i]`` (float64 ``[num]``) or the ``i``-th random fraction of the total: at each
    level it is compared with the running sums of four sums of four, then of the four, and goes to the first part whose
    running sum exceeds it, with what is left of it. Where rounding leaves it beyond all of them it goes to the last
    part whose sum is positive; so a row of weight 0 is never drawn.

    Returns slots, int64 ``[num]``, and their importance weights ``(weight / least) ** -beta``, where ``least`` is the
    smallest positive weight in the tree: at most 1, float64 when ``wide``, else float32. Without a positive weight
    slots are -1 and weights 0.
    """
    dtype = torch.float64 if wide else torch.float32
    return tree.new_empty((num,), dtype=torch.int64), tree.new_empty((num,), dtype=dtype)


# --- groups to gradients --------------------------------------------------------------------------------------------


@_declare(
    "balanced_subset(Tensor returns, int group_size, float low, float high, int max_combinations, float rounding)"
    " -> (Tensor index, Tensor found)"
)
def _balanced_subset(
    returns: Tensor, group_size: int, low: float, high: float, max_combinations: int, rounding: float
) -> tuple[Tensor, Tensor]:
    """For each row of ``returns`` (float64 ``[groups, n]``) the ``group_size`` candidates whose mean lies strictly
    between ``low`` and ``high`` and is closest to their middle; equally close: the larger spread, then the
    lexicographically first. Non-finite returns are never chosen. ``low < high``, each infinite or within 1e300.

    Sums are float64, values ascending, and compared up to ``rounding``, the relative error of a return: a mean within
    ``rounding * |bound|`` of a bound lies on it, hence outside, and two means ``rounding * |mean|`` apart are equally
    close. An infinite bound counts as the outermost return when the middle is taken.

    Candidates of equal return are alike, so that what is searched is choices of values. Up to ``max_combinations``
    of them all are scored. Beyond, if each half of the sorted values has few enough choices (both together at most
    ``max_combinations``), the halves are matched: closest, then the larger spread. Else a greedy choice is improved by
    swaps, and if it ends outside, halves of up to 8,388,608 choices decide, which covers 40 candidates of any value
    and 256 of at most 8 distinct ones: among those a subset is found whenever there is one.

    Returns ``index`` int64 ``[groups, group_size]``, ascending, and ``found`` bool ``[groups]`` (index is 0 where not).
    """
    groups = returns.shape[0]
    index = returns.new_empty((groups, group_size), dtype=torch.int64)
    return index, returns.new_empty((groups,), dtype=torch.bool)


@_declare("group_advantage(Tensor returns, int kind, float epsilon) -> Tensor advantages")
def _group_advantage(returns: Tensor, kind: int, epsilon: float) -> Tensor:
    """Advantages of float32 or float64 ``returns [groups, n]`` within their group.

    ``kind`` is a place in ``ADVANTAGE_KINDS``. With mean and unbiased standard deviation of the group's finite returns,
    ``std``: ``(return - mean) / (deviation + epsilon)``; ``mean``: ``return - mean``; ``leave_one_out``: ``return``
    less the mean of the others. Non-finite returns get 0, and so does a group that is constant or has one finite
    return. Computed in float64: offsets from the first finite return, summed in order, two passes. Where the group's
    largest magnitude is beyond 2**480 all is computed times 2**-600, and below 2**-450 times 2**900, so that no sum or
    square overflows or vanishes: an advantage is infinite only where its value is beyond the dtype.
    """
    return torch.empty_like(returns)


def op_names() -> Sequence[str]:
    """The ops' names, in order of declaration."""
    return tuple(SCHEMAS)
