"""How long everything after the compile takes, for the training step of a large decoder on 512 chips.

Run it with `python tests/benchmarks/decoder_step.py`; it needs some 10 GB of memory and a minute or two, nearly all of it
the compiler's. The bar: what hloscope does once the compiler is done takes less than 5% of the compile, and less than a
second. Nothing that was learnt before is used.

What is measured, in one process, by the clock on the wall:

* `tracing and lowering`: JAX's work on the user's function.
* `compiling`: from the lowered program to the executable, inside libtpu.
* `after the compile`: the executable's text, memory and shardings, parsing, the analysis, rules and the report.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TARGET = ROOT / "fixtures" / "programs" / "decoder_step.py"
DEVICES = 512
MAX_RATIO = 0.05
MAX_SECONDS = 1.0


def main() -> None:
    """Prints the report and the figures; fails when the bar is missed."""
    os.environ["HLOSCOPE_CACHE"] = "0"
    from hloscope.program.devices import prepare_environment

    prepare_environment(DEVICES, attached=False)
    from hloscope.api import analyzing
    from hloscope.program import jax_internals
    from hloscope.program.target import TargetFacts
    from hloscope.report import FORMATS, Canvas

    compiling: list[float] = []
    compile_for = jax_internals.compile_for

    def timed(*args: Any) -> Any:
        compiling.append(time.perf_counter())
        executable = compile_for(*args)
        compiling.append(time.perf_counter())
        return executable

    jax_internals.compile_for = timed
    start = time.perf_counter()
    captured = analyzing.capture_target(f"{TARGET}:decoder_step", TargetFacts())
    got = time.perf_counter()
    found = analyzing.analysis_of(captured, "decoder_step")
    analyzed = time.perf_counter()
    print(FORMATS["text"](found, Canvas(width=120)))
    end = time.perf_counter()
    report(start, compiling, got, analyzed, end, captured.hlo_text)


def report(start: float, compiling: list[float], got: float, analyzed: float, end: float, text: str) -> None:
    """Prints the figures; the compiler may have run more than once."""
    compile_seconds = sum(compiling[1::2]) - sum(compiling[0::2])
    after = end - compiling[-1]
    ratio = after / compile_seconds
    print(f"tracing and lowering  {compiling[0] - start:8.2f} s")
    print(f"compiling             {compile_seconds:8.2f} s")
    print(f"after the compile     {after:8.3f} s  ({ratio:.2%} of it)")
    print(f"  text and facts      {got - compiling[-1]:8.3f} s  ({len(text) / 1e6:.2f} MB of HLO)")
    print(f"  analysis            {analyzed - got:8.3f} s")
    print(f"  report              {end - analyzed:8.3f} s")
    if ratio >= MAX_RATIO or after >= MAX_SECONDS:
        sys.exit(f"missed: less than {MAX_RATIO:.0%} of the compile and less than {MAX_SECONDS:g} s")


if __name__ == "__main__":
    main()
