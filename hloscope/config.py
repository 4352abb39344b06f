"""`[tool.hloscope]` in pyproject.toml, or hloscope.toml: named targets, their contracts, and where baselines are.

Notations and contracts are read by whoever needs them: here they are plain values. What is written wrongly becomes an
error that says what, where and how to fix it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hloscope.errors import HloscopeError, caret_excerpt, did_you_mean
from hloscope.program.options import BY_NAME, OPTIONS, are

_BASELINES = "hloscope_baselines"
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


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SEVERITIES = ("error", "warning", "note")
"""What `fail-on` takes."""

KEYS: dict[str, tuple[_Check, str]] = {
    "function": (_is_text, '"model.py:step"'),
    "hlo": (_is_text, '"step.hlo"'),
    "slice": (_is_text, '"v5e:2x4"'),
    "slices": (lambda value: bool(value) and are(_is_text)(value), '["v5e:2x4", "v5p:2x2x2"]'),
    **{option.key: (option.fits, option.example) for option in OPTIONS if option.key},
    "source-root": (_is_text, '"src"'),
    # a table too: whoever reads the contract says how to write it as text
    "contract": (lambda value: isinstance(value, str | list | dict), '["all-reduce@model <= 2MB", "nothing else"]'),
    "baseline": (lambda value: isinstance(value, bool), "false"),
    "fail-on": (lambda value: value in _SEVERITIES, '"warning"'),
}
_ONLY_FOR_FUNCTIONS = tuple(option.key for option in OPTIONS if option.key and not option.of_text)
"""What a file of HLO text cannot be told."""

_OF_RULES = ("allow", "rules")
"""What says nothing where no finding of a rule fails the check."""

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
            if path.is_file() and _has_section(path):
                return read_project(path)
    raise ConfigError(
        "no targets are configured",
        why=f"neither {folder} nor a folder above it has a hloscope.toml, or a pyproject.toml with [tool.hloscope]",
        fix=_EXAMPLE,
    )


_POSITION = re.compile(r"\(at line (\d+), column (\d+)\)|\(at end of document\)")

_PROJECT_KEYS = ("baselines", "rules", "defaults", "targets")
_NO_DEFAULT = ("function", "hlo", "rules")


def _has_section(path: Path) -> bool:
    """Whether a file is about hloscope: any hloscope.toml, and a pyproject.toml with `[tool.hloscope]`.

    Raises:
        ConfigError: The file cannot be read and mentions hloscope.
    """
    if path.name == "hloscope.toml":
        return True
    text = _text(path)
    return "tool.hloscope" in text and "hloscope" in _parsed(path, text).get("tool", {})


def read_project(path: Path) -> ProjectConfig:
    """Reads a project's targets.

    Args:
        path: A pyproject.toml, whose `[tool.hloscope]` is read, or another TOML file, which is read as a whole.

    Raises:
        ConfigError: It is no TOML, a key is unknown, or a value is not what the key needs; all such mistakes in one.
    """
    text = _text(path)
    whole = _parsed(path, text)
    prefix = "tool.hloscope." if path.name == "pyproject.toml" else ""
    reader = _Reader(path, text, prefix)
    section = reader.section(whole)
    reader.check_keys(section, _PROJECT_KEYS, "")
    rules = reader.rules(section)
    defaults = reader.defaults(section)
    named = reader.table(section, "targets")
    baselines = section.get("baselines", _BASELINES)
    if not isinstance(baselines, str) or not baselines:
        reader.mistake(f"baselines cannot be {baselines!r}", "", "baselines", fix=f'write baselines = "{_BASELINES}"')
    targets = [reader.target(name, value, defaults, rules) for name, value in named.items()]
    refuse(reader.mistakes)
    return ProjectConfig(
        path=path.resolve(),
        baselines=path.resolve().parent / baselines,
        targets=tuple(target for target in targets if target is not None),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _POSITION.search(str(error))
        lines = text.split("\n")
        line = int(found[1]) if found and found[1] else len(lines)
        column = int(found[2]) if found and found[2] else len(lines[-1]) + 1
        raise ConfigError(
            f"{path.name} is no TOML",
            where=f"{path}:{line}:{column}",
            why=_POSITION.sub("", str(error)).strip().lower(),
            excerpt=caret_excerpt(lines[line - 1], column),
        ) from None


class _Reader:
    """Checks the tables of one file, knows where they are written, and gathers the mistakes in them.

    Attributes:
        mistakes: What is wrong, in the order in which it was found.
    """

    def __init__(self, path: Path, text: str, prefix: str) -> None:
        self.mistakes: list[ConfigError] = []
        self._path = path
        self._lines = text.split("\n")
        self._prefix = prefix

    def mistake(self, what: str, table: str, key: str | None = None, *, fix: str | None = None) -> None:
        """Notes what is wrong with a key of a table, with the line where it can be found."""
        line = self._line(table, key)
        place = str(self._path) if line is None else f"{self._path}:{line + 1}"
        excerpt = None if line is None else self._lines[line].strip()
        inside = (self._prefix + table).rstrip(".")
        where = f"{place} in [{inside}]" if inside else place
        self.mistakes.append(ConfigError(what, where=where, excerpt=excerpt, fix=fix))

    def _line(self, table: str, key: str | None) -> int | None:
        """The 0-based line of a key, of its table's header where it is in none, or None."""
        header = re.compile(rf"\s*\[\s*{_spelled(self._prefix + table)}\s*\]")
        at = next((index for index, line in enumerate(self._lines) if header.match(line)), None)
        for index in range(at + 1, len(self._lines)) if at is not None and key is not None else ():
            if self._lines[index].lstrip().startswith("["):
                break
            if re.match(rf"\s*\"?{re.escape(key or '')}\"?\s*[=.]", self._lines[index]):
                return index
        return at

    def section(self, whole: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of the file that is about targets."""
        found = whole.get("tool", {}).get("hloscope", {}) if self._prefix else whole
        if isinstance(found, dict):
            return found
        self.mistake(f"tool.hloscope is {found!r} and should be a table", "", fix="write [tool.hloscope.targets.step]")
        return {}

    def check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], name: str) -> None:
        """Notes keys that nobody reads."""
        for key in table:
            if key not in known:
                fix = did_you_mean(key.replace("_", "-"), known, f"use one of {', '.join(known)}")
                self.mistake(f"unknown key {key!r}", name, key, fix=fix)

    def table(self, section: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table of the section; empty where there is none."""
        value = section.get(key, {})
        if isinstance(value, dict):
            return value
        self.mistake(f"{key} is {value!r} and should be a table", "", key, fix=f"write [{self._prefix}{key}]")
        return {}

    def rules(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """What all targets say of rules' options."""
        rules, (check, example) = self.table(section, "rules"), KEYS["rules"]
        if check(rules):
            return rules
        self.mistake(f"rules cannot be {rules!r}", "", "rules", fix=f"write rules = {example}")
        return {}

    def defaults(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """What targets leave open."""
        defaults = self.table(section, "defaults")
        return defaults if self.check_values(defaults, "defaults", without=_NO_DEFAULT) else {}

    def check_values(self, table: Mapping[str, Any], name: str, *, without: tuple[str, ...] = ()) -> bool:
        """Notes keys that nobody reads, and values that their keys cannot have; returns whether there are none."""
        before = len(self.mistakes)
        known = {key: said for key, said in KEYS.items() if key not in without}
        self.check_keys(table, tuple(known), name)
        for key, value in table.items():
            check, example = known.get(key, (None, ""))
            if check is not None and not check(value):
                self.mistake(f"{key} cannot be {value!r}", name, key, fix=f"write {key} = {example}")
        if "slice" in table and "slices" in table:
            self.mistake("slice and slices are both given", name, "slices", fix="keep one of them")
        return len(self.mistakes) == before

    def target(
        self, name: str, value: Any, defaults: Mapping[str, Any], rules: Mapping[str, Any]
    ) -> TargetConfig | None:
        """One target, with the defaults for what it leaves open; None where something is wrong with it."""
        table = f"targets.{name}"
        if not isinstance(value, dict):
            self.mistake(f"the target {name} is {value!r} and should be a table", "targets", name)
            return None
        if not self.check_values(value, table) or not self._check_together(name, value, defaults):
            return None
        own = {"slice", "slices"} & value.keys()
        taken = {key: setting for key, setting in defaults.items() if not (own and key in ("slice", "slices"))}
        made = _target(name, {**taken, **value}, rules)
        line = self._line(table, None)
        return replace(made, place=self._path.name if line is None else f"{self._path.name}:{line + 1}")

    def _check_together(self, name: str, value: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
        """Notes keys that do not go together; returns whether there are none."""
        table, before = f"targets.{name}", len(self.mistakes)
        if ("function" in value) == ("hlo" in value):
            both = "both a function and a file of HLO" if "hlo" in value else "neither a function nor a file of HLO"
            self.mistake(f"the target {name} names {both}", table, fix='write function = "model.py:step"')
        for key in _ONLY_FOR_FUNCTIONS if "hlo" in value and "function" not in value else ():
            if key in value:
                self.mistake(f"{key} does not go with HLO text", table, key, fix="leave it out")
        if "source-root" in value and "function" in value and "hlo" not in value:
            fix = "leave it out: the files of a function are read anyway"
            self.mistake("source-root is for HLO text", table, "source-root", fix=fix)
        for key in _OF_RULES if "fail-on" not in {*value, *defaults} else ():
            if key in value:
                self.mistake(
                    f"{key} is about what rules find, and nothing that they find fails this check",
                    table,
                    key,
                    fix='add fail-on = "warning"',
                )
        return len(self.mistakes) == before


def _spelled(dotted: str) -> str:
    """A pattern for a table's name, whose parts may be quoted and spaced."""
    parts = (rf"[\"']?{re.escape(part)}[\"']?" for part in dotted.rstrip(".").split("."))
    return r"\s*\.\s*".join(parts)


def _target(name: str, table: Mapping[str, Any], rules: Mapping[str, Any]) -> TargetConfig:
    said = {option.name: table[option.key] for option in OPTIONS if option.key in table}
    said["rule_options"] = {**_options_of(rules), **_options_of(table.get("rules", {}))}
    is_text = "hlo" in table
    return TargetConfig(
        name=name,
        function=table.get("function"),
        hlo=table.get("hlo"),
        slices=tuple(dict.fromkeys(table.get("slices", [table.get("slice")]))),
        options={key: value for key, value in said.items() if BY_NAME[key].of_text or not is_text},
        source_root=table.get("source-root") if is_text else None,
        contract=table.get("contract"),
        baseline=table.get("baseline", True),
        fail_on=table.get("fail-on"),
    )


def _options_of(rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Options by `rule.option`."""
    return {f"{rule}.{option}": value for rule, options in rules.items() for option, value in options.items()}
