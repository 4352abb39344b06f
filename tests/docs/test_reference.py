"""Nothing that a user can name is left out of the reference: commands, options, rules, keys, fields, public names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import api_pages
import click
import markup
import pytest
import reference_pages
import schema_pages

import hloscope
from hloscope import aio, contracts, rules
from hloscope.app import config
from hloscope.cli import group
from hloscope.report.pages import list_pages as known_findings

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "hloscope").rglob("*.py"))
PAGES = reference_pages.pages()
COMMANDS = dict(reference_pages.commands_by_name())
INTERNAL = {"HLOSCOPE_REMOTE_CACHE_NOTES", "HLOSCOPE_WORKER_FOR", "HLOSCOPE_"}
"""Variables that hloscope sets for its own processes, and the prefix of all."""


def test_every_command_has_a_page_and_a_guide():
    names = set(group.list_commands(click.Context(group)))
    assert {Path(page).stem for page in PAGES if page.startswith("commands/")} == names
    assert set(reference_pages.GUIDES) == names
    assert all((ROOT / "docs" / guide).is_file() for guide in reference_pages.GUIDES.values())
    assert all(f"hloscope {name}" in PAGES["index.md"] for name in names)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described_on_its_page(name):
    page = PAGES[f"commands/{name}.md"]
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option):
            assert not option.hidden
            assert option.help, f"{option.name} has no help"
            for flag in (*option.opts, *option.secondary_opts):
                assert re.search(rf"(?m)^`[^`\n]*{re.escape(flag)}\b[^`\n]*`\n: \S", page), flag
    for argument in (part for part in COMMANDS[name].params if isinstance(part, click.Argument)):
        assert argument.make_metavar(click.Context(COMMANDS[name])) in page


WRITTEN_OUT = re.compile(r'(?:Finding|finding)\(\s*(?:rule=)?"([a-z]+(?:-[a-z]+)+)"')
"""A finding whose name is written where it is made."""


def test_every_finding_has_a_page():
    pages = {Path(page).stem for page in PAGES if page.startswith("rules/")} - {"index"}
    assert pages == set(known_findings())
    written_out = {name for path in SOURCES for name in WRITTEN_OUT.findall(path.read_text())}
    assert len(written_out) >= 10
    assert written_out <= pages
    for name, doc in known_findings().items():
        assert markup.escaped(doc.summary) in PAGES[f"rules/{name}.md"]
        assert [title for title, text in doc.sections if text.strip()] == list(rules_titles(name))
        assert all(f"`{option}`" in PAGES[f"rules/{name}.md"] for option, _, _ in doc.options)
        assert f"[`{name}`]({name}.md)" in PAGES["rules/index.md"]


def rules_titles(name: str) -> list[str]:
    return [title for title in re.findall(r"(?m)^## (.*)$", PAGES[f"rules/{name}.md"]) if title != "Options"]


def test_every_key_of_the_targets_file_is_described():
    assert set(reference_pages.OF_PROJECT) == set(config._PROJECT_KEYS)
    rows = dict(re.findall(r"(?m)^\| `([\w-]+)` \| ([^|\n]+) \|", PAGES["config.md"]))
    assert set(rows) == {*config._PROJECT_KEYS, *config.TARGET_KEYS}
    assert all(len(meaning) > 10 for meaning in rows.values())


@pytest.mark.parametrize("path", sorted(schema_pages.SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_every_field_of_a_document_is_described(path):
    schema, page = json.loads(path.read_text()), PAGES[f"schemas/{path.stem}.md"]
    assert path.stem in schema_pages.PRINTED_BY
    for name, definition in {"The document": schema, **schema["$defs"]}.items():
        (section,) = re.findall(rf"(?ms)^## {name}$(.*?)(?=^\(\w|^## |\Z)", page)
        for field, described in definition.get("properties", {}).items():
            assert re.search(rf"(?m)^\| `{field}` \| [^|\n]+ \| \S", section), f"{name}.{field}"
            assert markup.escaped(described["description"]) in section
        assert all(f"`{value}`" in section for value in definition.get("enum", ()))


def test_every_document_is_printed_by_something_that_exists():
    assert set(schema_pages.PRINTED_BY) == {path.stem for path in schema_pages.SCHEMAS.glob("*.json")}
    for printed_by in schema_pages.PRINTED_BY.values():
        command = re.match(r"hloscope (\w+)", printed_by)
        assert command is None or command[1] in COMMANDS


@pytest.mark.parametrize("module", [hloscope, contracts, rules, aio], ids=lambda module: module.__name__)
def test_every_public_name_is_on_a_page(module):
    shown = {
        name for page, text in PAGES.items() if page.startswith("python/") for name in re.findall(r":: ([\w.]+)", text)
    }
    names = api_pages.public_names(module)
    modules = {"aio", "contracts", "rules"}
    assert {f"{module.__name__}.{name}" for name in names if name not in modules} <= shown
    assert all((value.__doc__ or "").strip() for value in names.values())


def test_every_option_of_pytest_is_described():
    taken = reference_pages.pytest_options()
    assert len(taken.options) >= 6
    for name, says in (*taken.options, *taken.settings):
        assert says
        assert f"`{name}`" in PAGES["pytest.md"]


def test_every_environment_variable_is_described():
    used = {name for path in SOURCES for name in re.findall(r"\bHLOSCOPE_[A-Z_]*", path.read_text())} - INTERNAL
    described = set(re.findall(r"(?m)^\| `(HLOSCOPE_\w+)` \|", (ROOT / "docs" / "environment.md").read_text()))
    assert described == used


def test_a_page_that_is_up_to_date_is_left_alone(tmp_path):
    reference_pages.write(tmp_path)
    (tmp_path / "rules" / "gone.md").write_text("# gone")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    reference_pages.write(tmp_path)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    assert set(before) - set(after) == {tmp_path / "rules" / "gone.md"}
    assert all(before[path] == time for path, time in after.items())
    assert {path.relative_to(tmp_path).as_posix() for path in after} == set(PAGES)
