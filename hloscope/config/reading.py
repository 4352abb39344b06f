"""From a TOML file to a project's targets, or to an error that says what, where and how to fix it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hloscope.config.model import BASELINES, ConfigError, ProjectConfig, TargetConfig
from hloscope.errors import caret_excerpt, did_you_mean

_POSITION = re.compile(r"\(at line (\d+), column (\d+)\)|\(at end of document\)")

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _maps_to(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_mesh(value: Any) -> bool:
    return _is_text(value) or (_maps_to(_is_count)(value) and all(value.values()))


def _is_array(value: Any) -> bool:
    """A notation, or a pytree of notations."""
    if isinstance(value, list):
        return all(map(_is_array, value))
    return _is_text(value) or (isinstance(value, dict) and all(map(_is_array, value.values())))


def _is_contract(value: Any) -> bool:
    return isinstance(value, str | list | dict)


_KEYS: dict[str, tuple[_Check, str]] = {
    "function": (_is_text, '"model.py:step"'),
    "hlo": (_is_text, '"step.hlo"'),
    "slice": (_is_text, '"v5e:2x4"'),
    "slices": (_are(_is_text), '["v5e:2x4", "v5p:2x2x2"]'),
    "mesh": (_is_mesh, "{ data = 4, model = 2 }"),
    "args": (_are(_is_array), '["bf16[512@data,2048]"]'),
    "kwargs": (_maps_to(_is_array), '{ w = "bf16[2048,8192@model]" }'),
    "out": (_are(_is_text), "[\"P('data', None)\"]"),
    "static": (lambda value: isinstance(value, dict), "{ shift = 5 }"),
    "donate": (_are(_is_count), "[0, 1]"),
    "dims": (_maps_to(_is_count), "{ S = 2048 }"),
    "axis-types": (_is_text, '"auto"'),
    "dcn": (_is_mesh, "{ data = 2 }"),
    "compiler-options": (lambda value: isinstance(value, dict), "{ xla_tpu_enable_async_collective_fusion = false }"),
    "contract": (_is_contract, '["all-reduce@model <= 2MB", "nothing else"]'),
    "baseline": (_is_flag, "false"),
}
_ONLY_FOR_FUNCTIONS = ("args", "kwargs", "out", "static", "donate", "dims", "axis-types", "compiler-options")
_PROJECT_KEYS = ("baselines", "defaults", "targets")
_NO_DEFAULT = ("function", "hlo")


def has_section(path: Path) -> bool:
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
        ConfigError: It is no TOML, a key is unknown, or a value is not what the key needs.
    """
    text = _text(path)
    whole = _parsed(path, text)
    prefix = "tool.hloscope." if path.name == "pyproject.toml" else ""
    section = whole.get("tool", {}).get("hloscope", {}) if prefix else whole
    reader = _Reader(path, text, prefix)
    reader.check_keys(section, _PROJECT_KEYS, "")
    defaults = reader.table(section, "defaults")
    reader.check_values(defaults, "defaults", without=_NO_DEFAULT)
    targets = reader.table(section, "targets")
    baselines = section.get("baselines", BASELINES)
    if not isinstance(baselines, str) or not baselines:
        raise reader.error(
            f"baselines cannot be {baselines!r}", "", "baselines", fix=f'write baselines = "{BASELINES}"'
        )
    return ProjectConfig(
        path=path.resolve(),
        baselines=path.resolve().parent / baselines,
        targets=tuple(reader.target(name, value, defaults) for name, value in targets.items()),
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
    """Checks the tables of one file, and knows where they are written."""

    def __init__(self, path: Path, text: str, prefix: str) -> None:
        self._path = path
        self._lines = text.split("\n")
        self._prefix = prefix

    def error(self, what: str, table: str, key: str | None = None, *, fix: str | None = None) -> ConfigError:
        """An error about a key of a table, with the line where it can be found."""
        line = self._line(table, key)
        place = str(self._path) if line is None else f"{self._path}:{line + 1}"
        excerpt = None if line is None else self._lines[line].strip()
        inside = (self._prefix + table).rstrip(".")
        return ConfigError(what, where=f"{place} in [{inside}]" if inside else place, excerpt=excerpt, fix=fix)

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

    def check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], name: str) -> None:
        """Refuses keys that nobody reads."""
        for key in table:
            if key not in known:
                fix = did_you_mean(key.replace("_", "-"), known, f"use one of {', '.join(known)}")
                raise self.error(f"unknown key {key!r}", name, key, fix=fix)

    def table(self, section: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table of the section; empty where there is none."""
        value = section.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} is {value!r} and should be a table", "", key, fix=f"write [{self._prefix}{key}]")
        return value

    def check_values(self, table: Mapping[str, Any], name: str, *, without: tuple[str, ...] = ()) -> None:
        """Refuses keys that nobody reads, and values that their keys cannot have."""
        self.check_keys(table, tuple(key for key in _KEYS if key not in without), name)
        for key, value in table.items():
            check, example = _KEYS[key]
            if not check(value):
                raise self.error(f"{key} cannot be {value!r}", name, key, fix=f"write {key} = {example}")
        if "slice" in table and "slices" in table:
            raise self.error("slice and slices are both given", name, "slices", fix="keep one of them")

    def target(self, name: str, value: Any, defaults: Mapping[str, Any]) -> TargetConfig:
        """One target, with the defaults for what it leaves open."""
        table = f"targets.{name}"
        if not isinstance(value, dict):
            raise self.error(f"the target {name} is {value!r} and should be a table", "targets", name)
        self.check_values(value, table)
        if ("function" in value) == ("hlo" in value):
            both = "both a function and a file of HLO" if "hlo" in value else "neither a function nor a file of HLO"
            raise self.error(f"the target {name} names {both}", table, fix='write function = "model.py:step"')
        if "hlo" in value:
            for key in _ONLY_FOR_FUNCTIONS:
                if key in value:
                    raise self.error(f"{key} does not go with HLO text", table, key, fix="leave it out")
        own = {"slice", "slices"} & value.keys()
        taken = {key: setting for key, setting in defaults.items() if not (own and key in ("slice", "slices"))}
        made = _target(name, {**taken, **value})
        line = self._line(table, None)
        return replace(made, place=self._path.name if line is None else f"{self._path.name}:{line + 1}")


def _spelled(dotted: str) -> str:
    """A pattern for a table's name, whose parts may be quoted and spaced."""
    parts = (rf"[\"']?{re.escape(part)}[\"']?" for part in dotted.rstrip(".").split("."))
    return r"\s*\.\s*".join(parts)


def _target(name: str, table: Mapping[str, Any]) -> TargetConfig:
    is_text = "hlo" in table
    options = table.get("compiler-options", {})
    slices = table.get("slices") or [table.get("slice")]
    return TargetConfig(
        name=name,
        function=table.get("function"),
        hlo=table.get("hlo"),
        slices=tuple(dict.fromkeys(slices)),
        mesh=table.get("mesh"),
        args=None if is_text or "args" not in table else tuple(table["args"]),
        kwargs={} if is_text else table.get("kwargs", {}),
        out=None if is_text or "out" not in table else tuple(None if one == "None" else one for one in table["out"]),
        static={} if is_text else table.get("static", {}),
        donate=None if is_text or "donate" not in table else tuple(table["donate"]),
        dims={} if is_text else table.get("dims", {}),
        axis_types=None if is_text else table.get("axis-types"),
        dcn=table.get("dcn"),
        compiler_options={} if is_text else {key: _option(value) for key, value in options.items()},
        contract=table.get("contract"),
        baseline=table.get("baseline", True),
    )


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
