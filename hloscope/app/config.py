"""`[tool.hloscope]` in pyproject.toml, or hloscope.toml: named targets, their contracts, and the folder of baselines.

Notations and contracts are parsed by their users: here they are plain values. Every mistake becomes an
error with its description, place and fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloscope.base.errors import HloscopeError, Option, did_you_mean, format_excerpt, say
from hloscope.compile.target import OPTIONS, OPTIONS_BY_NAME, is_list_of, is_share, is_table_of, is_text
from hloscope.judge.plugins import load_plugins

_BASELINES = "hloscope_baselines"
"""The folder of baseline files, unless the project names another."""


class ConfigError(HloscopeError):
    """The targets file contains a mistake."""


class ConfigMistakesError(ConfigError):
    """Several mistakes in one targets file.

    Attributes:
        mistakes: Each of them.
    """

    def __init__(self, mistakes: Sequence[HloscopeError]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(f"{len(mistakes)} mistakes in the targets file")

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.mistakes))


def raise_mistakes(mistakes: Sequence[HloscopeError]) -> None:
    """Raises all mistakes at once.

    Raises:
        HloscopeError: There is one mistake.
        ConfigMistakesError: There are several mistakes.
    """
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise ConfigMistakesError(mistakes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One target: a function or a file of HLO, its compile options, and its expectations.

    Attributes:
        name: Its name in `hloscope check`.
        function: `package.module:fn` or `path/to/file.py:fn`; None for HLO text.
        hlo: The path of a file of HLO text, from the project's folder; None for a function.
        slices: The slices to compile for; None is the default one.
        options: Its other options, by the names of `hloscope.compile.target.OPTIONS`.
        source_root: For HLO text: the folder, from the project's, in which files that it names may be read.
        contract: The contract as in TOML: text, or a list of texts; or None.
        baseline: Whether its communication is compared with a baseline file.
        rules: The rules for which it has options.
        fail_on: The least severity of a finding that fails the check, `error`, `warning` or `note`; None if
            no finding does.
        tolerance: The allowed growth of the baseline's figures, as shares: of the step and of
            parts of the memory.
        place: The file and the line where it is written; None if it is not in a file.
    """

    name: str
    function: str | None = None
    hlo: str | None = None
    slices: tuple[str | None, ...] = (None,)
    options: Mapping[str, Any] = field(default_factory=dict)
    source_root: str | None = None
    contract: Any = None
    baseline: bool = True
    rules: tuple[str, ...] = ()
    fail_on: str | None = None
    tolerance: Mapping[str, float] = field(default_factory=dict)
    place: str | None = None

    @property
    def where(self) -> str:
        """Its place with its name, for messages."""
        return f"{self.place}, target {self.name}" if self.place else f"target {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginNames:
    """The plug-ins that a project names.

    Attributes:
        root: The project's folder, from which they can be imported.
        names: Modules with rules.
        place: The file and the line where they are written.
    """

    root: Path
    names: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """A project's targets.

    Attributes:
        path: The targets file.
        baselines: The folder of baseline files.
        targets: The targets in the order of the file.
        plugins: The modules with its own rules.
    """

    path: Path
    baselines: Path
    targets: tuple[TargetConfig, ...]
    plugins: PluginNames

    @property
    def root(self) -> Path:
        """The project's folder: targets are imported from there, and paths are relative to it."""
        return self.path.parent

    def named(self, names: tuple[str, ...]) -> tuple[TargetConfig, ...]:
        """The targets with these names, or all of them.

        Raises:
            ConfigError: There is no target with such a name, or no target at all.
        """
        if not self.targets:
            raise ConfigError("there are no targets", where=str(self.path), fix="add [targets.NAME] with a function")
        by_name = {target.name: target for target in self.targets}
        for name in names:
            if name not in by_name:
                fix = did_you_mean(name, by_name, f"the targets are {', '.join(by_name)}")
                raise ConfigError(f"there is no target {name!r}", where=str(self.path), fix=fix)
        return tuple(by_name[name] for name in dict.fromkeys(names)) or self.targets


_Takes = tuple[Callable[[Any], bool], str]
"""Returns whether a key accepts a value, with an example of a valid value for messages."""

_SEVERITIES = ("error", "warning", "note")
"""The values of `fail-on`."""

TOLERATED_FIGURES = ("step", "peak", "arguments", "outputs", "temporaries", "code")
"""The figures of a baseline that may have a tolerance."""

