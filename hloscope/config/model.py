"""What a project says about its targets, as plain values: notations and contracts are read by whoever needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloscope.errors import HloscopeError, did_you_mean

BASELINES = "hloscope_baselines"
"""The folder of baseline files, unless the project names another."""


class ConfigError(HloscopeError):
    """The targets file is written wrongly."""


class ConfigMistakesError(ConfigError):
    """Several mistakes in one targets file, told one after the other.

    Attributes:
        mistakes: Each of them.
    """

    def __init__(self, mistakes: Sequence[HloscopeError]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"{len(mistakes)} mistakes in the targets file")

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.mistakes))


def refuse(mistakes: Sequence[HloscopeError]) -> None:
    """Tells all mistakes at once.

    Raises:
        HloscopeError: There is one.
        ConfigMistakesError: There are several.
    """
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise ConfigMistakesError(mistakes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One target: a function or a file of HLO, how to compile it, and what is expected of it.

    Attributes:
        name: What `hloscope check` calls it.
        function: `package.module:fn` or `path/to/file.py:fn`; None for HLO text.
        hlo: The path of a file of HLO text, from the project's folder; None for a function.
        slices: The slices to compile for; None is the default one.
        options: What else is said of it, by the names of `hloscope.program.options`.
        source_root: For HLO text: the folder, from the project's, in which files that it names may be read.
        contract: The contract as TOML has it: text, or a list of texts; None for none.
        baseline: Whether what it moves is held against a baseline file.
        fail_on: The least severity of what rules find that fails the check, `error`, `warning` or `note`; None where
            nothing of it does.
        place: The file and the line where it is written; None for one that is written nowhere.
    """

    name: str
    function: str | None = None
    hlo: str | None = None
    slices: tuple[str | None, ...] = (None,)
    options: Mapping[str, Any] = field(default_factory=dict)
    source_root: str | None = None
    contract: Any = None
    baseline: bool = True
    fail_on: str | None = None
    place: str | None = None

    @property
    def where(self) -> str:
        """Where it is written, with its name, for messages."""
        return f"{self.place}, target {self.name}" if self.place else f"target {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """A project's targets.

    Attributes:
        path: The file that says so.
        baselines: The folder of baseline files.
        targets: In the order in which they are written.
    """

    path: Path
    baselines: Path
    targets: tuple[TargetConfig, ...]

    @property
    def root(self) -> Path:
        """The project's folder: targets are imported from there, and paths are relative to it."""
        return self.path.parent

    def named(self, names: tuple[str, ...]) -> tuple[TargetConfig, ...]:
        """The targets of these names, or all of them.

        Raises:
            ConfigError: There is no target of such a name, or none at all.
        """
        if not self.targets:
            raise ConfigError("there are no targets", where=str(self.path), fix="write [targets.NAME] with a function")
        by_name = {target.name: target for target in self.targets}
        for name in names:
            if name not in by_name:
                fix = did_you_mean(name, by_name, f"the targets are {', '.join(by_name)}")
                raise ConfigError(f"there is no target {name!r}", where=str(self.path), fix=fix)
        return tuple(by_name[name] for name in dict.fromkeys(names)) or self.targets
