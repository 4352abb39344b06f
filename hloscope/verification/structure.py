"""The outputs of two programs side by side: how many, of which shapes and types, and sharded how."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.model import Analysis, ArrayFact
from hloscope.findings import Finding, Severity
from hloscope.units import plural

OTHER_STRUCTURE, OTHER_SHARDING = "other-structure", "other-sharding"
_NAMES_SHOWN = 3


def compare_structure(target: Analysis, reference: Analysis) -> Iterator[Finding]:
    """Yields a finding for each output that is another array than the reference's, or lies otherwise on the devices."""
    counts = len(target.outputs), len(reference.outputs)
    if counts[0] != counts[1]:
        message = f"the program returns {plural(counts[0], 'array')}, and its reference {counts[1]:,}"
        yield Finding(rule=OTHER_STRUCTURE, severity=Severity.ERROR, message=message)
        return
    pairs = list(zip(target.outputs, reference.outputs, strict=True))
    unlike = [f"{found.name} with {expected.name}" for found, expected in pairs if found.name != expected.name]
    if unlike and len(pairs) > 1:
        more = f" and {len(unlike) - _NAMES_SHOWN:,} more" if len(unlike) > _NAMES_SHOWN else ""
        shown = ", ".join(unlike[:_NAMES_SHOWN])
        message = f"outputs have other names in the reference, and are compared by position: {shown}{more}"
        yield Finding(rule=OTHER_STRUCTURE, severity=Severity.WARNING, message=message)
    for found, expected in pairs:
        if _type(found) != _type(expected):
            message = f"{found.name} is {_type(found)}, and {_type(expected)} in the reference"
            yield Finding(rule=OTHER_STRUCTURE, severity=Severity.ERROR, message=message)
        elif found.sharding != expected.sharding or found.local_shape != expected.local_shape:
            message = f"{found.name} is sharded {_sharding(found)}, and {_sharding(expected)} in the reference"
            yield Finding(
                rule=OTHER_SHARDING,
                severity=Severity.WARNING,
                message=message,
                fix="give both the same output sharding: what comes after one of them may have to move the data",
            )


def _type(array: ArrayFact) -> str:
    shape = array.local_shape if array.global_shape is None else array.global_shape
    return f"{array.dtype}[{','.join(map(str, shape))}]"


def _sharding(array: ArrayFact) -> str:
    local = f"{array.dtype}[{','.join(map(str, array.local_shape))}] on a device"
    return f"{array.sharding} ({local})" if array.sharding else f"in a way that no axes name ({local})"
