"""The two stages of a compile, as libtpu's dumps show them: `scheduled`, then `compiled`.

libtpu writes the scheduled module, with its layouts, memory spaces and buffers, before it makes machine code of it,
which takes most of a large compile. Code generation adds to the `backend_config` of instructions, and changes nothing
else.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from hloscope.base.protobuf import read_at_path
from hloscope.model.capture import CompiledProgram
from hloscope.model.vocabulary import CompileStage

_OPTIONS: Mapping[str, Any] = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_as_long_text": True,
    "xla_dump_hlo_pass_re": "shardy-xla|spmd-partitioning",
}
PARTITIONED_DUMP = re.compile(r"after_(tpu-)?spmd-partitioning\.")
_ALLOCATION = re.compile(r"^allocation \d+: size (?P<size>\d+)(?:, color (?P<color>\d+))?(?P<roles>.*):$", re.MULTILINE)
_ROLES = {
    "parameter": "argument_size_in_bytes",
    "maybe-live-out": "output_size_in_bytes",
    "preallocated-temp": "temp_size_in_bytes",
}
_ROOM_BYTES = 1 << 20
_FINAL = ("*after_codegen.txt", "*after_optimizations.txt")
_OPTIMIZED = "after_optimizations.txt"
_ASSIGNMENT = "after_optimizations-buffer-assignment.txt"
_LIVE_RANGES = "after_optimizations-live-range.txt"
_USAGE = "after_optimizations-memory-usage-report.txt"
_SCHEDULED = (_OPTIMIZED, _ASSIGNMENT, _LIVE_RANGES, _USAGE)
_HBM_TOTAL = re.compile(r"color=0\)\nTotal bytes: (\d+)")
_UNUSUAL = re.compile(r"[^\w.\-]")
"""Characters that XLA replaces in the names of files. Source: `SanitizeFileName` in xla/service/dump.cc."""
_POLL_S = 0.02

_BEFORE_PARTITIONER = re.compile(r"before_(tpu-)?spmd-partitioning\.")
_SHARDING = ", sharding="
_ARRAY = re.compile(r"\w\[")
_LINE = r"(?P<shape>\(.*\)|\S+)"
_PARAMETER = re.compile(rf"^  %?\S+ = {_LINE} parameter\((?P<number>\d+)\)(?P<rest>.*)$", re.MULTILINE)
_ROOT = re.compile(rf"^  ROOT %?\S+ = {_LINE} [a-z][\w\-]*\((?P<rest>.*)$", re.MULTILINE)
_NAMED_SHARDING = re.compile(
    r"\{mesh\[(?P<mesh>'[^'\]]+'=\d+(?:, ?'[^'\]]+'=\d+)*)\], "
    r"\[(?P<dimensions>(?:\{(?:'[^'}]+'(?:, ?)?)*\}(?:, )?)*)\](?:, replicated=\{[^}:]*\})?\}"
)
_AXIS_SIZE, _DIMENSION, _AXIS = re.compile(r"'([^']+)'=(\d+)"), re.compile(r"\{([^}]*)\}"), re.compile(r"'([^']+)'")
_OP_SHARDING = (3, 2, 40)
"""`HloModuleProto.computations`, `.instructions`, `.sharding`. Source: xla/service/hlo.proto."""
_TUPLE_SHARDINGS = 5
"""`OpSharding.tuple_shardings`. Source: xla/xla_data.proto."""


@contextmanager
def make_dump_folder(
    options: Mapping[str, Any], within: str | None = None
) -> Iterator[tuple[dict[str, Any], Path | None]]:
    """Compiler options that make one compile write its dumps, and their folder, which exists within the block.

    Each compile has its own folder, because XLA numbers the modules of a process. Users who set `xla_dump_to`
    themselves keep their dumps, and there is no folder.

    Source: XLA's debug options in xla.proto; a pass pattern selects the text before and after the passes it matches.

    Args:
        options: The user's options.
        within: The folder to make it in, with which its owner deletes it if this process cannot; None for any.
    """
    if "xla_dump_to" in options:
        yield dict(options), None
        return
    with tempfile.TemporaryDirectory(prefix="hloscope-", dir=within, ignore_cleanup_errors=True) as folder:
        yield {**options, **_OPTIONS, "xla_dump_to": folder}, Path(folder)


def find_full_temporary_folder() -> str | None:
    """The folder for temporary files, if it is full; otherwise None."""
    folder = tempfile.gettempdir()
    try:
        return folder if shutil.disk_usage(folder).free < _ROOM_BYTES else None
    except OSError:
        return None


def is_compiled_dump(folder: Path | None, text: str) -> bool:
    """Returns whether a text of `read_dumps` is the whole module after code generation, which is dumped for TPUs."""
    return folder is not None and any(folder.glob(_FINAL[0])) and is_whole_module(text)


def read_dumps(folder: Path | None) -> CompiledProgram:
    """Reads the relevant dumps of a compile; the text is empty if the program was not dumped."""
    if folder is None:
        return CompiledProgram(text="", memory_bytes={})
    from hloscope.compile.buffers import find_hbm_peak  # numpy, which the table of versions does without

    final = next((found for pattern in _FINAL if (found := sorted(folder.glob(pattern)))), [])
    assignment = _read_largest(folder.glob(f"*{_ASSIGNMENT}")) or ""
    return CompiledProgram(
        text=_read_largest(final) or "",
        memory_bytes=sum_assignment_memory(assignment),
        hbm_peak=find_hbm_peak(assignment, _read_largest(folder.glob(f"*{_LIVE_RANGES}")) or ""),
        **_read_earlier(folder),
    )


def _read_earlier(folder: Path) -> dict[str, Any]:
    """The texts of the stages before the scheduled one, by the names of the fields of `CompiledProgram`."""
    partitioned = [path for path in folder.glob("*.txt") if PARTITIONED_DUMP.search(path.name)]
    return {
        "before_propagation": _read_largest(folder.glob("shardy/*/01.before_propagation.mlir")),
        "partitioned": _read_largest(partitioned),
    }


# ---- the versions of libtpu whose scheduled stage was compared with the compiled one


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCheck:
    """A comparison of both stages with one version of libtpu, as `nox -s stages` makes it.

    Attributes:
        date: Its date.
        pairs: The number of programs, each on one generation, of which both stages were read.
        exceptions: The programs whose facts differed.
        added: The keys that code generation added to the configurations of instructions.
    """

    date: date
    pairs: int
    exceptions: Sequence[str]
    added: Sequence[str]


@cache
def read_stage_checks() -> Mapping[str, StageCheck]:
    """The comparisons by version of libtpu."""
    text = Path(__file__).with_name("stages.toml").read_text(encoding="utf-8")
    return {version: StageCheck(**found) for version, found in tomllib.loads(text)["libtpu"].items()}


def find_stage_check(libtpu_version: str | None) -> StageCheck | None:
    """The comparison for a version of libtpu; None if it was never made: then a program is always compiled in full."""
    return read_stage_checks().get(libtpu_version or "")


# ---- the scheduled stage, while the compiler still makes machine code


@contextmanager
def watch_schedule(
    folder: Path | None, module_name: str, use: Callable[[CompiledProgram], None] | None
) -> Iterator[None]:
    """Reads the scheduled module while the block compiles it, as soon as all of its files are whole.

    Args:
        folder: The folder of the dumps; None without dumps.
        module_name: The name of the module: a compile may also write dumps of small modules of its own.
        use: Called with the scheduled program, once, in another thread, and not after the block; None to read nothing.
    """
    if folder is None or use is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(folder, module_name, use, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(folder: Path, module_name: str, use: Callable[[CompiledProgram], None], ended: threading.Event) -> None:
    with suppress(ValueError, RuntimeError):  # a sharding that cannot be read: the program is compiled to the end
        while not ended.wait(_POLL_S):
            with suppress(OSError):
                found = read_schedule(folder, module_name)
                if found is not None:
                    use(found)
                    return


def read_schedule(folder: Path, module_name: str) -> CompiledProgram | None:
    """Reads the scheduled module of a compile and its buffers; None until all of their files are whole."""
    from hloscope.compile.buffers import find_hbm_peak, lists_every_value

    prefix = f"module_*.{_UNUSUAL.sub('_', module_name)}.*"
    found = {ending: next(folder.glob(prefix + ending), None) for ending in _SCHEDULED}
    if None in found.values():
        return None
    texts = {ending: path.read_text(encoding="utf-8", errors="replace") for ending, path in found.items() if path}
    text, assignment, live_ranges = texts[_OPTIMIZED], texts[_ASSIGNMENT], texts[_LIVE_RANGES]
    memory_bytes, said = sum_assignment_memory(assignment), _HBM_TOTAL.search(texts[_USAGE])
    if not is_whole_module(text) or "  Live ranges at" not in live_ranges:
        return None
    if said is None or int(said[1]) != sum_hbm_bytes(assignment) or not lists_every_value(assignment, live_ranges):
        return None
    earlier = _read_earlier(folder)
    parameters, outputs = _read_shardings(folder)
    return CompiledProgram(
        text=text,
        stage=CompileStage.SCHEDULED,
        memory_bytes=memory_bytes,
        hbm_peak=find_hbm_peak(assignment, live_ranges),
        parameter_shardings=parameters,
        output_shardings=outputs,
        **earlier,
    )


def is_whole_module(text: str) -> bool:
    """Returns whether a dump holds its whole module: the entry computation comes last, and an empty line ends it."""
    return text.endswith("\n}\n\n") and "\nENTRY " in text


# ---- the shardings of parameters and outputs, which the compiler decides just before it partitions a module


def _read_shardings(folder: Path) -> tuple[tuple[bytes, ...] | None, tuple[bytes, ...] | None]:
    """A serialized `OpSharding` for each parameter and each output; None for a module that was not partitioned."""
    text = _read_largest(path for path in folder.glob("*.txt") if _BEFORE_PARTITIONER.search(path.name))
    if text is None or not is_whole_module(text):
        return None, None
    entry = text[text.rindex("\nENTRY ") :]
    parameters = sorted(_PARAMETER.finditer(entry), key=lambda found: int(found["number"]))
    root = _ROOT.search(entry)
    if root is None:
        return None, None
    outputs = _parse_sharding(root["shape"], root["rest"])
    return (
        tuple(_parse_sharding(found["shape"], found["rest"]) for found in parameters),
        tuple(read_at_path(outputs, (_TUPLE_SHARDINGS,))) or (outputs,),
    )


def _parse_sharding(shape: str, attributes: str) -> bytes:
    """The serialized `OpSharding` in the printed attributes of an instruction.

    The partitioner takes an array without one for replicated. XLA's own parser reads it, as that of a module with
    nothing else in it.

    Source: `SpmdPartitioner::PreprocessSharding` of xla/service/spmd/spmd_partitioner.cc; outputs left open, at both
        stages.

    Raises:
        ValueError: It cannot be read.
    """
    from jaxlib import _hlo

    start = attributes.find(_SHARDING)
    if start >= 0:
        sharding = _spell_as_tiles(_cut_balanced(attributes[start + len(_SHARDING) :]))
    else:
        count = len(_ARRAY.findall(shape))
        sharding = f"{{{', '.join(['{replicated}'] * count)}}}" if shape.startswith("(") else "{replicated}"
    text = f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0), sharding={sharding} }}\n"
    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    found = next(read_at_path(bytes(module), _OP_SHARDING), None)
    if found is None:
        raise ValueError(sharding)
    return found


def _spell_as_tiles(sharding: str) -> str:
    """A printed sharding without the names of axes, as an executable has it: `{devices=[4,1,2]<=[8] …}`.

    JAX's own conversion ends the process on a named one: `HloSharding::subgroup_types` of XLA.

    Raises:
        ValueError: It names parts of axes, sums that are not taken, or an order of devices.
    """
    found = _NAMED_SHARDING.sub(lambda match: _make_tiles(match["mesh"], match["dimensions"]), sharding)
    if "mesh[" in found:
        raise ValueError(sharding)
    return found


def _make_tiles(mesh: str, dimensions: str) -> str:
    sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(mesh)}
    cuts = [_AXIS.findall(axes) for axes in _DIMENSION.findall(dimensions)]
    used = [axis for axes in cuts for axis in axes]
    if not used:
        return "{replicated}"
    rest = [axis for axis in sizes if axis not in used]
    tiles = [prod(sizes[axis] for axis in axes) for axes in cuts] + [prod(sizes[axis] for axis in rest)] * bool(rest)
    order = [list(sizes).index(axis) for axis in (*used, *rest)]
    devices = f"[{prod(sizes.values())}]"
    if order != sorted(order):
        devices = f"[{','.join(map(str, sizes.values()))}]T({','.join(map(str, order))})"
    replicated = " last_tile_dim_replicate" if rest else ""
    return f"{{devices=[{','.join(map(str, tiles))}]<={devices}{replicated}}}"


def _cut_balanced(text: str) -> str:
    """The text up to the brace that closes its first one."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[: index + 1]
    return text


