"""What keeps a contract from being decided, or from saying anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from hloscope.analysis.model import Analysis
from hloscope.analysis.places import split_place
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.contracts.model import Ban, Contract, Expectation, Limit, Quantity, format_clause
from hloscope.contracts.selecting import axis_fits, is_at
from hloscope.contracts.verdict import Breach, BreachKind, doubtful, vacuous
from hloscope.errors import did_you_mean
from hloscope.units import format_capacity, plural

_SHOWN = 5
_PART = re.compile(r":\((\d+)\)(\d+)$")
_NO_SOURCES = frozenset({"node_modules", "__pycache__", "venv"})


def undecided(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    """What was not understood, and what could not break the contract whatever the program did."""
    if analysis.memory.fits is False:
        yield Breach(
            kind=BreachKind.BROKEN,
            message="the program does not fit in the memory of a device, so it cannot run",
            expected=f"{format_capacity(analysis.memory.hbm_bytes)} or less",
            found=format_capacity(analysis.memory.peak_bytes),
        )
    else:
        yield from _larger_than_memory(contract, analysis)
    if not contract.says_something:
        yield vacuous("the contract says nothing that a program could break", "a clause", str(contract) or "nothing")
    if contract.closed and any(clause.selector.is_everything for clause in contract.all_of(Expectation)):
        message = "the contract expects every collective that there is, so there is nothing else to forbid"
        yield vacuous(message, "expectations of less than everything", str(contract))
    if not analysis.collectives:
        yield from _computes_nothing(str(contract), analysis)
    if not contract.speaks_of_collectives:
        return
    yield from _on_one_device(str(contract), analysis)
    if analysis.collectives and all(moved.payload_bytes == 0 for moved in analysis.collectives):
        message = "every collective is of an array without elements, so nothing can move"
        yield vacuous(message, "arrays with elements", "0 B in all of them")
    yield from _misnamed_axes(contract, analysis)
    crosses = any(selector.link is Link.DCN for selector in contract.selectors)
    if crosses and analysis.slice is not None and analysis.slice.slices == 1:
        message = "the program runs on one slice, so nothing can cross DCN"
        yield vacuous(message, "several slices", f"one slice, {analysis.slice.name}")
    if not contract.at_least_ok:
        yield from _not_understood(analysis)


def _larger_than_memory(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    """Limits on memory that no program can exceed that runs."""
    capacity = analysis.memory.hbm_bytes
    for limit in contract.all_of(Limit):
        if limit.quantity is Quantity.HBM and capacity is not None and limit.most > capacity:
            where = "a device" if analysis.slice is None else f"a device of {analysis.slice.name}"
            message = f"{where} has {format_capacity(capacity)}, so {format_clause(limit)} cannot fail"
            yield vacuous(message, f"{format_capacity(capacity)} or less", format_clause(limit))


def nothing_to_move(analysis: Analysis) -> tuple[str, ...]:
    """Why a program could not move anything, whatever its shardings are; empty when it could."""
    found = [] if analysis.collectives else list(_computes_nothing("", analysis))
    return tuple(breach.message for breach in (*found, *_on_one_device("", analysis)))


def _computes_nothing(expected: str, analysis: Analysis) -> Iterator[Breach]:
    if not analysis.outputs:
        message = "the program computes nothing: it returns no array"
        yield vacuous(message, expected, "no outputs")
    elif analysis.arguments and not any(argument.used for argument in analysis.arguments):
        message = "the compiled program reads none of its arguments: its code is dead"
        yield vacuous(message, expected, "no argument that is read")


def _on_one_device(expected: str, analysis: Analysis) -> Iterator[Breach]:
    devices = analysis.mesh.device_count if analysis.mesh is not None else analysis.num_partitions
    if not analysis.collectives and max(devices, analysis.num_partitions) <= 1:
        message = "the program runs on one device, so no contract on communication can fail"
        yield vacuous(message, expected, "a mesh of 1 device")


def _misnamed_axes(contract: Contract, analysis: Analysis) -> Iterator[Breach]:
    named = dict.fromkeys(axis for selector in contract.selectors for axis in selector.axes or () if axis.strip("*"))
    if not named:
        return
    if analysis.mesh is None:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message="the contract names mesh axes, and the program's mesh is not known",
            expected=f"a mesh with {', '.join(named)}",
            found="no mesh",
        )
        return
    sizes = dict(zip(analysis.mesh.axis_names, analysis.mesh.axis_sizes, strict=True))
    for pattern in named:
        fitting = [name for name in sizes if axis_fits(pattern.partition(":")[0], name)]
        found = "mesh " + ",".join(f"{name}={size}" for name, size in sizes.items())
        if not fitting:
            near = did_you_mean(pattern, sizes)
            message = f"the mesh has no axis {pattern}" + (f": {near}" if near else "")
            yield vacuous(message, f"an axis {pattern}", found)
        elif not any(_has_part(pattern, sizes[name]) for name in fitting):
            message = f"no mesh axis has a part {pattern}, so nothing can move over it"
            yield vacuous(message, f"a part {pattern}", found)
        elif all(sizes[name] == 1 for name in fitting):
            message = f"the mesh axis {pattern} has size 1, so nothing can move over it"
            yield vacuous(message, f"an axis {pattern} of 2 devices or more", found)


def _has_part(pattern: str, size: int) -> bool:
    """Whether an axis of so many devices has the part that `X:(1)2` names; true for a pattern that names none."""
    part = _PART.search(pattern)
    return part is None or (int(part[2]) > 1 and size % (int(part[1]) * int(part[2])) == 0)


def missing_files(contract: Contract, analysis: Analysis, root: Path | None) -> Iterator[Breach]:
    """Bans on what comes from a file that is nowhere in the project: a name that was mistyped, or a file that moved."""
    for source in dict.fromkeys(ban.selector.source for ban in contract.all_of(Ban)):
        if root is None or source is None:
            continue
        if any(is_at(source, frame) for moved in analysis.collectives for frame in moved.source):
            continue
        path, line = split_place(source)
        files = _files_at(root, path)
        first = next(files, None)
        if first is None:
            message = f"there is no file {path} in {root}, so nothing can come from it"
            yield vacuous(message, f"a file {path}", "no such file")
        elif line and all(_line_count(file) < line for file in (first, *files)):
            message = f"{path} has no line {line}, so nothing can come from it"
            yield vacuous(message, f"{line} lines or more", f"{_line_count(first)} lines")


def _files_at(root: Path, path: str) -> Iterator[Path]:
    """The files below a folder whose path ends so; folders that hold no code of the project are left out."""
    if (root / path).is_file() or Path(path).is_absolute():
        yield from (file for file in (root / path,) if file.is_file())
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NO_SOURCES]
        yield from (Path(folder, name) for name in files if PurePath(folder, name).match(path))


def _line_count(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _not_understood(analysis: Analysis) -> Iterator[Breach]:
    """One breach for each thing that the text does not say and that the contract may depend on."""
    expected, unread = "everything understood", analysis.unmodelled
    for item in unread[:_SHOWN]:
        place = "" if item.line is None else f"HLO line {item.line}: "
        yield doubtful(f"{item.what}, so the contract cannot be decided", expected, f"{place}{item.effect}")
    if len(unread) > _SHOWN:
        others = plural(len(unread) - _SHOWN, "other thing")
        yield doubtful(f"{others} could not be read either", expected, "see the findings")
    if unread:
        return
    if any(collective.kind is Kind.OPAQUE for collective in analysis.collectives):
        message = "a kernel communicates by itself, but the text does not say what it sends"
        yield doubtful(message, expected, "opaque communication")
    elif (bound := analysis.totals.bound) in (Bound.AT_LEAST, Bound.UNKNOWN):
        yield doubtful("what moves is not known exactly", expected, f"totals that are a bound: {bound}")
