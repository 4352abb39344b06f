"""Whether what a module's columns hold is defined before it is used."""

from __future__ import annotations

import numpy

from hloscope.hlo.columns import Columns


def first_early_use(columns: Columns, end: int) -> int:
    """The first instruction with an operand that is no earlier one of its computation; `end` where none has."""
    starts = numpy.frombuffer(columns.operand_starts, dtype=numpy.int64)[: end + 1]
    operands = numpy.frombuffer(columns.operands, dtype=numpy.int64)[: starts[-1]] if starts[-1] else starts[:0]
    users = numpy.repeat(numpy.arange(end), numpy.diff(starts))
    firsts = numpy.array([row.first for row in columns.computations])
    sizes = numpy.array([row.end - row.first for row in columns.computations])
    wrong = users[(operands >= users) | (operands < numpy.repeat(firsts, sizes)[users])]
    return int(wrong[0]) if len(wrong) else end


def first_early_call(columns: Columns, end: int) -> int:
    """The first instruction that calls a computation that is not whole before it; `end` where none does."""
    ends = {row.name: row.end for row in columns.computations}
    first = end
    for index, called in columns.called.items():
        for _, name in called:
            if index < first and ends.get(name, end) > index:
                first = index
    return first
