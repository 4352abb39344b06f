"""The arguments and outputs of a program in its baseline: how many there are of each type, shape and sharding.

Names are not kept: renaming a parameter changes no program. A model has many parameters of few types, so that a line
for each type is short, and merges.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hloscope.analysis.model import ArrayFact
from hloscope.units import plural

ARGUMENT, OUTPUT = "argument", "output"
KEYS = {ARGUMENT: "arguments", OUTPUT: "outputs"}
"""What a change of them can be accepted by."""

OTHERS = "others"
_MOST_LINES = 32
"""Of one kind: all types beyond that are one line."""

_ON_EACH = " on each device"
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRow:
    """Arguments, or outputs, of one type.

    Attributes:
        kind: `argument` or `output`.
        type: The whole array with its sharding and its shape on one device, `bf16[512,2048] P('X', None) as
            bf16[64,2048]`; where only the latter is known `bf16[64,2048] on each device`; or `others` and a digest, for
            those of all types that have no line of their own.
        count: How many there are.
    """

    kind: str
    type: str
    count: int


def array_rows(arguments: Sequence[ArrayFact], outputs: Sequence[ArrayFact]) -> tuple[ArrayRow, ...]:
    """The rows of a program, in the order of a file."""
    return (*_rows(ARGUMENT, arguments), *_rows(OUTPUT, outputs))


def array_row_order(row: ArrayRow) -> tuple[object, ...]:
    """By which the rows of a file are in order."""
    return row.kind, row.type.startswith(OTHERS), row.type


def _rows(kind: str, arrays: Iterable[ArrayFact]) -> list[ArrayRow]:
    sizes = Counter[str]()
    counts = Counter(map(_type_of, arrays := tuple(arrays)))
    for array in arrays:
        sizes[_type_of(array)] += array.bytes_per_device or 0
    by_size = sorted(counts, key=lambda each: (-sizes[each], each))
    own, others = by_size[: _MOST_LINES - 1], by_size[_MOST_LINES - 1 :]
    if len(others) == 1:
        own, others = by_size, []
    rows = [ArrayRow(kind=kind, type=each, count=counts[each]) for each in own]
    if others:
        text = "\n".join(f"{counts[each]} {each}" for each in sorted(others))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        rows.append(ArrayRow(kind=kind, type=f"{OTHERS} {digest}", count=sum(counts[each] for each in others)))
    return sorted(rows, key=array_row_order)


def _type_of(array: ArrayFact) -> str:
    local = f"{array.dtype}[{','.join(map(str, array.local_shape))}]"
    if array.global_shape is None:
        return f"{local}{_ON_EACH}"
    whole = f"{array.dtype}[{','.join(map(str, array.global_shape))}]"
    parts = (whole, *(array.sharding or "").split(), *(("as", local) if local != whole else ()))
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(parts))


def is_whole(row: ArrayRow) -> bool:
    """Whether it says more than what is on one device: HLO text does not always."""
    return not row.type.endswith(_ON_EACH)


def _on_each_device(row: ArrayRow) -> ArrayRow:
    if not is_whole(row):
        return row
    whole, _, local = row.type.rpartition(" as ") if " as " in row.type else (row.type, "", row.type.split(" ")[0])
    return replace(row, type=OTHERS if whole.startswith(OTHERS) else f"{local}{_ON_EACH}")


def _counted(rows: Iterable[ArrayRow]) -> Counter[str]:
    found = Counter[str]()
    for row in rows:
        found[row.type] += row.count
    return found


class _Other(NamedTuple):
    """Arrays that are of another type than before; None for no type."""

    old: str | None
    new: str | None
    number: int


def changed_arrays(
    kind: str, before: Iterable[ArrayRow], after: Iterable[ArrayRow], arrays: Iterable[ArrayFact]
) -> str | None:
    """`argument x is f32[512,2048] where bf16[512,2048] was`; None where nothing has changed.

    Args:
        kind: Which of them it is about: `argument` or `output`.
        before: The rows of the baseline.
        after: The rows of the program as it is.
        arrays: The program's arrays of that kind, where they are known: their names.
    """
    sides = [[row for row in side if row.kind == kind] for side in (before, after)]
    named = [(ArrayRow(kind=kind, type=_type_of(array), count=1), array.name) for array in arrays]
    if not all(is_whole(row) for side in sides for row in side):
        sides = [list(map(_on_each_device, side)) for side in sides]
        named = [(_on_each_device(row), name) for row, name in named]
    then, now = map(_counted, sides)
    others = _others(then - now, now - then)
    if not others:
        return None
    names: dict[str, list[str]] = {}
    for row, name in named:
        names.setdefault(row.type, []).append(name)
    words = [_words(kind, other, names.get(other.new or "", [])) for other in others[:_SHOWN]]
    more = f", and {plural(len(others) - _SHOWN, 'other change')}" if len(others) > _SHOWN else ""
    return f"{'; '.join(words)}{more}"


def _others(gone: Counter[str], new: Counter[str]) -> list[_Other]:
    """Types that took the place of others, those most alike first; and what is only gone, or only new."""
    found = []
    pairs = sorted(((old, now) for now in new for old in gone), key=lambda pair: (-_likeness(*pair), pair))
    for old, now in pairs:
        count = min(gone[old], new[now])
        if count:
            found.append(_Other(old, now, count))
            gone[old] -= count
            new[now] -= count
    found += [_Other(None, now, count) for now, count in sorted(new.items()) if count]
    return found + [_Other(old, None, count) for old, count in sorted(gone.items()) if count]


def _likeness(old: str, new: str) -> int:
    return sum(one == other for one, other in zip(_parts(old), _parts(new), strict=True))


def _parts(text: str) -> tuple[str, str, str]:
    """Type, dimensions, and how it is sharded."""
    array, _, sharding = text.partition(" as ")[0].partition(" ")
    dtype, _, sizes = array.partition("[")
    return dtype, sizes, sharding


def _words(kind: str, other: _Other, names: Sequence[str]) -> str:
    shown = names if len(names) == other.number <= _SHOWN else ()
    what = f"{kind}{'s' * (len(shown) > 1)} {', '.join(shown)}" if shown else plural(other.number, kind)
    verb = "is" if other.number == 1 else "are"
    old, new = ((text or "").partition(" as ")[0] for text in (other.old, other.new))
    if not old or not new:
        return f"{what} of {new or old} {verb} {'new' if new else 'gone'}"
    if _parts(old)[2] == _parts(new)[2]:  # then it is not the sharding
        old, new = old.partition(" ")[0], new.partition(" ")[0]
    return f"{what} {verb} {new} where {old} {'was' if other.number == 1 else 'were'}"
