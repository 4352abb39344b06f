"""The steps that run XLA's, libtpu's and Shardy's native code: pure functions of their arguments.

They run in a worker, and would run in any other process that has JAX: nothing here looks at the user's program, its
modules or its devices. The compiler's intermediate results are read from its dumps.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import takewhile
from math import prod
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from hloscope.base.environment import is_launcher
from hloscope.base.errors import CompileError, HbmError, HloscopeError, Option, SliceError, say
from hloscope.compile import operation_numbers
from hloscope.compile.estimates import Estimate, estimate_cost
from hloscope.compile.sharding_change import ModuleEdit
from hloscope.compile.stages import (
    find_full_temporary_folder,
    is_compiled_dump,
    make_dump_folder,
    read_dumps,
    watch_schedule,
)
from hloscope.model.analysis import count_constant_bytes
from hloscope.model.capture import CompiledProgram, CompileRequest, DeviceLayout, ShardyModule
from hloscope.tpu.slices import Slice, parse_slice

# ---- the compiler's diagnostics: its log on file descriptor 2, its warnings, and its errors as messages

_DIAGNOSTIC = re.compile(r"^[WEF]\d{4} .*?\] (\[SPMD\] .*)$")
_DIAGNOSTIC_CHARS = 2000


@dataclass(slots=True)
class CapturedStderr:
    """The text written to file descriptor 2; complete after the end of the `with` block."""

    text: str = ""

    def diagnostics(self, shown: Callable[[str], str] = str) -> tuple[str, ...]:
        """The partitioner's own warnings, each once, without libtpu's start-up noise.

        Args:
            shown: Converts a warning to the words for users.

        Source: XLA's spmd_partitioner.cc, whose messages to the user begin with `[SPMD]`.
        """
        found = (_DIAGNOSTIC.match(line) for line in self.text.splitlines())
        return tuple(dict.fromkeys(shown(match.group(1))[:_DIAGNOSTIC_CHARS] for match in found if match))


is_stderr_readable = False
"""Set in a worker whose descriptor 2 is a file that its owner reads too."""


@contextmanager
def capture_stderr() -> Iterator[CapturedStderr]:
    """Captures the text that is written to file descriptor 2, where C++ libraries write directly.

    A worker's descriptor 2 is a file that it shares with the process that started it, and is read in place: the words
    of a dying compiler are preserved. In other processes it is redirected to a temporary file.
    """
    captured = CapturedStderr()
    _flush()
    with nullcontext(2) if is_stderr_readable else _redirect_stderr() as descriptor:
        start = 0 if descriptor is None else os.lseek(descriptor, 0, os.SEEK_END)
        try:
            yield captured
        finally:
            _flush()
            if descriptor is not None:
                size = os.fstat(descriptor).st_size
                captured.text = os.pread(descriptor, max(0, size - start), start).decode("utf-8", errors="replace")


@contextmanager
def _redirect_stderr() -> Iterator[int | None]:
    """Redirects descriptor 2 to a temporary file, and yields it; None if there is no stderr to silence."""
    try:
        saved = os.dup(2)
    except OSError:
        yield None
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield sink.fileno()
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _flush() -> None:
    """Flushes Python's standard error, if there is one that can still be written to."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


_LOCATIONS = re.compile(r"[ \t]*Suspected Python Code Location:\s*\n(?P<frames>(?:[ \t]+\S.*(?:\n|$))*)")
_FRAME = re.compile(r"^\s*(?P<file>\S.*?):(?P<line>\d+)(?::\d+)? \[(?P<function>.*)\]$", re.MULTILINE)
"""Frames, the innermost first."""


@contextmanager
def translate_compiler_errors(chosen: Slice) -> Iterator[None]:
    """Turns the compiler's exceptions into one message in its own words.

    Raises:
        HbmError: The program does not fit in HBM.
        CompileError: In place of any other exception.
    """
    try:
        yield
    except HloscopeError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        if "No such compile option" in text:
            option = re.search(r"'(\w+)'", text)
            raise CompileError(
                f"the compiler has no option {option.group(1) if option else text!r}",
                fix=say(
                    "check the spelling of ", Option("compiler-option"), "; options differ between libtpu versions"
                ),
            ) from error
        if "Ran out of memory" in text or "RESOURCE_EXHAUSTED" in text:
            raise HbmError(
                f"the program does not fit in the HBM of {chosen.name}",
                why=_describe_hbm(text, chosen),
                fix=say(
                    "shard more, donate inputs, rematerialize, or name a larger chip or slice (", Option("slice"), ")"
                ),
            ) from error
        words, where = _split_location(text)
        raise CompileError(f"the compiler rejects the program for {chosen.name}", where=where, why=words) from error


