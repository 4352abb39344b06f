"""The pages hold together: links lead somewhere, every page is in the navigation, and what they name exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import reference_pages
import refresh

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
GENERATED = {f"docs/reference/{name}": text for name, text in reference_pages.pages().items()}
WRITTEN = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(DOCS.glob("*.md"))}
OTHERS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
PAGES = {**WRITTEN, **GENERATED}

CODE = re.compile(r"(?ms)^ *```.*?^ *```$|`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]*)\)")
TOCTREE = re.compile(r"(?ms)^```\{toctree\}\n(.*?)^```$")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]+")
OPTIONS_OF_OTHERS = set(
    "--logdir --port --fit --nthreads --no-deps --steps --config --xla_dump_to --xla_dump_hlo_pass_re --help".split()
)
"""Options of XProf, pip, dask, git and users' scripts."""


def slug(heading: str) -> str:
    """The anchor of a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    headings = re.findall(r"(?m)^#{1,4} (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {slug(heading) for heading in headings} | set(re.findall(r"(?m)^\(([\w-]+)\)=$", text))


def links(text: str) -> list[str]:
    without_blocks = re.sub(r"(?ms)^ *```(?!\{).*?^ *```$", "", text)
    return [target for target in LINK.findall(re.sub(r"`[^`\n]*`", "", without_blocks)) if ":" not in target]


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_every_link_leads_somewhere(name):
    text = {**PAGES, **OTHERS}[name]
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        inside = Path(target).resolve().relative_to(ROOT).as_posix()
        assert inside in PAGES or (ROOT / inside).is_file() or (name in OTHERS and (ROOT / inside).is_dir()), link
        if anchor:
            known = {**PAGES, **OTHERS}.get(inside, "")
            assert anchor in anchors(known), link


def entries() -> Counter[str]:
    """The pages that the trees of contents name, with how often."""
    found: Counter[str] = Counter()
    for name, text in PAGES.items():
        for tree in TOCTREE.findall(text):
            for line in tree.splitlines():
                if line.strip() and not line.startswith(":"):
                    target = ((ROOT / name).parent / f"{line.strip()}.md").resolve()
                    found[target.relative_to(ROOT).as_posix()] += 1
    return found


def test_every_page_is_in_the_navigation_once():
    named = entries()
    assert set(named) == set(PAGES) - {"docs/index.md"}
    assert {name: times for name, times in named.items() if times > 1} == {}


def test_every_page_has_one_title():
    for name, text in PAGES.items():
        body = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
        is_included = text.startswith("```{include}")
        assert len(re.findall(r"(?m)^# ", body)) == (0 if is_included else 1), name


def flags() -> set[str]:
    options = {
        flag
        for _, command in reference_pages.commands_by_name()
        for option in command.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    of_pytest = {name.split()[0] for name, _ in reference_pages.pytest_options().options}
    return options | of_pytest | {f"--no-{name[2:]}" for name in of_pytest} | OPTIONS_OF_OTHERS


@pytest.mark.parametrize("name", [*WRITTEN, "README.md", "CHANGELOG.md"])
def test_what_a_page_names_exists(name):
    text = {**WRITTEN, **OTHERS}[name]
    commands = {command for command, _ in reference_pages.commands_by_name()}
    code = "\n".join(CODE.findall(text))
    assert set(re.findall(r"(?m)^ *(?:`|\$ )?hloscope ([a-z][a-z-]+)\b", code)) <= commands
    assert set(OPTION.findall(code)) <= flags()


def test_the_readme_is_one_screen_and_some():
    assert len(OTHERS["README.md"].splitlines()) < 200
    for command, _ in reference_pages.commands_by_name():
        assert re.search(rf"`(hloscope )?{command}`", OTHERS["README.md"]), command


@pytest.mark.parametrize("name", [*WRITTEN, "README.md"])
def test_what_commands_print_can_be_printed_again(name):
    for block in refresh.BLOCK.finditer({**WRITTEN, **OTHERS}[name]):
        if block["kind"] == "console":
            assert block["body"].startswith("$ hloscope "), block["body"][:80]
            assert block["body"].count("\n") > 1, f"nothing printed: python docs/refresh.py {name}"
            assert "hloscope itself failed" not in block["body"], "refreshed in a broken environment"


def test_a_guide_is_worked_through_in_a_folder_of_its_own(tmp_path):
    guide = tmp_path / "guide.md"
    blocks = [
        "<!-- in a folder of its own -->",
        "```text\n# step.hlo\nHloModule m\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n```",
        "```console\n$ cat step.hlo | tail -2\nstale\n```",
        "```diff\n--- step.hlo\n+++ step.hlo\n@@ -3,3 +3,3 @@\n ENTRY e {\n-  ROOT p = f32[4] parameter(0)\n"
        "+  ROOT p = f32[8] parameter(0)\n }\n```",
        "```console\n$ grep -c 'f32.8' step.hlo\n```",
        "<!-- made by: wc -l < step.hlo -->\n<!-- end -->",
    ]
    guide.write_text("\n\n".join(blocks) + "\n")
    assert not refresh.refresh(guide, check=True)
    assert "stale" in guide.read_text()
    refresh.refresh(guide, check=False)
    text = guide.read_text()
    assert "$ cat step.hlo | tail -2\n  ROOT p = f32[4] parameter(0)\n}\n```" in text
    assert "step.hlo\n1\n```" in text
    assert "-->\n\n6\n\n<!-- end -->" in text
    assert refresh.refresh(guide, check=True)


def test_each_claim_of_the_book_that_does_not_hold_is_explained():
    table, explained = WRITTEN["docs/seeds.md"].partition("seed_tables.py moves")[2].split("<!-- end -->")[:2]
    claims = [row.split("|")[-2].strip() for row in table.splitlines() if row.startswith("| ")][2:]
    assert set(claims) == {"yes", "no"}
    assert "Four of them do not hold:" in explained
    assert claims.count("no") == 4 == len(re.findall(r"(?m)^\* ", explained.partition("Times.")[0]))
