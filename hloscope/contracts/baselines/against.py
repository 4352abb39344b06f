"""Baseline x Analysis -> findings: what a program moves otherwise than when somebody last looked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.places import users_frame, users_line
from hloscope.compare import Change, match
from hloscope.compare.wording import amount, change_line
from hloscope.contracts.baselines.model import Baseline, baseline_of
from hloscope.findings import Finding, Severity
from hloscope.units import format_bytes, plural

CHANGED = "baseline-changed"
_MEMORY_GROWTH = 0.05
"""Upgrades of the compiler move temporaries about; growth of the peak beyond this share is a change."""
_COMPILERS_OWN_BYTES = 128 << 10
"""No growth at all: code and scratch of the compiler's own, which are most of what a tiny program takes.

Source: the mean of 512 x 2048 squares took 604,160 bytes as libtpu 0.0.42 compiled it, and 636,416 as 0.0.50 did.
"""
_FIX = "if this is meant: hloscope accept"


def against_baseline(baseline: Baseline, analysis: Analysis, *, root: Path | None = None) -> tuple[Finding, ...]:
    """Compares a program with its baseline.

    What was not understood then and now is no change, since whoever accepted the baseline accepted it.

    Args:
        baseline: What it was.
        analysis: What it is.
        root: The project's folder.

    Returns:
        A finding for each change; empty when nothing changed but lines of source and the number of transfers.
    """
    now = baseline_of(analysis, root=root)
    before, after = baseline.collectives, now.collectives
    rows = zip((*before, *after), (*baseline.rows, *now.rows), strict=True)
    transfers = {id(one): row.executions for one, row in rows}
    changes = (change for change in match(before, after).changes if not change.same_traffic)
    found = [*_other_place(baseline, now), *(_moved(change, transfers, analysis) for change in changes)]
    found += [*_less_understood(baseline, now), *_larger(baseline, now)]
    return tuple(found)


def _finding(message: str, *, fix: str = _FIX, source: str | None = None) -> Finding:
    return Finding(rule=CHANGED, severity=Severity.ERROR, message=message, source=source, fix=fix)


def _other_place(then: Baseline, now: Baseline) -> Iterator[Finding]:
    for what, before, after in (("slice", then.slice, now.slice), ("mesh", then.mesh, now.mesh)):
        if before != after:
            yield _finding(f"the baseline is of another {what}: {_words(before)}, not {_words(after)}")


def _words(value: str | tuple[tuple[str, int], ...] | None) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{name}={size}" for name, size in value)
    return value or "none"


def _moved(change: Change, transfers: Mapping[int, int], analysis: Analysis) -> Finding:
    """The change of a row, at the place in the program as it is now."""
    row = change.any
    places = (users_frame(one.source) for one in analysis.collectives if (one.kind, one.axes) == (row.kind, row.axes))
    frame = users_frame(row.source)
    full = next(
        (one for one in places if one and frame and one.line == frame.line and one.file.endswith(frame.file)), None
    )
    source = None if not change.new or full is None else users_line((full,))
    verb = (
        "is not what the baseline has"
        if change.old and change.new
        else "is not in the baseline"
        if change.new
        else "is gone"
    )

    def words(one: Collective) -> str:
        count = transfers[id(one)]
        return amount(one) if count == 1 else f"{amount(one)} in {count:,} transfers"

    return _finding(f"{change_line(change, words)} ({verb})", source=source)


def _less_understood(then: Baseline, now: Baseline) -> Iterator[Finding]:
    if now.not_understood > then.not_understood:
        things = plural(now.not_understood, "thing")
        yield _finding(f"{things} in the program not understood, {then.not_understood} in the baseline")


def _larger(then: Baseline, now: Baseline) -> Iterator[Finding]:
    before, after = then.memory.peak_bytes, now.memory.peak_bytes
    if before is None:
        return
    if after is None:
        yield _finding(f"the peak memory is not known, and was {format_bytes(before)}")
    elif after - before > max(_MEMORY_GROWTH * before, _COMPILERS_OWN_BYTES):
        grown = 100 * (after - before) / max(before, 1)
        yield _finding(f"the peak memory grew by {grown:.0f}%: {format_bytes(before)} -> {format_bytes(after)}")
