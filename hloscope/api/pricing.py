"""`price`: the same program on several slices, and figures of a chip that the user knows better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hloscope.analysis.model import Analysis
from hloscope.api.analyzing import analyze_text, capture_target, name_of
from hloscope.api.joining import analysis_of
from hloscope.errors import HloscopeError
from hloscope.hardware.overrides import overridden
from hloscope.hardware.slices import parse_slice

if TYPE_CHECKING:
    from hloscope.program.target import TargetFacts

Stage = Callable[[str], None]


def price_function(
    target: Callable[..., Any] | str,
    facts: TargetFacts,
    slices: Sequence[str],
    *,
    chip_overrides: Sequence[str] = (),
    stage: Stage = lambda _: None,
) -> tuple[Analysis, ...]:
    """Compiles a function for each slice and prices it there.

    Args:
        target: The function.
        facts: How to call it; its slice is not used.
        slices: Names of slices, each with as many devices as the mesh.
        chip_overrides: Figures of the chips, as `name=value` or as TOML files.
        stage: Told what is happening, for a progress display.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    found = []
    for name in slices:
        captured = capture_target(target, replace(facts, slice=name), stage=stage)
        captured = replace(captured, slice=overridden(captured.slice, chip_overrides))
        stage(f"pricing on {name}")
        found.append(analysis_of(captured, name_of(target)))
    return tuple(found)


def price_text(
    text: str,
    slices: Sequence[str],
    *,
    name: str = "-",
    mesh: Any = None,
    dcn: Mapping[str, int] | str | None = None,
    chip_overrides: Sequence[str] = (),
) -> tuple[Analysis, ...]:
    """Prices compiled HLO text on each slice; needs no JAX.

    Raises:
        HloscopeError: The text is not HLO, or a slice has fewer devices than the program.
    """
    found = tuple(
        analyze_text(text, name=name, mesh=mesh, slice=one, dcn=dcn, chip_overrides=chip_overrides) for one in slices
    )
    chips = list(dict.fromkeys(one.slice.chip for one in found if one.slice is not None))
    if len(chips) < 2 or not any(one.time is not None and one.time.basis == "cycles" for one in found):
        return found
    note = (
        f"the text was compiled for one generation, whose cycles are taken for {' and '.join(chips)} alike: price the "
        "function itself to have it compiled for each"
    )
    return tuple(replace(one, notes=(*one.notes, note)) for one in found)


def largest_slice(slices: Sequence[str]) -> str:
    """The slice with the most devices, for which JAX must be started.

    Raises:
        HloscopeError: One of the names is no slice, or is `attached`, which has no price.
    """
    known = {name: parse_slice(name) for name in slices}
    unpriced = next((name for name in slices if known[name].chip is None), None)
    if unpriced is not None:
        raise HloscopeError(
            f"{unpriced} has no price", why="only TPU slices are priced", fix="name a slice such as v5e:2x4"
        )
    return max(slices, key=lambda name: known[name].device_count)
