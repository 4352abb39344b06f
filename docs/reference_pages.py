"""The site's reference, from the code: `docs/conf.py` writes these pages into `docs/reference/` in each build.

They are not committed. `tests/docs` compares them with the code without building the site.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import api_pages
import click
import schema_pages
from markup import attributes_of, code, escaped, fenced, table

from hloscope.app import config
from hloscope.cli import group
from hloscope.compile.target import OPTIONS, OPTIONS_BY_NAME
from hloscope.model.finding import RuleDoc
from hloscope.pytest_plugin import pytest_addoption
from hloscope.report.pages import list_pages_by_command

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"

GUIDES = {
    "analyze": "analyze.md",
    "record": "recording.md",
    "price": "slices.md",
    "timeline": "time.md",
    "compare": "profiles.md",
    "measure": "profiles.md",
    "explain": "why.md",
    "suggest": "suggest.md",
    "shardings": "why.md",
    "graph": "why.md",
    "verify": "verify.md",
    "rules": "findings.md",
    "check": "ci.md",
    "merge-reports": "ci.md",
    "diff": "ci.md",
    "accept": "ci.md",
    "doctor": "install.md",
}
"""The guide that each command belongs to; a command without one has none yet."""

OF_PROJECT = {
    "baselines": ("the folder of baseline files, from the file's own folder", '"hloscope_baselines"'),
    "plugins": ("modules with rules of the project's own: see [](../rules.md)", '["ourteam.rules"]'),
    "helpers": (
        "files and functions that are not places of the model, so that what moves in them is shown at the line that "
        "calls them",
        '["layers.py", "Linear.__call__"]',
    ),
    "rules": ("options of rules, for every target", "{ small-collectives = { min-collectives = 8 } }"),
    "defaults": ("what targets leave open: a table with the keys of a target", '{ slice = "v5e:2x4" }'),
    "targets": ("the targets, each a table of its own", "[targets.step]"),
}
"""What the keys of the whole file mean, and a value of each."""


def pages() -> Mapping[str, str]:
    """The text of each page by its path in the folder."""
    return {
        "index.md": _index(),
        **{f"commands/{name}.md": text for name, text in _command_pages()},
        **{f"rules/{page.name}.md": _rule(page) for docs in _own_findings().values() for page in docs},
        "rules/index.md": _rules_index(),
        "config.md": _config(),
        "pytest.md": _pytest(),
        "contracts.md": _contracts(),
        **{f"python/{name}.md": text for name, text in api_pages.pages()},
        **{f"schemas/{name}.md": text for name, text in schema_pages.pages()},
    }


def write(folder: Path = FOLDER) -> None:
    """Writes the pages in place of those that are there; a page that is up to date keeps its time."""
    made = pages()
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def remove(folder: Path = FOLDER) -> None:
    """Removes the pages."""
    shutil.rmtree(folder, ignore_errors=True)


def _toctree(*entries: str, hidden: bool = True) -> str:
    lines = ["```{toctree}", ":maxdepth: 1", *([":hidden:"] if hidden else []), "", *entries, "```"]
    return "\n".join(lines)


def _index() -> str:
    commands = [(f"[`hloscope {name}`](commands/{name}.md)", _summary(command)) for name, command in commands_by_name()]
    return "\n\n".join(
        [
            "# Reference",
            "Everything on these pages is taken from the code of this version.",
            "## Commands",
            table(("command", "what it does"), commands),
            "## Python, files and documents",
            "* [Python API](python/index.md)\n* [Rules and findings](rules/index.md)\n* [The targets file](config.md)\n"
            "* [Contracts](contracts.md)\n* [The pytest plugin](pytest.md)\n* [JSON documents](schemas/index.md)\n"
            "* [Environment variables](../environment.md)",
            _toctree(
                *(f"commands/{name}" for name, _ in commands_by_name()),
                *("python/index", "rules/index", "config", "contracts", "pytest", "schemas/index"),
            ),
        ]
    )


# ---- commands


def commands_by_name() -> Iterator[tuple[str, click.Command]]:
    """Every command, in the order of `hloscope --help`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command


def _summary(command: click.Command) -> str:
    return escaped(command.get_short_help_str(limit=200))


def _command_pages() -> Iterator[tuple[str, str]]:
    for name, command in commands_by_name():
        context = click.Context(command, info_name=f"hloscope {name}")
        options = [part for part in command.params if isinstance(part, click.Option)]
        parts = [
            f"# hloscope {name}",
            fenced(" ".join([context.command_path, *command.collect_usage_pieces(context)]), "text"),
            *map(escaped, textwrap.dedent(command.help or "").strip().replace("\b\n", "").split("\n\n")),
        ]
        if name in GUIDES:
            parts.append(f"The guide: [](../../{GUIDES[name]}).")
        parts += ["## Options", *(_option(option, context) for option in options)]
        if command.epilog:
            parts += ["## Notes and examples", *map(_epilog_part, re.split(r"\n\n+", inspect.cleandoc(command.epilog)))]
        yield name, "\n\n".join(parts) + "\n"


def _option(option: click.Option, context: click.Context) -> str:
    """A definition: the flags and the value, and under it what it does."""
    record = option.get_help_record(context)
    assert record is not None, f"{option.name} has no help"
    flags, said = record
    return f"`{flags}`\n: {escaped(' '.join(said.split()))}"


