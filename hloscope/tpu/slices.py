"""Slices and their names, without JAX or libtpu.

Which blocks of chips a slice may have is a table: libtpu cannot answer that, it lays out any block, `v5e:6x6` included.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import combinations, product, zip_longest
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np

from hloscope.base.errors import Option, SliceError, did_you_mean, say
from hloscope.tpu.chips import ALTERNATIVES, CHIPS, DEFAULT_CHIP, find_chip, find_nearest_chips
from hloscope.tpu.generation import Calibration, Chip, Constants, Shape

_NAME = (
    r"(?:(?P<count>\d{{1,9}})\s*\*\s*)?(?P<generation>[a-z][\w -]*?{numbered})\s*"
    r"(?:[:-]\s*(?P<shape>\d{{1,9}}(?:\s*x\s*\d{{1,9}})+)|-(?P<number>\d{{1,9}})|:\s*(?P<edge>\d{{1,9}}))?"
)
"""The name of a slice; some generations have spellings that begin with a digit."""

_TWISTED = "_twisted"
_HOW_TO_NAME = "write a block such as v5e:2x4, a size such as v5e-8, several slices as 2*v5e:2x4, cpu:8 or attached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The devices that a program runs on: one or more equal TPU slices, simulated CPU devices, or the attached devices.

    Attributes:
        chip: TPU generation; None for CPU devices and attached ones.
        shape: Number of chips along each physical axis of one slice; for CPU devices their number; empty for attached
            ones.
        slice_count: Number of slices, connected by the data-center network.
    """

    chip: Chip | None = None
    shape: Shape = ()
    slice_count: int = 1

    def __post_init__(self) -> None:
        if self.slice_count < 1:
            raise SliceError(
                f"{self.slice_count} is not a number of slices", fix="use a count of 1 or more, such as 2*v5e:2x4"
            )
        if self.chip is not None and not is_slice_shape(self.chip, self.shape):
            raise SliceError(
                f"no {self.chip.name} slice has the shape {format_shape(self.shape)}",
                why=f"{self.chip.name} comes in blocks of {_format_offer(self.chip)}",
                fix=_propose(self.chip, find_nearest_shapes(self.chip, prod(self.shape), self.shape)),
            )
        if self.chip is None and self.shape and (len(self.shape) != 1 or self.shape[0] < 1):
            raise SliceError("simulated CPU devices need a number of 1 or more", fix="write, for example, cpu:8")

    @property
    def name(self) -> str:
        """The normalised name; `parse_slice` reads it back to an equal slice."""
        if self.is_attached:
            return "attached"
        single = self.libtpu_topology_name or f"cpu:{self.shape[0]}"
        return single if self.slice_count == 1 else f"{self.slice_count}*{single}"

    @property
    def is_attached(self) -> bool:
        """True for the devices of this machine, whose number only JAX knows."""
        return self.chip is None and not self.shape

    @property
    def chip_count(self) -> int:
        """Chips in all slices.

        Raises:
            SliceError: This is not a TPU slice.
        """
        if self.chip is None:
            raise SliceError(
                f"{self.name} has no TPU chips to count", fix="use chip_count only where `chip` is not None"
            )
        return prod(self.shape) * self.slice_count

    @property
    def devices_per_slice(self) -> int:
        """JAX devices of one slice.

        Raises:
            SliceError: This is `attached`.
        """
        if self.is_attached:
            raise SliceError("only JAX knows how many devices are attached", fix="call jax.device_count()")
        return prod(self.shape) * (1 if self.chip is None else self.chip.devices_per_chip)

    @property
    def device_count(self) -> int:
        """JAX devices of all slices.

        Raises:
            SliceError: This is `attached`.
        """
        return self.devices_per_slice * self.slice_count

    def can_be_used_in_part_by(self, device_count: int) -> bool:
        """True if a program for fewer devices is compiled for a part of this: no smaller slice holds it, none fits."""
        if self.chip is None or self.slice_count > 1 or not 0 < device_count < self.device_count:
            return False
        most_chips = self.chip.max_chips_used_in_part
        if most_chips is not None and self.chip_count > most_chips:
            return False
        return find_smallest_slice(device_count, self.chip.name).device_count == self.device_count

    @property
    def libtpu_topology_name(self) -> str | None:
        """The `topology_name` of one slice for `jax.experimental.topologies.get_topology_desc`; None without a TPU."""
        return None if self.chip is None else f"{self.chip.topology_prefix}:{format_shape(self.shape)}"

    @property
    def chips_per_host_bounds(self) -> tuple[int, int, int] | None:
        """The host's block of chips where the usual one does not divide the slice; None elsewhere.

        JAX 0.10's libtpu refuses blocks below one host without it; JAX 0.12's makes them either way.
        """
        if self.chip is None:
            return None
        edges = pad_shape(self.shape)
        divisible = all(edge % host == 0 for edge, host in zip(edges, self.chip.host_bounds, strict=True))
        return None if divisible else edges

    @property
    def topology_kwargs(self) -> dict[str, str | int | list[int] | list[bool]]:
        """Keyword arguments for `get_topology_desc` besides the name and the platform.

        `wrap` says which axes are closed. libtpu closes none on 7x unless told, and then compiles collectives over
        open lines (`ICI_RING_DIM_Y_MESH`) where the real slice has rings (`ICI_RING_DIM_Y_TORUS`).
        """
        kwargs: dict[str, str | int | list[int] | list[bool]] = {}
        if self.chip is not None and self.chip.chip_config_name is not None:
            kwargs["chip_config_name"] = self.chip.chip_config_name
        if self.chips_per_host_bounds is not None:
            kwargs["chips_per_host_bounds"] = list(self.chips_per_host_bounds)
        if any(self.wraparound()):
            kwargs["wrap"] = [*self.wraparound(), *([False] * (3 - len(self.shape)))]
        if self.slice_count > 1:
            kwargs["num_slices"] = self.slice_count
        return kwargs

    def wraparound(self) -> tuple[bool, ...]:
        """The physical axes of one slice, each True if it is closed to a ring; empty without a TPU.

        2D: an axis is closed when it is as long as the pod's edge. 3D: every axis is closed once the slice is made of
        whole cubes, and none below that.

        Source: the scaling book, chapter on TPUs; Google Cloud's v4 and v5p pages; the environment that Google
        Kubernetes Engine's TPU device plugin sets (`TPU_TOPOLOGY_WRAP`).
        """
        if self.chip is None:
            return ()
        size = self.chip.wraparound_size
        if self.chip.torus_dimensions == 2:
            return tuple(edge == size for edge in self.shape)
        return (all(edge % size == 0 for edge in self.shape),) * len(self.shape)


