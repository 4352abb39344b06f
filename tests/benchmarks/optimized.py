"""What libtpu's optimizer makes of many programs, without the code that it would generate for them next.

Optimizing a feed-forward layer takes libtpu some 50 ms, generating its code seconds. It writes the optimized program
down in between: a process begins each compile in a fork of its own, and ends it once that is written down. The symbols
of libtpu are read anew in each fork, for longer than the optimizer runs, so that a copy without them is loaded.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloscope.model.capture import CompileRequest

_DUMPS = {"xla_dump_hlo_as_text": True, "xla_dump_hlo_as_long_text": True}
_TEXT, _BUFFERS = ".after_optimizations.txt", ".after_optimizations-buffer-assignment.txt"
_LAST = ".after_optimizations_after_buffer_assignment.txt"
"""What is written down last before code is generated."""
_LONGEST_S = 60.0
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """A program between the optimizer and the generation of code.

    Attributes:
        text: The scheduled module; empty where the compiler ended before it wrote it down.
        memory_bytes: What its buffers take, by the names of `Compiled.memory_bytes`; its code is not among it.
    """

    text: str
    memory_bytes: dict[str, int]


def without_symbols(folder: Path) -> Path | None:
    """A copy of libtpu without its symbols, made once in a folder; None where that cannot be made."""
    from hloscope.compile import jax_support

    installed, copy = jax_support.find_libtpu_file(), folder / "libtpu.so"
    if copy.exists():
        return copy
    if installed is None or shutil.which("strip") is None:
        return None
    subprocess.run(["strip", "-o", f"{copy}.new", str(installed)], check=True)
    return Path(f"{copy}.new").rename(copy)


def optimized(programs: Sequence[CompileRequest], library: Path | None = None) -> list[Optimized]:
    """What the optimizer makes of each program.

    Args:
        programs: Programs, all for one slice.
        library: The libtpu to load, where it is not the installed one.

    Raises:
        CalledProcessError: The process that was to find out failed.
    """
    from hloscope.compile import client

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asked, answer = Path(folder) / "asked", Path(folder) / "answer"
        asked.write_bytes(pickle.dumps(list(programs)))
        environment = client.make_worker_environment() | ({} if library is None else {"TPU_LIBRARY_PATH": str(library)})
        command = [sys.executable, "-W", "ignore", __file__, str(asked), str(answer)]
        said = Path(folder) / "said"
        with said.open("wb") as words:
            try:
                subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, stderr=words)
            except subprocess.CalledProcessError:
                sys.stderr.write(said.read_text(errors="replace")[-2000:])
                raise
        return [Optimized(text=text, memory_bytes=sizes) for text, sizes in pickle.loads(answer.read_bytes())]


def main() -> None:
    """Answers one question."""
    from hloscope.compile import jax_private, operation_numbers
    from hloscope.compile.step import find_physical_devices

    asked, answer = map(Path, sys.argv[1:])
    programs: list[CompileRequest] = pickle.loads(asked.read_bytes())
    found = []
    for number, program in enumerate(programs):
        devices = find_physical_devices(program.slice, program.layout, [])
        module = jax_private.read_module_bytecode(program.module)
        operation_numbers.number_operations(module)
        gc.freeze()
        for attempt in range(_TRIES):
            folder = asked.parent / f"{number}_{attempt}"
            folder.mkdir()
            if _ran(program, module, devices, folder):
                break
        found.append(_written(folder))
        shutil.rmtree(folder)
    answer.write_bytes(pickle.dumps(found))
    os._exit(0)  # libtpu has nothing to tidy up


def _ran(program: CompileRequest, module: Any, devices: list[Any], folder: Path) -> bool:
    """Begins a compile as `hloscope.compile.step` does; whether it came to an end, or to where it is ended."""
    from hloscope.compile import jax_private

    child = os.fork()
    if child == 0:
        options = {**program.options, **_DUMPS, "xla_dump_to": str(folder)}
        try:
            jax_private.compile_for(module, devices, program.settings, options, on_tpu=True)
        finally:
            os._exit(0)
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        time.sleep(0.005)
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        if any(folder.glob(f"*{_LAST}")):
            _end(child)
            return True
    _end(child)
    return False


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _written(folder: Path) -> tuple[str, dict[str, int]]:
    """What a compile wrote down."""
    from hloscope.compile import operation_numbers
    from hloscope.compile.stages import sum_assignment_memory

    text, buffers = (_largest(folder, ending) for ending in (_TEXT, _BUFFERS))
    return operation_numbers.strip_text_numbers(text), sum_assignment_memory(buffers)


def _largest(folder: Path, ending: str) -> str:
    """The compiler may also write down small modules of its own."""
    return max((path.read_text() for path in folder.glob(f"*{ending}")), key=len, default="")


if __name__ == "__main__":
    main()
