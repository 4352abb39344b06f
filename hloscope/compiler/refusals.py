"""The compiler's refusals as messages: an unknown option, too little HBM, a program it cannot compile."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import takewhile

from hloscope.errors import CompileError, HbmError, HloscopeError
from hloscope.hardware.slices import Slice
from hloscope.launchers import is_launcher

_LOCATIONS = re.compile(r"[ \t]*Suspected Python Code Location:\s*\n(?P<frames>(?:[ \t]+\S.*(?:\n|$))*)")
_FRAME = re.compile(r"^\s*(?P<file>\S.*?):(?P<line>\d+)(?::\d+)? \[(?P<function>.*)\]$", re.MULTILINE)
"""Frames, the innermost first."""


@contextlib.contextmanager
def compiler_errors(chosen: Slice) -> Iterator[None]:
    """Turns what the compiler raises into one message in its own words.

    Raises:
        HbmError: The program does not fit in HBM.
        CompileError: In place of whatever else was raised.
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
                fix="check the spelling of --compiler-option; options differ between libtpu versions",
            ) from error
        if "Ran out of memory" in text or "RESOURCE_EXHAUSTED" in text:
            raise HbmError(
                f"the program does not fit in the HBM of {chosen.name}",
                why=_hbm_words(text, chosen),
                fix="shard more, donate inputs, rematerialise, or name a larger chip or slice with --slice",
            ) from error
        words, where = _placed(text)
        raise CompileError(f"the compiler refuses the program for {chosen.name}", where=where, why=words) from error


def _placed(text: str) -> tuple[str, str | None]:
    """The compiler's words without the stack that it prints below them, and the user's innermost line of that."""
    found = _LOCATIONS.search(text)
    if found is None:
        return text, None
    words = "\n".join(filter(str.strip, (text[: found.start()] + text[found.end() :]).splitlines()))
    frames = takewhile(lambda frame: not is_launcher(frame["file"]), _FRAME.finditer(found["frames"]))
    first = next((frame for frame in frames if "/site-packages/" not in frame["file"]), None)
    return words, None if first is None else f"{_shown(first['file'])}:{first['line']} in {first['function']}"


def _shown(file: str) -> str:
    below = os.path.relpath(file)
    return file if below.startswith("..") else below


def _hbm_words(text: str, chosen: Slice) -> str:
    words = re.sub(
        r"^RESOURCE_EXHAUSTED: |E\d+: \w+: |\s*HLO module: \S+|\s*See https://\S+ for more details\.", "", text
    )
    if chosen.chip is None:
        return words
    return f"{words.strip()}\nthe chip has {chosen.chip.hbm_bytes_per_device / 2**30:g} GiB per device"
