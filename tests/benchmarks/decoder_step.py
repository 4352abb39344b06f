"""How long everything after the compile takes, for the training step of a large decoder on 512 chips.

Run it with `python tests/benchmarks/decoder_step.py`; it needs some 10 GB of memory and a minute or two, nearly all of
it the compiler's. The bar: what hloscope does once the compiler is done takes less than 5% of the compile, and less
than a second. Nothing that was learnt before is used.

What is measured, in one process, by the clock on the wall and in seconds of a processor, which a busy machine does not
stretch as much:

* `tracing and lowering`: JAX's work on the user's function.
* `compiling`: from the lowered program to the executable, inside libtpu.
* `after the compile`: the executable's text, memory and shardings, parsing, the analysis, rules and the report, and the
  import of all that these need.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TARGET = Path(__file__).parent.parent.parent / "fixtures" / "programs" / "decoder_step.py"
DEVICES = 512
MAX_RATIO = 0.05
MAX_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds on the wall and of a processor; of a moment, since the process began."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Span:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Span) -> Span:
        return Span(self.wall - other.wall, self.processor - other.processor)

    def __str__(self) -> str:
        return f"{self.wall:8.2f} s, {self.processor:8.2f} s of a processor"


def main() -> None:
    """Prints the report and the figures; fails when the bar is missed."""
    os.environ["HLOSCOPE_CACHE"] = "0"
    from hloscope.compile.environment import prepare_environment

    prepare_environment(DEVICES, attached=False)
    from hloscope.app import analyzing
    from hloscope.base.canvas import Canvas
    from hloscope.compile import client
    from hloscope.compile.functions import Function
    from hloscope.compile.target import TargetFacts
    from hloscope.report.formats import render

    compiling: list[Span] = []
    compile_program = client.ask_compile

    def timed(*args: Any, **kwargs: Any) -> Any:
        compiling.append(Span.now())
        compiled = compile_program(*args, **kwargs).answer()
        compiling.append(Span.now())
        return SimpleNamespace(answer=lambda: compiled)

    client.ask_compile = timed
    moments = [Span.now()]
    captured = []

    def when_compiled(program: Any) -> None:
        captured.append(program)
        moments.append(Span.now())

    found = analyzing.analyze_function(
        Function(target=f"{TARGET}:decoder_step", facts=TargetFacts(), when_compiled=when_compiled)
    )
    moments.append(Span.now())
    print(render("analysis", "text", found, Canvas(width=120)))
    moments.append(Span.now())
    judge(moments, compiling, len(captured[0].compiled.text))


def judge(moments: list[Span], compiling: list[Span], characters: int) -> None:
    """Prints the figures and holds them to the bar."""
    start, captured, analyzed, end = moments
    before, compiled = compiling
    after, compile_time = end - compiled, compiled - before
    ratio = after.wall / compile_time.wall
    print(f"tracing and lowering  {before - start}")
    print(f"compiling             {compile_time}")
    print(f"after the compile     {after}: {ratio:.2%} of it")
    print(f"  text and facts      {captured - compiled}, {characters / 1e6:.2f} MB of HLO")
    print(f"  analysis            {analyzed - captured}")
    print(f"  report              {end - analyzed}")
    if ratio >= MAX_RATIO or after.wall >= MAX_SECONDS:
        sys.exit(f"missed: less than {MAX_RATIO:.0%} of the compile and less than {MAX_SECONDS:g} s")


if __name__ == "__main__":
    main()