def parse_slice(text: str) -> Slice:
    """Reads the name of a slice.

    `v5e:2x4` is a block of chips, `v5e-8` (or `v5litepod-8`, `v5p-8`, `tpu7x-8`) a size in the unit that Google's
    names use: TensorCores for v2, v3, v4, v5p and 7x, chips for v5e and v6e. `2*v5e:2x4` is two slices, `cpu:8` eight
    simulated CPU devices, `attached` whatever devices JAX finds.

    Raises:
        SliceError: The name is invalid, the generation is unknown, or it has no such block.
    """
    match = re.fullmatch(_name_pattern(), text.strip(), re.IGNORECASE)
    if match is None:
        plain, twisted, rest = text.strip().partition(_TWISTED)
        is_twisted = bool(plain and twisted and not rest)
        raise SliceError(
            f'"{text}" is not a slice',
            why="twisted tori are not supported" if is_twisted else None,
            fix=f"use the plain torus, {plain}" if is_twisted else _HOW_TO_NAME,
        )
    count = 1 if match["count"] is None else int(match["count"])
    generation = match["generation"].strip()
    if text.strip().lower() == "attached":
        return Slice()
    if generation.lower() == "cpu":
        return _cpu_slice(match, text)
    known = _chip_of(generation, match)
    if match["shape"] is not None:
        return Slice(
            chip=known, shape=tuple(int(edge) for edge in match["shape"].lower().split("x")), slice_count=count
        )
    if match["number"] is None:
        example = find_nearest_shapes(known, int(match["edge"] or 8))[0]
        raise SliceError(
            f'"{text}" does not name a block of chips',
            why=f"{known.name} comes in blocks of {_format_offer(known)}",
            fix=f"write, for example, {_format_with_chips(known, example)}",
        )
    return Slice(chip=known, shape=_shape_of_size(known, int(match["number"]), text), slice_count=count)