def _split_location(text: str) -> tuple[str, str | None]:
    """The compiler's words without the stack printed below them, and the innermost line of the user's in that stack."""
    found = _LOCATIONS.search(text)
    if found is None:
        return text, None
    words = "\n".join(filter(str.strip, (text[: found.start()] + text[found.end() :]).splitlines()))
    frames = takewhile(lambda frame: not is_launcher(frame["file"]), _FRAME.finditer(found["frames"]))
    first = next((frame for frame in frames if "/site-packages/" not in frame["file"]), None)
    return words, None if first is None else f"{_format_file(first['file'])}:{first['line']} in {first['function']}"


def _format_file(file: str) -> str:
    below = os.path.relpath(file)
    return file if below.startswith("..") else below


def _describe_hbm(text: str, chosen: Slice) -> str:
    words = re.sub(
        r"^RESOURCE_EXHAUSTED: |E\d+: \w+: |\s*HLO module: \S+|\s*See https://\S+ for more details\.", "", text
    )
    if chosen.chip is None:
        return words
    return f"{words.strip()}\nthe chip has {chosen.chip.hbm_bytes_per_device / 2**30:g} GiB per device"


# ---- the devices of a slice, which need not be attached, and the device of each partition of a program


def find_physical_devices(chosen: Slice, layout: DeviceLayout, notes: list[str]) -> list[Any]:
    """The device of each partition.

    Args:
        chosen: A TPU slice, or simulated CPU devices that this process was started with.
        layout: The program's requirements for its devices.
        notes: Receives a sentence for each choice that the user's own `make_mesh` would not make.

    Raises:
        SliceError: There is no libtpu on this machine, or it does not know the slice.
    """
    if chosen.chip is None:
        import jax

        simulated = jax.devices("cpu")
        return [simulated[number] for number in layout.simulated_ids or range(layout.device_count)]
    physical = find_topology_devices(chosen)
    if layout.simulated_ids is not None:
        return [physical[number] for number in layout.simulated_ids]
    if layout.mesh_shape is None:
        return choose_subset(physical, layout.device_count)
    laid_out = arrange_mesh(layout.mesh_shape, physical, layout.dcn_shape, notes)
    return laid_out if layout.positions is None else [laid_out[position] for position in layout.positions]


def find_topology_devices(chosen: Slice) -> list[Any]:
    """The devices of a TPU slice, from libtpu's ahead-of-time compiler.

    Raises:
        SliceError: There is no libtpu on this machine, or it does not know the slice.
    """
    from jax.experimental import topologies

    with capture_stderr() as stderr:
        try:
            topology = topologies.get_topology_desc(
                chosen.libtpu_topology_name, platform="tpu", **chosen.topology_kwargs
            )
            return list(topology.devices)
        except Exception as error:  # libtpu raises many types; each means that there is no such topology here
            failure = error
    require_libtpu(chosen)
    raise SliceError(
        f"libtpu cannot describe {chosen.name}",
        why=f"{type(failure).__name__}: {failure}\n{stderr.text.strip()[-500:]}".strip(),
        fix="check that libtpu is the version that jax[tpu] pins",
    )


def require_libtpu(chosen: Slice) -> None:
    """Checks that there is a TPU compiler, without loading it.

    Raises:
        SliceError: There is no TPU compiler.
    """
    if chosen.chip is None or os.environ.get("TPU_LIBRARY_PATH") or find_spec("libtpu") is not None:
        return
    raise SliceError(
        f"cannot compile for {chosen.name}: libtpu is not installed here",
        why="libtpu, which contains the TPU compiler, exists only for x86-64 Linux",
        fix=say(
            'on x86-64 Linux: pip install "jax[tpu]"; elsewhere HLO files can be read, and ',
            Option("slice", "cpu:N"),
            " compiles for simulated CPU devices",
        ),
    )