def _epilog_part(text: str) -> str:
    block = text.removeprefix("\b\n")
    return escaped(block) if block == text and not text.startswith("\b") else fenced(block.strip("\b\n"), "text")


# ---- rules and findings


def _own_findings() -> Mapping[str, tuple[RuleDoc, ...]]:
    """The pages by who finds it, without plug-ins of the machine that builds the site."""
    return {who: docs for who, docs in list_pages_by_command().items() if not who.startswith("Of the plug-in")}


def _rules_index() -> str:
    parts = [
        "# Rules and findings",
        "Every finding has a name, a severity and a page. `hloscope rules NAME` prints the page in a terminal.",
    ]
    names: list[str] = []
    for who, docs in _own_findings().items():
        rows = [
            (f"[`{page.name}`]({page.name}.md)", page.severity.value, escaped(page.summary))
            for page in sorted(docs, key=lambda page: (-page.severity.rank, page.name))
        ]
        names += [page.name for page in docs]
        title = who.replace("Of ", "Findings of ", 1) or "Rules of every command"
        parts += [f"## {title}", table(("name", "severity", "what it finds"), rows)]
    return "\n\n".join([*parts, _toctree(*sorted(names))]) + "\n"


def _rule(page: RuleDoc) -> str:
    parts = [f"# {page.name}", f"**{page.severity}**: {escaped(page.summary)}"]
    for title, text in page.sections:
        parts += [f"## {title}", _section(text)]
    if page.options:
        rows = [(code(name), code(default), escaped(says)) for name, default, says in page.options]
        parts += ["## Options", table(("option", "default", "meaning"), rows)]
        example = f"{page.name}.{page.options[0][0]}"
        parts.append(f"Set one with `--rule-option {example}=VALUE`, or in [the targets file](../config.md).")
    return "\n\n".join(parts) + "\n"


def _section(text: str) -> str:
    """A section of a page: prose as it is, and what is indented as code."""
    shown = text[:1].upper() + text[1:]
    return fenced(shown, "text") if re.search(r"(?m)^ {2,}\S", shown) else escaped(shown)


# ---- the targets file, contracts, pytest


def _config() -> str:
    project = [(code(key), escaped_links(OF_PROJECT[key][0]), code(OF_PROJECT[key][1])) for key in config._PROJECT_KEYS]
    rows = [(code(key), escaped(_meaning(key)), code(example)) for key, (_, example) in config.TARGET_KEYS.items()]
    return "\n\n".join(
        [
            "# The targets file",
            "`[tool.hloscope]` in `pyproject.toml`, or the same without the prefix `tool.hloscope.` in a "
            "`hloscope.toml`. Commands take the nearest one, going upward from the current folder. "
            "[](../ci.md) shows it in use.",
            "## Keys of the file",
            table(("key", "meaning", "such as"), project),
            "## Keys of a target",
            "In `[tool.hloscope.targets.NAME]`, and except for `function`, `hlo` and `rules` in "
            "`[tool.hloscope.defaults]` too.",
            table(("key", "meaning", "such as"), rows),
            f"A tolerance may be given for {', '.join(map(code, config.TOLERATED_FIGURES))}.",
        ]
    )


def escaped_links(text: str) -> str:
    """Prose that has links of its own."""
    return text.replace("|", "\\|")


def _meaning(key: str) -> str:
    """What a key of a target means: what its option says, or else the field that holds it."""
    said = {option.key: option.says for option in OPTIONS if option.key} | {"slice": OPTIONS_BY_NAME["slice"].says}
    return said.get(key) or attributes_of(config.TargetConfig)[key.replace("-", "_")]


def _contracts() -> str:
    grammar = (ROOT / "grammars" / "contract.lark").read_text(encoding="utf-8")
    return "\n\n".join(
        [
            "# Contracts",
            "A contract is made of clauses, one a line or between semicolons. [](../contracts.md) says what each one "
            "holds a program to; [`hloscope.contracts`](python/contracts.md) writes the same in Python.",
            "## Grammar",
            "In the notation of [Lark](https://github.com/lark-parser/lark):",
            fenced(grammar, "text"),
        ]
    )


class _OptionsOfPytest:
    """Takes what the plugin adds to pytest."""

    def __init__(self) -> None:
        self.options: list[tuple[str, str]] = []
        self.settings: list[tuple[str, str]] = []

    def getgroup(self, *_: str) -> _OptionsOfPytest:
        return self

    def addoption(self, name: str, **described: Any) -> None:
        shown = f"{name} {described['metavar']}" if "metavar" in described else name
        self.options.append((shown, described["help"]))

    def addini(self, name: str, says: str, **_: Any) -> None:
        self.settings.append((name, says))


def pytest_options() -> _OptionsOfPytest:
    """The options and settings of the pytest plugin."""
    taken = _OptionsOfPytest()
    pytest_addoption(taken)  # type: ignore[arg-type]
    return taken


def _pytest() -> str:
    taken = pytest_options()
    return "\n\n".join(
        [
            "# The pytest plugin",
            'It comes with `pip install "hloscope[pytest]"`; [](../ci.md#pytest) shows tests with its fixture `hlo`.',
            "## Options",
            table(("option", "meaning"), [(code(name), escaped(says)) for name, says in taken.options]),
            "## Settings",
            table(("setting", "meaning"), [(code(name), escaped(says)) for name, says in taken.settings]),
        ]
    )
