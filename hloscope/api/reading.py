"""The text of a target that is compiled already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hloscope.errors import TargetError
from hloscope.program.files import read_hlo, split_module
from hloscope.program.options import BY_NAME


def refuse_beside_text(target: object, given: Mapping[str, Any]) -> None:
    """Refuses what only a function can obey.

    Args:
        target: HLO text, as the user named it.
        given: Values by the names that the user has for them; those that are None or empty are not given.

    Raises:
        TargetError: One of them is given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, str | tuple | Mapping) and not value):
            raise TargetError(
                f"{name} does not go with HLO text", why=f"{target} is compiled already", fix="leave it out"
            )


def beside_text(target: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a target's options goes with HLO text, by name.

    Raises:
        TargetError: One is given that only a function can obey.
    """
    refuse_beside_text(target, {name: value for name, value in given.items() if not BY_NAME[name].of_text})
    return {name: value for name, value in given.items() if BY_NAME[name].of_text}


def refuse_source_root(name: str, root: object) -> None:
    """Refuses, beside a function, what only HLO text needs.

    Args:
        name: What the user calls the folder.
        root: The folder; None where none was given.

    Raises:
        TargetError: One was given.
    """
    if root is not None:
        raise TargetError(f"{name} is for HLO text", why="the files of a function are read anyway", fix="leave it out")


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