def arrange_mesh(
    mesh_shape: Sequence[int], devices: Sequence[Any], dcn_shape: Sequence[int] | None, notes: list[str]
) -> list[Any]:
    """Lays a logical mesh over physical devices in the order of `jax.make_mesh`.

    Args:
        mesh_shape: Sizes of the mesh axes, DCN included.
        devices: Devices of all slices; more than the mesh has if it is compiled for a subset.
        dcn_shape: The number of slices that each axis spans; None on one slice.
        notes: Receives a sentence for each choice that the user's own `make_mesh` would not make.

    Returns:
        Devices in row-major mesh order.
    """
    from jax.experimental import mesh_utils

    if dcn_shape is not None:
        within = [size // slices for size, slices in zip(mesh_shape, dcn_shape, strict=True)]
        one_slice = [device for device in devices if device.slice_index == devices[0].slice_index]
        splits = order_devices(within, one_slice) is None
        hybrid = mesh_utils.create_hybrid_device_mesh(
            within, list(dcn_shape), devices=devices, allow_split_physical_axes=splits
        )
        return list(hybrid.flat)
    if prod(mesh_shape) < len(devices):
        return choose_subset(devices, prod(mesh_shape))
    splits = order_devices(mesh_shape, devices) is None
    if splits:
        notes.append(
            f"a mesh of {tuple(mesh_shape)} does not follow the slice's physical axes: jax.make_mesh would reject it "
            "there; compiled with allow_split_physical_axes=True"
        )
    return list(mesh_utils.create_device_mesh(list(mesh_shape), devices=devices, allow_split_physical_axes=splits).flat)


def choose_subset(devices: Sequence[Any], count: int) -> list[Any]:
    """A number of devices of a slice: the first ones, unless libtpu would take that block for a slice of its own.

    For a program on 2x3 chips of v5e:2x4, libtpu makes rings of the whole slice's length, and ends the process.
    """
    chosen = list(devices)[:count]
    if 2 < count < len(devices):
        edges = [len({device.coords[axis] for device in chosen}) for axis in range(len(chosen[0].coords))]
        cores = len({device.core_on_chip for device in chosen})
        if prod(edges) * cores == count and len(devices) % count:
            chosen[-1] = devices[count]
    return chosen


def order_devices(mesh_shape: Sequence[int], devices: Sequence[Any]) -> list[Any] | None:
    """The devices in the order of `jax.make_mesh`; None if it refuses a mesh that splits an axis of the slice."""
    from jax.experimental import mesh_utils

    try:
        return list(mesh_utils.create_device_mesh(list(mesh_shape), devices=devices).flat)
    except (NotImplementedError, ValueError, AssertionError):
        return None


_NO_HBM_LIMIT = "xla_tpu_no_crash_on_oom"
_SAID_CHARS = 200
_DUMP = re.compile(r"_dump_to\b")
_SURE_HBM_SHARE = 0.9
"""The share of HBM beyond which the compiler's own verdict is awaited, because it keeps a part of HBM for itself. A
precaution: how near to the limit its verdict could be told from the assignment was not measured."""
_MEMORY_FIELD = re.compile(r"^(?!host_)\w+_in_bytes$")


def compile_program(
    program: CompileRequest, *, folder: str | None = None, report: Callable[[CompiledProgram], None] | None = None
) -> CompiledProgram:
    """Compiles a program; one that does not fit in HBM is compiled again without that limit.

    Args:
        program: The program.
        folder: The folder for the compiler's dumps, which its owner deletes; None for a temporary one.
        report: Called with the scheduled program, unless it is compiled before that is read or may not fit in HBM.

    Raises:
        HbmError: The program does not fit in HBM, and cannot be compiled without that limit either.
        CompileError: The compiler refuses the program or an option.
        SliceError: There is no libtpu here, or it does not know the slice.
    """
    from hloscope.compile import jax_private

    notes: list[str] = []
    begun, begun_cpu = monotonic(), process_time()
    devices = find_physical_devices(program.slice, program.layout, notes)
    module = jax_private.read_module_bytecode(program.module)
    is_numbered = not _is_dumped(program.options) and operation_numbers.number_operations(module)
    shown = operation_numbers.strip_message_numbers if is_numbered else str
    on_tpu = program.slice.chip is not None
    several = program.slice.slice_count > 1

    def add_devices(found: CompiledProgram) -> CompiledProgram:
        return replace(
            _separate_identities(found) if is_numbered else found,
            device_ids=tuple(device.id for device in devices) if on_tpu else (),
            slice_of_partition=tuple(device.slice_index for device in devices) if several else (),
            notes=(*notes, *found.notes),
            seconds=min(monotonic() - begun, process_time() - begun_cpu),
        )

    def report_scheduled(found: CompiledProgram) -> None:
        if report is not None and _surely_fits(found, program.slice):
            report(add_devices(found))

    run = partial(
        run_compile,
        partial(jax_private.compile_for, module, devices, program.settings, on_tpu=on_tpu),
        folder=folder,
        module_name=str(module.operation.attributes["sym_name"].value),
        shown=shown,
    )
    try:
        found = _compile_beyond_hbm(program, run, None if report is None else report_scheduled)
    except CompileError as error:
        error.why = None if error.why is None else shown(error.why)
        raise
    return add_devices(found)


def _surely_fits(found: CompiledProgram, chosen: Slice) -> bool:
    """Returns whether a scheduled program is far from the HBM limit, which the compiler checks only afterwards.

    The compiler counts large constants as code, so that they are not assigned.
    """
    constant_bytes = count_constant_bytes(found.text)
    if chosen.chip is None or found.hbm_peak is None or constant_bytes is None:
        return False
    assigned = found.hbm_peak.live_bytes - found.hbm_peak.temporary_bytes + found.hbm_peak.heap_bytes
    return assigned + constant_bytes <= _SURE_HBM_SHARE * chosen.chip.hbm_bytes_per_device


def _is_dumped(options: Mapping[str, str]) -> bool:
    """Returns whether the user dumps the compiler's work, where operation numbers must not appear.

    Flags of the environment may ask for other dumps than `xla_dump_to`, whose folder is replaced.
    """
    flags = (*options, os.environ.get("LIBTPU_INIT_ARGS", ""), os.environ.get("XLA_FLAGS", ""))
    return any(_DUMP.search(flag) for flag in flags)


def _compile_beyond_hbm(
    program: CompileRequest,
    run: Callable[..., CompiledProgram],
    report: Callable[[CompiledProgram], None] | None,
) -> CompiledProgram:
    """Compiles the program; if it does not fit in HBM, without a limit."""
    try:
        with translate_compiler_errors(program.slice):
            return run(program.options, report=report)
    except HbmError as error:
        if program.slice.chip is None or _NO_HBM_LIMIT in program.options:
            raise
        try:
            with translate_compiler_errors(program.slice):
                anyway = run({**program.options, _NO_HBM_LIMIT: "true"}, text_is_enough=True)
        except CompileError:
            raise error from None
        return replace(anyway, too_large=error.why)


def _separate_identities(found: CompiledProgram) -> CompiledProgram:
    """Removes the operation numbers from the texts, and records them by instruction; Shardy's module keeps them."""
    partitioned = found.partitioned
    return replace(
        found,
        text=operation_numbers.strip_text_numbers(found.text),
        identities=operation_numbers.read_text_identities(found.text),
        partitioned=None if partitioned is None else operation_numbers.strip_text_numbers(partitioned),
        partitioned_identities=operation_numbers.read_text_identities(partitioned or ""),
        too_large=None if found.too_large is None else operation_numbers.strip_message_numbers(found.too_large),
    )


def run_compile(
    make_executable: Callable[[Mapping[str, Any]], Any],
    options: Mapping[str, str],
    *,
    text_is_enough: bool = False,
    folder: str | None = None,
    module_name: str = "",
    report: Callable[[CompiledProgram], None] | None = None,
    shown: Callable[[str], str] = str,
) -> CompiledProgram:
    """Runs a compile and collects its messages and dumps.

    A TPU program's text is that of its dump, as at the scheduled stage; an executable's is spelled otherwise, and
    jaxlib 0.10 cannot read back all of it: asynchronous calls with late operands.

    Args:
        make_executable: Compiles with given options, and returns an XLA executable.
        options: XLA compiler options; those for dumps are added.
        text_is_enough: Whether to trust a compiler that dumps the whole program and then refuses to make an executable
            of it, as libtpu 0.0.50 does if HBM is too small.
        folder: The folder for its dumps; None for a temporary one.
        module_name: The module's name, by which its dumps are found while it compiles.
        report: Called with the scheduled program as soon as it is there, in another thread; None to do nothing.
        shown: Converts a warning of the compiler to the words for users.

    Raises:
        jax.errors.JaxRuntimeError: The compiler refuses the program or an option.
    """
    import jax

    with capture_stderr() as stderr, make_dump_folder(options, folder) as (dumping, dumped):
        try:
            with watch_schedule(dumped, module_name, report):
                executable = make_executable(dumping)
        except jax.errors.JaxRuntimeError:
            found = read_dumps(dumped)
            if not text_is_enough or not found.text:
                raise
        else:
            found = _read_executable(executable, dumped)
        full = None if dumped is None else find_full_temporary_folder()
    notes = [f"the temporary folder {full} is full, so what the compiler wrote there is incomplete"] if full else []
    return replace(
        found,
        diagnostics=stderr.diagnostics(shown),
        notes=tuple(notes),
        is_whole=full is None,
    )


def _read_executable(executable: Any, folder: Path | None) -> CompiledProgram:
    """The facts of a successful compile: from its dumps, and what these leave open."""
    import jax

    dumps = read_dumps(folder)
    text = dumps.text
    if not is_compiled_dump(folder, text):
        try:
            text = executable.hlo_modules()[0].to_string()
        except jax.errors.JaxRuntimeError:
            if not text:
                raise
    try:
        stats = executable.get_compiled_memory_stats()
    except (AttributeError, jax.errors.JaxRuntimeError):
        stats = None
    return replace(
        dumps,
        text=text,
        memory_bytes=read_memory_fields(stats),
        parameter_shardings=_serialize_shardings(executable.get_parameter_shardings()),
        output_shardings=_serialize_shardings(executable.get_output_shardings()),
    )


def read_memory_fields(stats: Any) -> dict[str, int]:
    """XLA's `CompiledMemoryStats` by field name, without those of the host; empty for None."""
    return {name: int(getattr(stats, name)) for name in dir(stats) if _MEMORY_FIELD.match(name)}


def _serialize_shardings(shardings: Any) -> tuple[bytes, ...] | None:
    return None if shardings is None else tuple(sharding.SerializeToString() for sharding in shardings)


def propagate(module: bytes | str, seen_by: str, *, origins: bool, numbered: bool) -> ShardyModule:
    """Runs Shardy on a module; see `hloscope.compile.propagation`.

    Raises:
        ValueError: Shardy cannot be run: passes of another jaxlib have other names, or refuse the program.
    """
    from hloscope.compile.propagation import propagate_module

    try:
        return propagate_module(module, seen_by, origins=origins, numbered=numbered)
    except Exception as error:
        said = operation_numbers.strip_message_numbers(str(error)).strip().partition("\n")[0][:_SAID_CHARS]
        raise ValueError(f"{type(error).__name__}: {said}") from None


def estimate_edits(module: bytes, changes: Sequence[ModuleEdit]) -> list[Estimate | None]:
    """Estimates a module with each of several changes of its shardings; None if Shardy cannot propagate it."""
    from hloscope.compile.propagation import propagate_changes

    return [None if found is None else estimate_cost(found) for found in propagate_changes(module, changes)]


def read_platform_version(topology_name: str) -> str:
    """The version information of libtpu: its runtime, and the time and source of its build."""
    return str(find_topology_devices(parse_slice(topology_name))[0].client.platform_version)


def render_proto(module: bytes) -> str:
    """The text of a serialized HloModuleProto.

    Raises:
        ValueError: jaxlib cannot read the proto.
    """
    from jaxlib import _hlo

    try:
        return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string())
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def serialize_text(text: str) -> bytes:
    """The serialized HloModuleProto of a module's text.

    Raises:
        ValueError: jaxlib cannot read the text.
    """
    from jaxlib import _hlo

    try:
        return bytes(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    except RuntimeError as error:
        raise ValueError(str(error)) from None


_NOTHING = """\
module @nothing {
  func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    return %arg0 : tensor<8xf32>
  }
}
"""


def warm_up_compiler(slice_name: str) -> None:
    """Loads, before the first program, everything that a compile for a TPU slice needs.

    A compiler's first program takes longer than the next, so the first is one that does nothing.
    """
    from jaxlib.mlir import ir

    from hloscope.compile import jax_private

    with capture_stderr():
        device = find_topology_devices(parse_slice(slice_name))[0]
        with jax_private.open_mlir_context() as context:
            module = ir.Module.parse(_NOTHING, context)
        jax_private.compile_for(module, [device], jax_private.make_plain_options(), {}, on_tpu=True)
