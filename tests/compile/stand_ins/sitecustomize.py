"""Imported by every Python process that has this folder on PYTHONPATH; changes workers only.

There, compiling a program with `doomed` in the name of a function really ends, hangs or fills up, as STAND_IN says.
"""

import os
import re
import signal
import sys

if "hloscope.compile.worker" in sys.orig_argv and "STAND_IN" in os.environ:
    from hloscope.compile import step

    compile_program, propagate = step.compile_program, step.propagate

    def die():
        how = os.environ["STAND_IN"]
        os.write(2, b"F0000 00:00:1 7 made_up.cc:12] Check failed: doomed\n")
        if how == "abort":
            os.abort()
        elif how == "killed":
            signal.raise_signal(signal.SIGKILL)
        elif how == "hang":  # inside C, with the interpreter's lock held, for longer than the universe
            re.match(r"(a+)+$", "a" * 64 + "b")

    def doomed_compile(program, **stages):
        if b"doomed" in program.module:
            die()
        return compile_program(program, **stages)

    def doomed_propagate(module, seen_by, *, origins, **how):
        text = module if isinstance(module, str) else module.decode(errors="replace")
        if "explained" in text and (origins or "inexplicable" in text):
            die()
        return propagate(module, seen_by, origins=origins, **how)

    step.compile_program, step.propagate = doomed_compile, doomed_propagate
