"""The steps that run XLA's, libtpu's and Shardy's native code: pure functions of what they are given.

They run in a worker, and would run in any other process that has JAX: nothing here looks at the user's program, its
modules or its devices. What the compiler writes down on its way is read from its dumps.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from hloscope.compiler import identity
from hloscope.compiler.buffers import peak_of
from hloscope.compiler.diagnostics import captured_stderr, compiler_errors
from hloscope.compiler.edits import ModuleEdit
from hloscope.compiler.estimates import Estimate, estimate
from hloscope.compiler.model import Compiled, Program
from hloscope.compiler.placing import physical_devices, topology_devices
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.errors import CompileError, HbmError
from hloscope.tpu.slices import parse_slice

_NO_HBM_LIMIT = "xla_tpu_no_crash_on_oom"
_SAID_CHARS = 200
_DUMP = re.compile(r"_dump_to\b")
_MEMORY_FIELD = re.compile(r"^(?!host_)\w+_in_bytes$")


def compile_program(program: Program) -> Compiled:
    """What the compiler makes of a program; of one that does not fit in HBM, what it makes of it without a limit.

    Raises:
        HbmError: The program does not fit in HBM, and cannot be compiled without that limit either.
        CompileError: The compiler refuses the program or an option.
        SliceError: There is no libtpu here, or it does not know the slice.
    """
    from hloscope.compiler import jax_internals

    notes: list[str] = []
    begun, begun_cpu = monotonic(), process_time()
    devices = physical_devices(program.slice, program.layout, notes)
    module = jax_internals.module_of_bytecode(program.module)
    is_numbered = not _is_dumped(program.options) and identity.mark(module)
    shown = identity.message_unmarked if is_numbered else str
    try:
        found = _compiled_or_too_large(program, module, devices, shown)
    except CompileError as error:
        error.why = None if error.why is None else shown(error.why)
        raise
    several = program.slice.slice_count > 1
    return replace(
        _identified(found) if is_numbered else found,
        device_ids=tuple(device.id for device in devices) if program.slice.chip is not None else (),
        slice_of_partition=tuple(device.slice_index for device in devices) if several else (),
        notes=(*notes, *found.notes),
        seconds=min(monotonic() - begun, process_time() - begun_cpu),
    )


def _is_dumped(options: Mapping[str, str]) -> bool:
    """Whether the user has the compiler write down what it does, where no numbers are to be seen.

    Flags of the environment may ask for other dumps than `xla_dump_to`, whose folder is replaced.
    """
    flags = (*options, os.environ.get("LIBTPU_INIT_ARGS", ""), os.environ.get("XLA_FLAGS", ""))
    return any(_DUMP.search(flag) for flag in flags)


def _compiled_or_too_large(program: Program, module: Any, devices: list[Any], shown: Callable[[str], str]) -> Compiled:
    """What the compiler makes of the program; where it does not fit in HBM, without a limit."""
    try:
        return _compiled(program, module, devices, program.options, shown)
    except HbmError as error:
        if program.slice.chip is None or _NO_HBM_LIMIT in program.options:
            raise
        options = {**program.options, _NO_HBM_LIMIT: "true"}
        try:
            anyway = _compiled(program, module, devices, options, shown, text_is_enough=True)
        except CompileError:
            raise error from None
        return replace(anyway, too_large=error.why)


def _identified(found: Compiled) -> Compiled:
    """Texts without the numbers of operations, and by instruction what these say; Shardy's module keeps them."""
    partitioned = found.partitioned
    return replace(
        found,
        text=identity.text_unmarked(found.text),
        identities=identity.identities_of(found.text),
        partitioned=None if partitioned is None else identity.text_unmarked(partitioned),
        partitioned_identities=identity.identities_of(partitioned or ""),
        too_large=None if found.too_large is None else identity.message_unmarked(found.too_large),
    )