TARGET_KEYS: dict[str, _Takes] = {
    "function": (is_text, '"model.py:step"'),
    "hlo": (is_text, '"step.hlo"'),
    "slice": (is_text, '"v5e:2x4"'),
    "slices": (lambda value: bool(value) and is_list_of(is_text)(value), '["v5e:2x4", "v5p:2x2x2"]'),
    **{option.key: (option.fits, option.example) for option in OPTIONS if option.key},
    "source-root": (is_text, '"src"'),
    # also a table: the error of the contract's parser says how to write it as text
    "contract": (lambda value: isinstance(value, str | list | dict), '["all-reduce@model <= 2MB", "nothing else"]'),
    "baseline": (lambda value: isinstance(value, bool), "false"),
    "fail-on": (lambda value: value in _SEVERITIES, '"warning"'),
    "tolerance": (
        lambda value: is_table_of(is_share)(value) and value.keys() <= {*TOLERATED_FIGURES},
        '{ step = "5%", peak = "5%" }, each less than 100%, of ' + ", ".join(TOLERATED_FIGURES),
    ),
}
_ONLY_FOR_FUNCTIONS = tuple(option.key for option in OPTIONS if option.key and not option.of_text)
"""The keys that do not apply to a file of HLO text."""

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
        named: The file that the user named; it is used without a search.

    Raises:
        ConfigError: There is no such file, or it has mistakes.
    """
    path = _find_nearest_file(start) if named is None else named
    if path is None:
        raise ConfigError(
            "no targets are configured",
            why=f"neither {start.resolve()} nor a folder above it has a hloscope.toml, or a pyproject.toml with "
            "[tool.hloscope]",
            fix=_EXAMPLE,
        )
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file {path}", fix="name a TOML file with targets")
    if named is None and path.name == "hloscope.toml" and _has_section(path.with_name("pyproject.toml")):
        what = "hloscope.toml and pyproject.toml both have targets, and those of one would not be checked"
        raise ConfigError(
            what, where=str(path.parent), fix=say("keep one of them, or name it: ", Option("config", "FILE"))
        )
    return read_project(path)


def find_plugins(start: Path, *, named: Path | None = None) -> PluginNames | None:
    """The plug-ins of the project that contains a folder, whatever its targets; None without a project.

    Args:
        start: The folder to begin at.
        named: The project's file, if known.

    Raises:
        ConfigError: The file cannot be read, or does not name modules.
    """
    path = _find_nearest_file(start) if named is None else named
    if path is None:
        return None
    reader, section = _open_targets(path)
    found = reader.plugins(section)
    raise_mistakes(reader.mistakes)
    return found


def load_project_plugins(start: Path, *, config: Path | None = None) -> None:
    """Loads the plug-ins of the project that a folder belongs to.

    Args:
        start: The folder.
        config: The project's targets file, if known.

    Raises:
        HloscopeError: The file cannot be read, or a plug-in cannot be loaded.
    """
    found = find_plugins(start, named=config)
    if found is not None:
        load_plugins(*found.names, root=found.root, where=found.place)


def find_helpers(start: Path, *, named: Path | None = None) -> tuple[str, ...]:
    """The files and functions that a project calls helpers; see `find_plugins`."""
    path = _find_nearest_file(start) if named is None else named
    if path is None:
        return ()
    reader, section = _open_targets(path)
    found = reader.value(section, "", "helpers", _TAKES_HELPERS, ())
    raise_mistakes(reader.mistakes)
    return tuple(found)


def _find_nearest_file(start: Path) -> Path | None:
    """The targets file in a folder or the nearest one above it.

    Raises:
        ConfigError: A file in between mentions hloscope and cannot be read.
    """
    folder = start.resolve()
    for place in (folder, *folder.parents):
        for path in (place / "hloscope.toml", place / "pyproject.toml"):
            if _has_section(path):
                return path
    return None


_POSITION = re.compile(r"\(at line (\d+), column (\d+)\)|\(at end of document\)")

_PROJECT_KEYS = ("baselines", "plugins", "helpers", "rules", "defaults", "targets")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_TAKES_MODULES: _Takes = (
    is_list_of(lambda name: is_text(name) and _MODULE.fullmatch(name) is not None),
    '["ourteam.rules"]',
)
_TAKES_HELPERS: _Takes = (is_list_of(lambda name: is_text(name) and name != ""), '["layers.py", "Linear.__call__"]')
_TAKES_FOLDER: _Takes = (lambda value: is_text(value) and value != "", f'"{_BASELINES}"')
_NO_DEFAULT = ("function", "hlo", "rules")


def _has_section(path: Path) -> bool:
    """Returns whether a file is about hloscope: any hloscope.toml, or a pyproject.toml with `[tool.hloscope]`.

    Raises:
        ConfigError: The file mentions hloscope and cannot be read.
    """
    if path.name == "hloscope.toml" or not os.path.isfile(path):
        return os.path.isfile(path)
    text = _read_text(path)
    return "tool.hloscope" in text and "hloscope" in _parse_toml(path, text).get("tool", {})


def read_project(path: Path) -> ProjectConfig:
    """Reads a project's targets.

    Args:
        path: A pyproject.toml, of which only `[tool.hloscope]` is read, or another TOML file, read as a whole.

    Raises:
        ConfigError: It is not TOML, a key is unknown, or a value is invalid; all such mistakes in one error.
    """
    reader, section = _open_targets(path)
    reader.check_keys(section, _PROJECT_KEYS, "")
    rules = reader.value({"rules": reader.table(section, "rules")}, "", "rules", TARGET_KEYS["rules"], {})
    defaults = reader.defaults(section)
    named = reader.table(section, "targets")
    baselines = reader.value(section, "", "baselines", _TAKES_FOLDER, _BASELINES)
    plugins = reader.plugins(section)
    reader.value(section, "", "helpers", _TAKES_HELPERS, ())
    targets = [reader.target(name, value, defaults, rules) for name, value in named.items()]
    raise_mistakes(reader.mistakes)
    return ProjectConfig(
        path=path.resolve(),
        baselines=path.resolve().parent / baselines,
        targets=tuple(target for target in targets if target is not None),
        plugins=plugins,
    )


def _open_targets(path: Path) -> tuple[_TargetsReader, Mapping[str, Any]]:
    """A targets file, and its part about hloscope.

    Raises:
        ConfigError: It is not TOML.
    """
    text = _read_text(path)
    reader = _TargetsReader(path, text, "tool.hloscope." if path.name == "pyproject.toml" else "")
    return reader, reader.section(_parse_toml(path, text))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from None


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # every analysis looks for a targets file, and few find one

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _POSITION.search(str(error))
        lines = text.split("\n")
        line = int(found[1]) if found and found[1] else len(lines)
        column = int(found[2]) if found and found[2] else len(lines[-1]) + 1
        raise ConfigError(
            f"{path.name} is not valid TOML",
            where=f"{path}:{line}:{column}",
            why=_POSITION.sub("", str(error)).strip().lower(),
            excerpt=format_excerpt(lines[line - 1], column),
        ) from None


class _TargetsReader:
    """Checks the tables of one file, knows the lines of their keys, and collects the mistakes.

    Attributes:
        mistakes: The mistakes, in the order in which they were found.
    """

    def __init__(self, path: Path, text: str, prefix: str) -> None:
        self.mistakes: list[ConfigError] = []
        self._path = path
        self._lines = text.split("\n")
        self._prefix = prefix

    def mistake(self, what: str, table: str, key: str | None = None, *, fix: str | None = None) -> None:
        """Records a mistake in a key of a table, with its line."""
        line = self._line(table, key)
        excerpt = None if line is None else self._lines[line].strip()
        inside = (self._prefix + table).rstrip(".")
        place = self.place(table, key, str(self._path))
        where = f"{place} in [{inside}]" if inside else place
        self.mistakes.append(ConfigError(what, where=where, excerpt=excerpt, fix=fix))

    def place(self, table: str, key: str | None, file: str) -> str:
        """The file, by its name in messages, and the line of a key, or of its table's header if the key is missing."""
        line = self._line(table, key)
        return file if line is None else f"{file}:{line + 1}"

    def _line(self, table: str, key: str | None) -> int | None:
        """The 0-based line of a key, of its table's header if the key is missing, or None."""
        inside, at = self._prefix + table, -1
        if inside:
            header = re.compile(rf"\s*\[\s*{_make_name_pattern(inside)}\s*\]")
            at = next((index for index, line in enumerate(self._lines) if header.match(line)), len(self._lines))
        for index in range(at + 1, len(self._lines)):
            if key is None or self._lines[index].lstrip().startswith("["):
                break
            if re.match(rf"\s*\"?{re.escape(key)}\"?\s*[=.]", self._lines[index]):
                return index
        return at if 0 <= at < len(self._lines) else None

    def section(self, whole: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of the file about targets."""
        found = whole.get("tool", {}).get("hloscope", {}) if self._prefix else whole
        if isinstance(found, dict):
            return found
        self.mistake(f"tool.hloscope is {found!r}, but must be a table", "", fix="write [tool.hloscope.targets.step]")
        return {}

    def check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], name: str) -> None:
        """Records unknown keys."""
        for key in table:
            if key not in known:
                fix = did_you_mean(key.replace("_", "-"), known, f"use one of {', '.join(known)}")
                self.mistake(f"unknown key {key!r}", name, key, fix=fix)

    def table(self, section: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table of the section; empty if missing."""
        value = section.get(key, {})
        if isinstance(value, dict):
            return value
        self.mistake(f"{key} is {value!r}, but must be a table", "", key, fix=f"write [{self._prefix}{key}]")
        return {}

    def value(self, table: Mapping[str, Any], name: str, key: str, takes: _Takes, otherwise: Any) -> Any:
        """The value of a key; `otherwise` if it is missing or invalid, which is recorded."""
        check, example = takes
        if key not in table or check(table[key]):
            return table.get(key, otherwise)
        self.mistake(f"{key} cannot be {table[key]!r}", name, key, fix=f"write {key} = {example}")
        return otherwise

    def plugins(self, section: Mapping[str, Any]) -> PluginNames:
        """The modules with the project's own rules."""
        names = self.value(section, "", "plugins", _TAKES_MODULES, ())
        place = self.place("", "plugins", self._path.name)
        return PluginNames(root=self._path.resolve().parent, names=tuple(names), place=place)

    def defaults(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """The values of keys that targets leave out."""
        defaults = self.table(section, "defaults")
        return defaults if self.check_values(defaults, "defaults", without=_NO_DEFAULT) else {}

    def check_values(self, table: Mapping[str, Any], name: str, *, without: tuple[str, ...] = ()) -> bool:
        """Records unknown keys and invalid values; returns whether there are none."""
        before = len(self.mistakes)
        known = {key: said for key, said in TARGET_KEYS.items() if key not in without}
        self.check_keys(table, tuple(known), name)
        for key in table:
            if key in known:
                self.value(table, name, key, known[key], None)
        if "slice" in table and "slices" in table:
            self.mistake("slice and slices are both set", name, "slices", fix="keep one of them")
        return len(self.mistakes) == before

    def target(
        self, name: str, value: Any, defaults: Mapping[str, Any], rules: Mapping[str, Any]
    ) -> TargetConfig | None:
        """One target, completed with the defaults; None if it has mistakes."""
        table = f"targets.{name}"
        if not isinstance(value, dict):
            self.mistake(f"the target {name} is {value!r}, but must be a table", "targets", name)
            return None
        if not self.check_values(value, table) or not self._check_together(name, value, defaults):
            return None
        own = {"slice", "slices"} & value.keys()
        taken = {key: setting for key, setting in defaults.items() if not (own and key in ("slice", "slices"))}
        return _make_target(name, {**taken, **value}, rules, self.place(table, None, self._path.name))

    def _check_together(self, name: str, value: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
        """Records keys that exclude each other; returns whether there are none."""
        table, before = f"targets.{name}", len(self.mistakes)
        is_function, is_compiled = "function" in value, "hlo" in value
        refused: dict[str, tuple[str, str]] = {}
        if is_function == is_compiled:
            both = "both a function and an HLO file" if is_compiled else "neither a function nor an HLO file"
            self.mistake(f"the target {name} names {both}", table, fix='write function = "model.py:step"')
        elif is_compiled:
            refused = {key: (f"{key} does not apply to HLO text", "leave it out") for key in _ONLY_FOR_FUNCTIONS}
        else:
            fix = "leave it out: the source files of a function are always read"
            refused["source-root"] = ("source-root is for HLO text", fix)
        if "fail-on" not in {*value, *defaults}:
            refused["rules"] = ("rules has no effect: no finding of a rule fails this check", 'add fail-on = "warning"')
        for key, (what, fix) in refused.items():
            if key in value:
                self.mistake(what, table, key, fix=fix)
        return len(self.mistakes) == before


def _make_name_pattern(dotted: str) -> str:
    """A pattern for a table's name, whose parts may be quoted and spaced."""
    parts = (rf"[\"']?{re.escape(part)}[\"']?" for part in dotted.rstrip(".").split("."))
    return r"\s*\.\s*".join(parts)


def _make_target(name: str, table: Mapping[str, Any], rules: Mapping[str, Any], place: str) -> TargetConfig:
    said = {option.name: table[option.key] for option in OPTIONS if option.key in table}
    said["rule_options"] = {**_collect_options(rules), **_collect_options(table.get("rules", {}))}
    is_text = "hlo" in table
    return TargetConfig(
        name=name,
        function=table.get("function"),
        hlo=table.get("hlo"),
        slices=tuple(dict.fromkeys(table.get("slices", [table.get("slice")]))),
        options={key: value for key, value in said.items() if OPTIONS_BY_NAME[key].of_text or not is_text},
        source_root=table.get("source-root") if is_text else None,
        contract=table.get("contract"),
        baseline=table.get("baseline", True),
        rules=tuple(dict.fromkeys((*rules, *table.get("rules", {})))),
        fail_on=table.get("fail-on"),
        tolerance={name: float(share.rstrip(" %")) / 100 for name, share in table.get("tolerance", {}).items()},
        place=place,
    )


def _collect_options(rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Options by `rule.option`."""
    return {f"{rule}.{option}": value for rule, options in rules.items() for option, value in options.items()}