def sum_assignment_memory(assignment: str) -> dict[str, int]:
    """Sums of a buffer assignment's allocations in the memory of color 0, the device's main memory.

    Source: `BufferAllocation::ToString` of xla/service/buffer_assignment.cc.
    """
    found = dict.fromkeys(("alias_size_in_bytes", *_ROLES.values()), 0)
    allocations = _find_hbm_allocations(assignment)
    for allocation in allocations:
        roles = [role for role in _ROLES if role in allocation["roles"]]
        for role in roles:
            found[_ROLES[role]] += int(allocation["size"])
        if len(roles) > 1 and "parameter" in roles:
            found["alias_size_in_bytes"] += int(allocation["size"])
    return found if allocations else {}


def sum_hbm_bytes(assignment: str) -> int:
    """The bytes of all of a buffer assignment's allocations in the device's main memory."""
    return sum(int(allocation["size"]) for allocation in _find_hbm_allocations(assignment))


def _find_hbm_allocations(assignment: str) -> list[re.Match[str]]:
    return [match for match in _ALLOCATION.finditer(assignment) if match["color"] in (None, "0")]


def _read_largest(paths: Iterator[Path] | list[Path]) -> str | None:
    """The text of the largest file: a compile may also write dumps of small modules of its own."""
    found = max(paths, key=lambda path: path.stat().st_size, default=None)
    return None if found is None else found.read_text(encoding="utf-8", errors="replace")