def _compiled(
    program: Program,
    module: Any,
    devices: list[Any],
    options: Mapping[str, str],
    shown: Callable[[str], str],
    *,
    text_is_enough: bool = False,
) -> Compiled:
    """What the compiler makes of the program, with what it wrote down on its way.

    With `text_is_enough`, a compiler that writes down the whole program and then refuses to make an executable of it,
    as libtpu 0.0.50 does where HBM is too small, is taken by its word. Text that this jaxlib cannot read back from its
    own compiler is taken from there too: asynchronous calls with late operands are such text on jaxlib 0.10.
    """
    from hloscope.compiler import jax_internals

    def executable(dumping: Mapping[str, Any]) -> Any:
        return jax_internals.compile_for(module, devices, program.settings, dumping, on_tpu=bool(program.slice.chip))

    with compiler_errors(program.slice):
        return compiled_by(executable, options, text_is_enough=text_is_enough, shown=shown)


def compiled_by(
    make_executable: Any,
    options: Mapping[str, str],
    *,
    text_is_enough: bool = False,
    shown: Callable[[str], str] = str,
) -> Compiled:
    """Runs a compile and collects what it says and writes down.

    Args:
        make_executable: Compiles with the options it is given, and returns an XLA executable.
        options: XLA compiler options; those for dumps are added.
        text_is_enough: Whether the text of a program that the compiler wrote down and then refused will do.
        shown: A warning of the compiler's as users are to see it.

    Raises:
        jax.errors.JaxRuntimeError: The compiler refuses the program or an option.
    """
    import jax

    with captured_stderr() as stderr, dump_folder(options) as (dumping, folder):
        try:
            executable = make_executable(dumping)
        except jax.errors.JaxRuntimeError:
            found = read_dumps(folder)
            if not text_is_enough or not found.text:
                raise
        else:
            found = _of_executable(executable, read_dumps(folder))
        full = None if folder is None else full_temporary_folder()
    notes = [f"the temporary folder {full} is full, so what the compiler wrote there is incomplete"] if full else []
    return replace(
        found,
        diagnostics=stderr.diagnostics(shown),
        notes=tuple(notes),
        is_whole=full is None,
    )


def _of_executable(executable: Any, dumps: Compiled) -> Compiled:
    """What there is of a compile that succeeded, beside what it wrote down."""
    import jax

    try:
        text = executable.hlo_modules()[0].to_string()
    except jax.errors.JaxRuntimeError:
        if not dumps.text:
            raise
        text = dumps.text
    try:
        stats = executable.get_compiled_memory_stats()
    except (AttributeError, jax.errors.JaxRuntimeError):
        stats = None
    return replace(
        dumps,
        text=text,
        memory_bytes=memory_fields(stats),
        parameter_shardings=_protos(executable.get_parameter_shardings()),
        output_shardings=_protos(executable.get_output_shardings()),
    )


def memory_fields(stats: Any) -> dict[str, int]:
    """XLA's `CompiledMemoryStats` by name, without those of the host; empty for None."""
    return {name: int(getattr(stats, name)) for name in dir(stats) if _MEMORY_FIELD.match(name)}


def _protos(shardings: Any) -> tuple[bytes, ...] | None:
    return None if shardings is None else tuple(sharding.SerializeToString() for sharding in shardings)


def propagate(module: bytes | str, seen_by: str, *, origins: bool, numbered: bool) -> ShardyModule:
    """What Shardy makes of a module, as `hloscope.compiler.propagation` says.

    Raises:
        ValueError: It cannot be asked: passes of another jaxlib have other names, or refuse the program.
    """
    from hloscope.compiler.propagation import propagated

    try:
        return propagated(module, seen_by, origins=origins, numbered=numbered)
    except Exception as error:
        said = identity.message_unmarked(str(error)).strip().partition("\n")[0][:_SAID_CHARS]
        raise ValueError(f"{type(error).__name__}: {said}") from None


def estimates(module: bytes, changes: Sequence[ModuleEdit]) -> list[Estimate | None]:
    """What a module costs with each of several changes of its shardings; None where Shardy cannot propagate it."""
    from hloscope.compiler.propagation import propagated_with

    return [None if found is None else estimate(found) for found in propagated_with(module, changes)]


def platform_version(topology_name: str) -> str:
    """What libtpu says of itself: its runtime, and when and from what it was built."""
    return str(topology_devices(parse_slice(topology_name))[0].client.platform_version)


