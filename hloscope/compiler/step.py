"""The steps that run XLA's, libtpu's and Shardy's native code: pure functions of what they are given.

They run in a worker, and would run in any other process that has JAX: nothing here looks at the user's program, its
modules or its devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hloscope.compiler.dumps import Dumps, dump_folder, full_temporary_folder, read_dumps
from hloscope.compiler.model import Compiled, Program
from hloscope.compiler.placing import physical_devices
from hloscope.compiler.refusals import compiler_errors
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.compiler.stderr_capture import captured_stderr
from hloscope.errors import CompileError, HbmError

_NO_HBM_LIMIT = "xla_tpu_no_crash_on_oom"
_SAID_CHARS = 200
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
    devices = physical_devices(program.slice, program.layout, notes)
    module = jax_internals.module_of_bytecode(program.module)
    try:
        found = _compiled(program, module, devices, program.options)
    except HbmError as error:
        if program.slice.chip is None or _NO_HBM_LIMIT in program.options:
            raise
        options = {**program.options, _NO_HBM_LIMIT: "true"}
        try:
            anyway = _compiled(program, module, devices, options, text_is_enough=True)
        except CompileError:
            raise error from None
        found = replace(anyway, too_large=error.why)
    several = program.slice.slice_count > 1
    return replace(
        found,
        device_ids=tuple(device.id for device in devices) if program.slice.chip is not None else (),
        slice_of_partition=tuple(device.slice_index for device in devices) if several else (),
        notes=(*notes, *found.notes),
    )


def _compiled(
    program: Program, module: Any, devices: list[Any], options: Mapping[str, str], *, text_is_enough: bool = False
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
        return compiled_by(executable, options, text_is_enough=text_is_enough)


def compiled_by(make_executable: Any, options: Mapping[str, str], *, text_is_enough: bool = False) -> Compiled:
    """Runs a compile and collects what it says and writes down.

    Args:
        make_executable: Compiles with the options it is given, and returns an XLA executable.
        options: XLA compiler options; those for dumps are added.
        text_is_enough: Whether the text of a program that the compiler wrote down and then refused will do.

    Raises:
        jax.errors.JaxRuntimeError: The compiler refuses the program or an option.
    """
    import jax

    notes: list[str] = []
    with captured_stderr() as stderr, dump_folder(options) as (dumping, folder):
        try:
            executable = make_executable(dumping)
        except jax.errors.JaxRuntimeError:
            dumps = read_dumps(folder)
            if not text_is_enough or dumps.final is None:
                raise
            executable, text = None, dumps.final
        else:
            dumps = read_dumps(folder)
            text = _text(executable, dumps)
        full = None if folder is None else full_temporary_folder()
        if full is not None:
            notes.append(f"the temporary folder {full} is full, so what the compiler wrote down there is incomplete")
    return Compiled(
        text=text,
        memory_bytes=dumps.memory_bytes if executable is None else _memory(executable),
        parameter_shardings=None if executable is None else _protos(executable.get_parameter_shardings()),
        output_shardings=None if executable is None else _protos(executable.get_output_shardings()),
        diagnostics=stderr.diagnostics(),
        partitioned=dumps.partitioned,
        before_propagation=dumps.before_propagation,
        notes=tuple(notes),
        is_whole=full is None,
    )


def _text(executable: Any, dumps: Dumps) -> str:
    import jax

    try:
        text: str = executable.hlo_modules()[0].to_string()
    except jax.errors.JaxRuntimeError:
        if dumps.final is None:
            raise
        return dumps.final
    return text


def _memory(executable: Any) -> dict[str, int]:
    import jax

    try:
        stats = executable.get_compiled_memory_stats()
    except (AttributeError, jax.errors.JaxRuntimeError):
        return {}
    names = [name for name in dir(stats) if _MEMORY_FIELD.match(name)]
    return {name: int(getattr(stats, name)) for name in names}


def _protos(shardings: Any) -> tuple[bytes, ...] | None:
    return None if shardings is None else tuple(sharding.SerializeToString() for sharding in shardings)


def propagate(module: bytes | str, seen_by: str, *, origins: bool) -> ShardyModule:
    """What Shardy makes of a module, as `hloscope.compiler.propagation` says.

    Raises:
        ValueError: It cannot be asked: passes of another jaxlib have other names, or refuse the program.
    """
    from hloscope.compiler.propagation import propagated

    try:
        return propagated(module, seen_by, origins=origins)
    except Exception as error:
        said = str(error).strip().partition("\n")[0][:_SAID_CHARS]
        raise ValueError(f"{type(error).__name__}: {said}") from None


def platform_version(topology_name: str) -> str:
    """What libtpu says of itself: its runtime, and when and from what it was built."""
    from hloscope.compiler.placing import topology_devices
    from hloscope.hardware.slices import parse_slice

    return str(topology_devices(parse_slice(topology_name))[0].client.platform_version)


def proto_text(module: bytes) -> str:
    """The text of a serialized HloModuleProto.

    Raises:
        ValueError: It is none that jaxlib can read.
    """
    from jaxlib import _hlo

    try:
        text: str = _hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return text


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
    from hloscope.compiler.placing import topology_devices
    from hloscope.hardware.slices import parse_slice

    with captured_stderr():
        device = topology_devices(parse_slice(slice_name))[0]
        with jax_internals.mlir_context() as context:
            module = ir.Module.parse(_NOTHING, context)
        jax_internals.compile_for(module, [device], jax_internals.plain_options(), {}, on_tpu=True)