def _name_pattern() -> str:
    numbered = [name for chip in CHIPS for name in chip.spellings if name[0].isdigit()]
    return _NAME.format(numbered="".join(f"|{re.escape(name)}" for name in numbered))


def _cpu_slice(match: re.Match[str], text: str) -> Slice:
    if match["shape"] is not None or match["count"] is not None:
        raise SliceError(
            f'"{text}" is not a slice',
            why="simulated CPU devices have only a number, no shape and no slices",
            fix="write, for example, cpu:8",
        )
    number = match["edge"] or match["number"]
    if number is None:
        raise SliceError(f'"{text}" does not say how many CPU devices to simulate', fix="write, for example, cpu:8")
    return Slice(shape=(int(number),))


def _chip_of(generation: str, match: re.Match[str]) -> Chip:
    try:
        return find_chip(generation)
    except SliceError as error:
        before, after = match.string[: match.start("generation")], match.string[match.end("generation") :]
        near = find_nearest_chips(generation)
        if not after:
            after = next((f":{format_shape(find_nearest_shapes(guess, 8)[0])}" for guess in near), "")
        guesses = [f"{before}{guess.name}{after}" for guess in near]
        fitting = [guess for guess in guesses if _can_be_read(guess)] or guesses
        error.fix = f"did you mean {' or '.join(fitting)}?" if fitting else _HOW_TO_NAME
        raise


def _can_be_read(text: str) -> bool:
    try:
        parse_slice(text)
    except SliceError:
        return False
    return True