def proto_text(module: bytes) -> str:
    """The text of a serialized HloModuleProto.

    Raises:
        ValueError: It is none that jaxlib can read.
    """
    from jaxlib import _hlo

    try:
        return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string())
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def text_proto(text: str) -> bytes:
    """The serialized HloModuleProto of a module's text.

    Raises:
        ValueError: It is none that jaxlib can read.
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


def prepare(slice_name: str) -> None:
    """Loads, ahead of the first program, what every compile for a TPU slice needs.

    A compiler's first program takes it longer than the next: so its first is one that does nothing.
    """
    from jaxlib.mlir import ir

    from hloscope.compiler import jax_internals

    with captured_stderr():
        device = topology_devices(parse_slice(slice_name))[0]
        with jax_internals.mlir_context() as context:
            module = ir.Module.parse(_NOTHING, context)
        jax_internals.compile_for(module, [device], jax_internals.plain_options(), {}, on_tpu=True)


_OPTIONS: Mapping[str, Any] = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_as_long_text": True,
    "xla_dump_hlo_pass_re": "shardy-xla|spmd-partitioning",
}
PARTITIONED = re.compile(r"after_(tpu-)?spmd-partitioning\.")
_ALLOCATION = re.compile(r"^allocation \d+: size (?P<size>\d+)(?:, color (?P<color>\d+))?(?P<roles>.*):$", re.MULTILINE)
_ROLES = {
    "parameter": "argument_size_in_bytes",
    "maybe-live-out": "output_size_in_bytes",
    "preallocated-temp": "temp_size_in_bytes",
}
_ROOM_BYTES = 1 << 20
_FINAL = ("*after_codegen.txt", "*after_optimizations.txt")


@contextmanager
def dump_folder(options: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Path | None]]:
    """Compiler options that make one compile write its dumps, and their folder, which lives as long as the block.

    A folder of its own for each compile, because XLA numbers the modules of a process. Users who give `xla_dump_to`
    themselves keep their dumps, and there is no folder.

    Source: XLA's debug options in xla.proto; a pass pattern selects the text before and after the passes it matches.
    """
    if "xla_dump_to" in options:
        yield dict(options), None
        return
    with tempfile.TemporaryDirectory(prefix="hloscope-", ignore_cleanup_errors=True) as folder:
        yield {**options, **_OPTIONS, "xla_dump_to": folder}, Path(folder)


def full_temporary_folder() -> str | None:
    """The folder for temporary files, if there is no room left in it."""
    folder = tempfile.gettempdir()
    try:
        return folder if shutil.disk_usage(folder).free < _ROOM_BYTES else None
    except OSError:
        return None


def read_dumps(folder: Path | None) -> Compiled:
    """What matters of all that a compile wrote; its text is empty where it did not write the program down."""
    if folder is None:
        return Compiled(text="", memory_bytes={})
    partitioned = [path for path in folder.glob("*.txt") if PARTITIONED.search(path.name)]
    final = next((found for pattern in _FINAL if (found := sorted(folder.glob(pattern)))), [])
    assignment = _largest(folder.glob("*after_optimizations-buffer-assignment.txt")) or ""
    return Compiled(
        text=_largest(final) or "",
        before_propagation=_largest(folder.glob("shardy/*/01.before_propagation.mlir")),
        partitioned=_largest(partitioned),
        memory_bytes=memory_of_assignment(assignment),
        hbm_peak=peak_of(assignment, _largest(folder.glob("*after_optimizations-live-range.txt")) or ""),
    )


def memory_of_assignment(assignment: str) -> dict[str, int]:
    """Sums of a buffer assignment's allocations in the memory of color 0, the device's main one.

    Source: `BufferAllocation::ToString` of xla/service/buffer_assignment.cc.
    """
    found = dict.fromkeys(("alias_size_in_bytes", *_ROLES.values()), 0)
    allocations = [match for match in _ALLOCATION.finditer(assignment) if match["color"] in (None, "0")]
    for allocation in allocations:
        roles = [role for role in _ROLES if role in allocation["roles"]]
        for role in roles:
            found[_ROLES[role]] += int(allocation["size"])
        if len(roles) > 1 and "parameter" in roles:
            found["alias_size_in_bytes"] += int(allocation["size"])
    return found if allocations else {}


def _largest(paths: Iterator[Path] | list[Path]) -> str | None:
    """The text of the largest file: a compile may also write dumps of small modules of its own."""
    found = max(paths, key=lambda path: path.stat().st_size, default=None)
    return None if found is None else found.read_text(encoding="utf-8", errors="replace")
