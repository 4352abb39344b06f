"""The compiler's refusals as messages: an unknown option, too little HBM, a program it cannot compile."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from hloscope.errors import CompileError, HbmError, HloscopeError
from hloscope.hardware.slices import Slice


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
        raise CompileError(f"the compiler refuses the program for {chosen.name}", why=text) from error


def _hbm_words(text: str, chosen: Slice) -> str:
    words = re.sub(
        r"^RESOURCE_EXHAUSTED: |E\d+: \w+: |\s*HLO module: \S+|\s*See https://\S+ for more details\.", "", text
    )
    if chosen.chip is None:
        return words
    return f"{words.strip()}\nthe chip has {chosen.chip.hbm_bytes_per_device / 2**30:g} GiB per device"
