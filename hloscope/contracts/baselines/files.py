"""Baseline files on disk: read whole, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from hloscope.contracts.baselines.model import Baseline
from hloscope.contracts.baselines.printing import TITLE, format_baseline
from hloscope.contracts.baselines.reading import FIX, parse_baseline
from hloscope.errors import HloscopeError

_BEGINNING = TITLE.rpartition(" ")[0].encode()


def is_baseline(path: Path) -> bool:
    """Whether a file begins as baselines do, of this version or another."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False


def read_baseline(path: Path) -> Baseline | None:
    """The baseline in a file; None where there is no file.

    Raises:
        BaselineError: The file is damaged.
        HloscopeError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HloscopeError(f"the baseline {path} cannot be read", why=str(error), fix=FIX) from None
    return parse_baseline(text, name=str(path))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes a baseline file, whole or not at all.

    Raises:
        HloscopeError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(format_baseline(baseline), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HloscopeError(f"the baseline {path} cannot be written", why=str(error)) from None