def _shape_of_size(known: Chip, number: int, text: str) -> Shape:
    cores = known.cores_per_chip
    shape = find_shape(known, number // cores) if number % cores == 0 else None
    if shape is not None:
        return shape
    unit = f"TensorCores, {cores} per chip" if cores > 1 else "chips"
    raise SliceError(
        f'there is no {known.name} slice of the size "{text}"',
        why=f"the number counts {unit}; {known.name} comes in blocks of {_format_offer(known)}",
        fix=_propose(known, find_nearest_shapes(known, number // cores)),
    )


def _propose(known: Chip, shapes: tuple[Shape, ...]) -> str:
    *others, last = (_format_with_chips(known, shape) for shape in shapes)
    return f"use {', '.join(others)} or {last}"


def _format_with_chips(known: Chip, shape: Shape) -> str:
    chips = prod(shape)
    return f"{known.topology_prefix}:{format_shape(shape)} ({chips:,} {'chip' if chips == 1 else 'chips'})"


def find_smallest_slice(device_count: int, chip: str = DEFAULT_CHIP.name) -> Slice:
    """The smallest single slice that shows JAX `device_count` devices: exactly as many if possible, else more.

    Args:
        device_count: Devices that the mesh needs.
        chip: The TPU generation, in any spelling.

    Raises:
        SliceError: The generation is unknown, `device_count` is not positive, or no single slice is that large.
    """
    known = find_chip(chip)
    if device_count < 1:
        raise SliceError(f"{device_count} is not a number of devices", fix="use a number of 1 or more")
    chips = -(-device_count // known.devices_per_chip)
    shape = find_shape(known, chips) or next((block for block in list_shapes(known) if prod(block) >= chips), None)
    if shape is not None:
        return Slice(chip=known, shape=shape)
    count = -(-chips // known.max_slice_chips)
    whole = find_nearest_shapes(known, known.max_slice_chips, limit=1)[0]
    several = f"{count}*{known.topology_prefix}:{format_shape(whole)}"
    held = count * prod(whole) * known.devices_per_chip
    fix = f"name several, such as {several}" if held == device_count else f"use {held:,} devices, as {several} has"
    raise SliceError(
        f"no single {known.name} slice has {device_count:,} devices",
        why=f"the largest has {known.max_slice_chips * known.devices_per_chip:,}",
        fix=f"{fix}, or another generation",
    )


def find_fitting_slice(device_count: int, chip: str) -> Slice | None:
    """The slice for a mesh of so many devices: of this generation if possible, several if need be, or None."""
    known = find_chip(chip)
    largest = known.max_slice_chips * known.devices_per_chip
    if device_count > largest:
        shape = find_nearest_shapes(known, known.max_slice_chips, limit=1)[0]
        return None if device_count % largest else Slice(chip=known, shape=shape, slice_count=device_count // largest)
    for generation in (chip, *(other.name for other in ALTERNATIVES)):
        found = find_smallest_slice(device_count, generation)
        if found.device_count == device_count or found.can_be_used_in_part_by(device_count):
            return found
    return None


@lru_cache(maxsize=16)
def list_shapes(chip: Chip) -> tuple[Shape, ...]:
    """Every block of `chip` in one orientation: fewest chips first, then the most cube-like.

    3D generations offer all blocks of cubes up to their largest slice, and some blocks below one cube.

    Source: Google Cloud, TPU v4 and v5p pages.
    """
    shapes = (*chip.slice_shapes, *(_cuboids(chip) if chip.torus_dimensions == 3 else ()))
    return tuple(sorted(shapes, key=lambda shape: (prod(shape), sum(shape))))


def _cuboids(chip: Chip) -> Iterator[Shape]:
    edge = chip.wraparound_size
    cubes = chip.max_slice_chips // edge**3
    for first in range(1, cubes + 1):
        for second in range(first, cubes // first + 1):
            for third in range(second, cubes // (first * second) + 1):
                yield (edge * first, edge * second, edge * third)


def is_slice_shape(chip: Chip, shape: Shape) -> bool:
    """True if `chip` comes in blocks of `shape`, in this or any other orientation."""
    return tuple(sorted(shape)) in {tuple(sorted(known)) for known in list_shapes(chip)}


def find_shape(chip: Chip, chip_count: int) -> Shape | None:
    """The block with exactly `chip_count` chips, the most cube-like of several, or None.

    Source: Google Cloud, "TPU types and topologies": the default for a chip count is the most cube-like block.
    """
    return next((shape for shape in list_shapes(chip) if prod(shape) == chip_count), None)


def find_nearest_shapes(chip: Chip, chip_count: int, shape: Shape | None = None, limit: int = 3) -> tuple[Shape, ...]:
    """The blocks nearest to a wish: by number of chips, then by how much their edges differ.

    Args:
        chip: The generation.
        chip_count: Chips wished for.
        shape: The edges wished for, if they were said.
        limit: How many to return at most.
    """
    wished = sorted(shape or (), reverse=True)

    def distance(known: Shape) -> tuple[int, int, int]:
        pairs = zip_longest(wished, sorted(known, reverse=True), fillvalue=1)
        return abs(prod(known) - chip_count), sum(abs(left - right) for left, right in pairs), sum(known)

    return tuple(sorted(list_shapes(chip), key=distance)[:limit])


def pad_shape(shape: Shape) -> tuple[int, int, int]:
    """The edges of a block as of one in 3D: an axis that it does not have is 1 long."""
    first, second, third = (*shape, *(1,) * (3 - len(shape)))
    return first, second, third


def format_shape(shape: Iterable[int]) -> str:
    """`2x4`."""
    return "x".join(str(edge) for edge in shape)


def _format_offer(chip: Chip) -> str:
    """The blocks of `chip` in words, for an error."""
    listed = ", ".join(format_shape(shape) for shape in chip.slice_shapes)
    if chip.torus_dimensions == 2:
        return listed
    edge, most = chip.wraparound_size, chip.max_slice_chips
    return f"{listed}, and blocks whose three edges are multiples of {edge}, up to {most:,} chips"


# ---- the devices of a slice as JAX lists them there, and the order in which `jax.make_mesh` lays a mesh over them

Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """One device of a slice.

    Attributes:
        id: Its number, which counts places and not the order in which `jax.devices()` lists it.
        coords: The place of its chip.
        core_on_chip: Which of its chip's devices it is.
        slice_index: The slice that it is in.
        host: The host that its chip belongs to, counted through all slices.
    """

    id: int
    coords: Place
    core_on_chip: int
    slice_index: int
    host: int


def list_devices(chosen: Slice) -> tuple[SliceDevice, ...]:
    """The devices of a TPU slice in the order of `jax.devices()`: host after host, as the first axis goes fastest.

    Args:
        chosen: A TPU slice, or several.

    Returns:
        Nothing for simulated CPU devices and attached ones.

    Source: libtpu's topology descriptions, with which a test compares them.
    """
    if chosen.chip is None:
        return ()
    edges = pad_shape(chosen.shape)
    block = chosen.chips_per_host_bounds or chosen.chip.host_bounds
    hosts = [corner for corner in _places(edges) if all(at % edge == 0 for at, edge in zip(corner, block, strict=True))]
    found = []
    for slice_index in range(chosen.slice_count):
        for number, corner in enumerate(hosts):
            for inside in _places(block):
                x, y, z = (start + at for start, at in zip(corner, inside, strict=True))
                chip = (z * edges[1] + y) * edges[0] + x
                for core in range(chosen.chip.devices_per_chip):
                    found.append(
                        SliceDevice(
                            id=slice_index * chosen.devices_per_slice + chip * chosen.chip.devices_per_chip + core,
                            coords=(x, y, z),
                            core_on_chip=core,
                            slice_index=slice_index,
                            host=slice_index * len(hosts) + number,
                        )
                    )
    return tuple(found)


def _places(edges: Place) -> list[Place]:
    """All places of a block, the first axis fastest."""
    return [(x, y, z) for z, y, x in product(*map(range, reversed(edges)))]


def find_device_order(chosen: Slice, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Device ids of one slice in row-major mesh order.

    Args:
        chosen: A TPU slice; of several, one of them is ordered.
        mesh_shape: Sizes of the mesh axes within the slice.

    Returns:
        None when the mesh does not follow the physical axes, so that `jax.make_mesh` refuses it, or when it has
        another number of devices than the slice.

    Source: `create_device_mesh` in jax/_src/mesh_utils.py of JAX 0.12, against which a test compares it.
    """
    chip = chosen.chip
    if chip is None or prod(mesh_shape) != chosen.devices_per_slice:
        return None
    by_hand = None if chip.order_devices is None else chip.order_devices(chosen.shape, mesh_shape)
    return by_hand or _along_axes(pad_shape(chosen.shape), chip.devices_per_chip, mesh_shape)


def _along_axes(edges: Place, cores: int, mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Each mesh axis over whole physical axes, the minor mesh axis choosing first and as many of them as it can."""
    ids = np.arange(prod(edges) * cores).reshape(*reversed(edges), cores).transpose(2, 1, 0, 3)
    physical = ids if cores > 1 else ids[..., 0]
    left = list(physical.shape)
    taken: list[tuple[int, ...]] = []
    for size in reversed(mesh_shape):
        axes = _axes_for(size, left)
        if axes is None:
            return None
        taken.insert(0, axes)
        left = [0 if axis in axes else edge for axis, edge in enumerate(left)]
    order = [axis for axes in taken for axis in axes]
    rest = [axis for axis in range(physical.ndim) if axis not in order]
    return tuple(int(device) for device in physical.transpose(*order, *rest).reshape(-1))


def _axes_for(size: int, left: Sequence[int]) -> tuple[int, ...] | None:
    for count in range(len(left), 0, -1):
        for axes in combinations(range(len(left)), count):
            if prod(left[axis] for axis in axes) == size:
                return axes
    return () if size == 1 else None


# ---- figures of a chip that the user knows better than the table

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
