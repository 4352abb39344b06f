"""The text of a target that is compiled already."""

from __future__ import annotations

from pathlib import Path

from hloscope.errors import TargetError
from hloscope.program.files import read_hlo, split_module


def hlo_text(target: str | Path) -> str:
    """The HLO text of a file, or of the one of its modules that is named: `many.hlo#step`.

    Raises:
        TargetError: There is no such file, or it cannot be read.
        HloParseError: No module has that name, or several have.
    """
    path, module = split_module(target)
    if not Path(path).exists():
        raise TargetError(f"there is no file {path}")
    text = read_hlo(path)
    if module is None:
        return text
    from hloscope.hlo import module_text

    return module_text(text, module, name=path)
