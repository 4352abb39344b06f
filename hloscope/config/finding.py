"""Which file holds the targets: the nearest hloscope.toml or pyproject.toml with `[tool.hloscope]`, going upward."""

from __future__ import annotations

from pathlib import Path

from hloscope.config.model import ConfigError, ProjectConfig
from hloscope.config.reading import has_section, read_project

_EXAMPLE = """\
write one, for example:
[tool.hloscope.targets.step]
function = "model.py:step"
mesh = { data = 4, model = 2 }
slice = "v5e:2x4"
args = ["bf16[512@data,2048]", "bf16[2048,8192@model]"]
contract = ["all-reduce@model <= 2MB", "nothing else"]"""


def find_project(start: Path, *, named: Path | None = None) -> ProjectConfig:
    """The project that a folder belongs to.

    Args:
        start: The folder to begin at.
        named: The file that the user named; it is taken as it is.

    Raises:
        ConfigError: There is no such file, or it is written wrongly.
    """
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"there is no file {named}", fix="name a TOML file with targets")
        return read_project(named)
    folder = start.resolve()
    for place in (folder, *folder.parents):
        for path in (place / "hloscope.toml", place / "pyproject.toml"):
            if path.is_file() and has_section(path):
                return read_project(path)
    raise ConfigError(
        "no targets are configured",
        why=f"neither {folder} nor a folder above it has a hloscope.toml, or a pyproject.toml with [tool.hloscope]",
        fix=_EXAMPLE,
    )
