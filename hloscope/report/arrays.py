"""The program's arguments and outputs: global shapes, shardings and what one device holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rich.text import Text

from hloscope.analysis.model import ArrayFact
from hloscope.report.folding import Breaks, fold
from hloscope.report.grid import Column, table_lines
from hloscope.report.words import ELSEWHERE, part_of_axis
from hloscope.units import format_bytes, plural

_ARRAYS_SHOWN = 12


def array_lines(arrays: Sequence[ArrayFact], noun: str, width: int) -> list[Text]:
    """The arrays of most bytes on a device, in the program's order, and one line for the others.

    Args:
        arrays: Arguments or outputs, at least one.
        noun: `argument` or `output`.
        width: Columns.
    """
    shown = _largest(arrays)
    lines = table_lines(_columns(shown, arrays), width)
    rest = [array for array in arrays if array not in shown]
    remarks = (
        Text(_rest_words(shown, rest, noun), style="dim") if rest else None,
        _unknown_words(arrays),
        part_of_axis(array.sharding or "" for array in shown),
    )
    for remark in remarks:
        lines.extend(fold(remark, width) if remark is not None else ())
    return lines


def common_remarks(arrays: Sequence[ArrayFact]) -> tuple[str, ...]:
    """What holds for each of several arrays, those that are dropped aside, and is better said once: `donated`."""
    used = [array for array in arrays if array.used]
    if len(used) < 2:
        return ()
    return tuple(words for words in _remarks(used[0]) if all(words in _remarks(array) for array in used))


def _largest(arrays: Sequence[ArrayFact]) -> list[ArrayFact]:
    by_size = sorted(range(len(arrays)), key=lambda index: -_size(arrays[index]))
    return [arrays[index] for index in sorted(by_size[:_ARRAYS_SHOWN])]


def _size(array: ArrayFact) -> float:
    """Bytes on a device for sorting: nothing for an array that is dropped, and unknown before all others."""
    if not array.used:
        return 0
    return inf if array.bytes_per_device is None else array.bytes_per_device


def _rest_words(shown: Sequence[ArrayFact], rest: Sequence[ArrayFact], noun: str) -> str:
    smaller = max(map(_size, rest)) < min(map(_size, shown))
    count = plural(len(rest), f"{'smaller' if smaller else 'more'} {noun}")
    used = [array.bytes_per_device for array in rest if array.used]
    known = [size for size in used if size is not None]
    bound = "" if len(known) == len(used) else "at least "
    unused = f" ({len(rest) - len(used):,} not used)" if len(used) < len(rest) else ""
    return f"+{count}{unused}, {bound}{format_bytes(sum(known))} in all {ELSEWHERE}"


def _unknown_words(arrays: Sequence[ArrayFact]) -> Text | None:
    used = [array for array in arrays if array.used]
    unknown = (
        ("global shapes", all(array.global_shape is None for array in used)),
        ("shardings", all(array.sharding is None for array in used)),
    )
    words = " and ".join(what for what, holds in unknown if holds)
    return Text(f"not known: {words}", style="dim") if words and used else None


def _columns(shown: Sequence[ArrayFact], arrays: Sequence[ArrayFact]) -> tuple[Column, ...]:
    """Columns of the shown arrays; a column of nothing but unknowns is empty, since `_unknown_words` says it once."""
    common = common_remarks(arrays)
    any_global = any(array.global_shape is not None for array in arrays)
    any_sharding = any(array.sharding is not None for array in arrays)
    return (
        Column(
            header="name",
            cells=[Text(array.name, style=_style(array, "bold")) for array in shown],
            breaks=Breaks.AFTER_PUNCTUATION,
        ),
        Column(
            header="global",
            cells=[Text(_global(array) if any_global else "", style=_style(array)) for array in shown],
            given_up=2,
            below=[f"global {_global(array)}" if any_global else "" for array in shown],
        ),
        Column(
            header="sharding",
            cells=[Text(_sharding(array) if any_sharding else "", style=_style(array)) for array in shown],
            breaks=Breaks.BETWEEN_WORDS,
            given_up=3,
        ),
        Column(
            header="per device",
            cells=[Text(_local(array)) for array in shown],
            given_up=4,
            below=[f"per device {_local(array)}" if _local(array) else "" for array in shown],
        ),
        Column(header="bytes", cells=[Text(_bytes(array)) for array in shown], right=True, given_up=5),
        Column(
            header="",
            cells=[Text(", ".join(_without(common, _remarks(array))), style="dim") for array in shown],
            breaks=Breaks.BETWEEN_WORDS,
            given_up=1,
        ),
    )


def _without(common: Sequence[str], remarks: Sequence[str]) -> list[str]:
    return [words for words in remarks if words not in common]


def _style(array: ArrayFact, style: str = "") -> str:
    return style if array.used else "dim"


def _global(array: ArrayFact) -> str:
    return _shape(array.dtype, array.global_shape)


def _sharding(array: ArrayFact) -> str:
    return array.sharding or ("unknown" if array.used else "")


def _local(array: ArrayFact) -> str:
    """The shape on a device; for an array that is dropped only where its global shape is not known."""
    return _shape(array.dtype, array.local_shape) if array.used or array.global_shape is None else ""


def _bytes(array: ArrayFact) -> str:
    return format_bytes(array.bytes_per_device) if array.used else ""


def _shape(dtype: str, dimensions: tuple[int, ...] | None) -> str:
    return "unknown" if dimensions is None else f"{dtype}[{','.join(map(str, dimensions))}]"


def _remarks(array: ArrayFact) -> tuple[str, ...]:
    remarks = (
        ("not used: JAX drops it", not array.used),
        ("donated", array.donated and array.reused is not False),
        ("donated in vain", array.donated and array.reused is False),
        ("compiler's choice", array.chosen_by == "compiler"),
    )
    return tuple(words for words, holds in remarks if holds)
