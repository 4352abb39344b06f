"""Figures of a chip that the user knows better than the table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from hloscope.base.errors import Option, SliceError, did_you_mean, say
from hloscope.tpu.chips import find_chip
from hloscope.tpu.generation import Calibration, Chip, Constants
from hloscope.tpu.slices import Slice

_CONSTANTS, _FITTED_TO = "measured", "fitted_to"
"""Tables of a generation in the file that `hloscope compare --save` writes."""

_LARGEST_CONSTANT = 1000.0

SliceOrNone = TypeVar("SliceOrNone", Slice, Slice | None)

_NOT_FIGURES = ("devices_per_chip", "cores_per_chip", "wraparound_size", "max_slice_chips", "max_chips_used_in_part")
_FIGURES = {
    item.name: item.type
    for item in fields(Chip)
    if str(item.type).split(" ")[0] in ("int", "float") and item.name not in _NOT_FIGURES
}
"""Figures that may be overridden: sizes and rates. The ones that decide which slices exist are not measured."""

_LARGEST = 1e24
"""More than any figure of a chip, in bytes, operations or cycles; within it no time overflows or vanishes."""


def override_chip(chosen: SliceOrNone, overrides: Iterable[str]) -> SliceOrNone:
    """A slice with some of its chip's figures replaced, later ones winning.

    Args:
        chosen: The slice; None where none was named.
        overrides: Each is `name=value`, such as `hbm_bytes_per_s=750e9`, or the path of a TOML file with such lines,
            at the top for all generations or in a table named after one (`[v5e]`).

    Raises:
        SliceError: There is no chip to override, a figure is not known, its value cannot be one, or a file
            cannot be read.
    """
    given = tuple(overrides)
    if not given:
        return chosen
    if chosen is None or chosen.chip is None:
        raise SliceError(
            f"there is no chip for {given[0]} to override",
            why="no slice is named" if chosen is None else f"{chosen.name} has no TPU chips",
            fix=say("name a slice such as v5e:2x4, or leave ", Option("chip-override"), " out"),
        )
    figures: dict[str, float] = {}
    calibration = chosen.chip.calibration
    for override in given:
        name, equals, value = override.partition("=")
        if equals:
            figures.update(_checked({name.strip(): _number(value)}, override))
        else:
            found, fitted = _from_file(Path(override), chosen.chip)
            figures.update(found)
            calibration = calibration if fitted is None else fitted
    if not figures and calibration is None:
        return chosen
    typed = {name: int(value) if _is_whole(name) else value for name, value in figures.items()}
    return replace(chosen, chip=replace(chosen.chip, calibration=calibration, **typed))  # type: ignore[arg-type]


def find_constants(chip: Chip) -> Constants:
    """The constants of the cost model for a chip: its generation's, except those that a user's profile has settled.

    Raises:
        SliceError: The profile's file names a constant that is unknown.
    """
    if chip.calibration is None:
        return chip.measured.constants
    known = [each.name for each in fields(Constants)]
    for name, _ in chip.calibration.constants:
        if name not in known:
            raise SliceError(
                f"{name} is not a constant of the cost model",
                where=chip.calibration.file,
                fix=did_you_mean(name, known, f"they are {', '.join(known)}"),
            )
    return replace(chip.measured.constants, **dict(chip.calibration.constants))


def is_figure(name: str) -> bool:
    """True for the name of a figure that may be overridden."""
    return name in _FIGURES


def _from_file(path: Path, chip: Chip) -> tuple[dict[str, float], Calibration | None]:
    document = _document(path)
    plain = {name: value for name, value in document.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}
    figures, calibration = _checked(plain, str(path)), None
    for name, table in tables.items():
        if find_chip(name).name == chip.name:
            own = {key: value for key, value in table.items() if key not in (_CONSTANTS, _FITTED_TO)}
            found = _checked(own, f"{path} [{name}]")
            figures.update(found)
            calibration = _calibration(path, name, table, found)
    fitted_for = [name for name, table in tables.items() if _FITTED_TO in table]
    if fitted_for and calibration is None:
        raise SliceError(
            f"{path} is fitted to a profile of {' and '.join(fitted_for)}, but the slice is {chip.name}",
            fix=say(f"take a profile on {chip.name}, or leave ", Option("chip-override"), " out"),
        )
    return figures, calibration


def _calibration(
    path: Path, name: str, table: Mapping[str, object], figures: Mapping[str, float]
) -> Calibration | None:
    """The tables that `hloscope compare --save` writes in addition to the figures; None in files that people write."""
    fitted, constants = table.get(_FITTED_TO), table.get(_CONSTANTS, {})
    if fitted is None and not constants:
        return None
    where = f"{path} [{name}.{_CONSTANTS}]"
    if not isinstance(constants, dict) or not isinstance(fitted, dict | None):
        raise SliceError(
            f"{_CONSTANTS} and {_FITTED_TO} must be tables", where=f"{path} [{name}]", fix="write the file again"
        )
    for constant, value in constants.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_CONSTANT:
            raise SliceError(
                f"{constant} must be a number above 0 and at most {_LARGEST_CONSTANT:g}, not {value!r}", where=where
            )
    return Calibration(
        file=str(path),
        profile=str((fitted or {}).get("profile", "unknown")),
        figures=tuple(figures),
        constants=tuple((constant, float(value)) for constant, value in constants.items()),
    )


def _document(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SliceError(
            f"{path} cannot be read",
            why=str(error),
            fix=say("pass ", Option("chip-override", ["NAME=VALUE"]), " or a TOML file"),
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SliceError(
            f"{path} is not valid TOML", why=str(error), fix="write lines such as hbm_bytes_per_s = 750e9"
        ) from error


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _checked(values: Mapping[str, object], where: str) -> dict[str, float]:
    checked: dict[str, float] = {}
    for name, value in values.items():
        if name not in _FIGURES:
            raise SliceError(
                f"{name} is not a figure of a chip",
                where=where,
                fix=did_you_mean(name, _FIGURES, f"the figures are {', '.join(_FIGURES)}"),
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _LARGEST:
            raise SliceError(f"{name} must be a number from 1 to {_LARGEST:g}, not {value!r}", where=where)
        if _is_whole(name) and value != int(value):
            raise SliceError(f"{name} must be a whole number, not {value!r}", where=where)
        checked[name] = float(value)
    return checked


def _is_whole(name: str) -> bool:
    return str(_FIGURES[name]).startswith("int")
