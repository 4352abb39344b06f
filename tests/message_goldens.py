"""What messages say: tests assert facts, and whole sentences stand in one golden for each folder of tests.

    def test_a_missing_unit(says):
        with pytest.raises(NotationError) as caught:
            all_reduce("Y", max_bytes="32")
        assert caught.value.where == "max_bytes, column 3"
        says(caught)

`says` compares with `goldens/messages.txt` beside the test, in the section of the test's name. A message that has no
section, or another text, fails its test; so does a section that its test did not ask for. A section whose test is gone
fails a check of its own, added to the session. `pytest FOLDER --update-goldens` writes what is said now, and drops what
nothing says any more; the difference is there for review.
"""

from __future__ import annotations

import difflib
import fcntl
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_HEAD = "=== "
_NOTE = "What messages say, by test; `pytest FOLDER --update-goldens` rewrites this file."
_CALL_PASSED: pytest.StashKey[bool] = pytest.StashKey()


def golden_of(test_file: Path) -> Path:
    return test_file.parent / "goldens" / "messages.txt"


def read_sections(path: Path) -> dict[str, str]:
    """The texts by section, which is a test's name, or that and a key of its own."""
    if not path.exists():
        return {}
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith(_HEAD):
            lines = sections.setdefault(line.removeprefix(_HEAD), [])
        else:
            lines.append(line)
    return {name: "\n".join(text).strip("\n") for name, text in sections.items()}


@contextmanager
def changed_sections(path: Path) -> Iterator[dict[str, str]]:
    """The sections to be changed; written back whole, by one process at a time."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sections = read_sections(path)
        before = dict(sections)
        yield sections
        if sections != before:
            texts = (f"\n{_HEAD}{name}\n{text}\n" for name, text in sorted(sections.items()))
            file.seek(0)
            file.truncate()
            file.write("".join((f"{_NOTE}\n", *texts)))


def name_of_test(section: str) -> str:
    """`test_a.py::test_b[c]` of `test_a.py::test_b[c] :: key`."""
    return section.partition(" :: ")[0]


def own_name(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}".replace("\n", " ")


class Says:
    """Compares what one test's messages say with its sections."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._name = own_name(request.node)
        self._places = {str(request.config.rootpath): "ROOT"}
        if "tmp_path" in request.fixturenames:
            self._places = {str(request.getfixturevalue("tmp_path")): "TMP", **self._places}
        self.path = golden_of(request.path)
        self.said: dict[str, str] = {}

    def __call__(self, message: object, key: str = "") -> str:
        """Fails the test when a message is not what the golden says; returns its text, for facts to be found in it.

        Args:
            message: A text, an error, what `pytest.raises` caught, or a list of such, each on lines of its own.
            key: Tells several messages of one test apart.
        """
        __tracebackhide__ = True
        text = self._text(message)
        section = f"{self._name} :: {key}" if key else self._name
        assert section not in self.said, f"{section} is said twice: give each message a key"
        assert not any(line.startswith(_HEAD) for line in text.splitlines()), "a message may not look like a section"
        self.said[section] = text
        return text

    def _text(self, message: object) -> str:
        if isinstance(message, pytest.ExceptionInfo):
            message = message.value
        if isinstance(message, list | tuple):
            return "\n".join(map(self._text, message))
        text = str(message)
        for place, shown in self._places.items():
            text = text.replace(place, shown)
        text = re.sub(r"\b0x[0-9a-f]{8,}\b", "0xADDRESS", text)
        return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())

    def differences(self) -> list[str]:
        """What is not as the golden has it, in lines."""
        golden = {name: text for name, text in read_sections(self.path).items() if name_of_test(name) == self._name}
        lines = [f"no longer said: {name}" for name in golden if name not in self.said]
        for name, text in self.said.items():
            if name not in golden:
                lines += [f"in no golden: {name}", *(f"  {line}" for line in text.splitlines())]
            elif golden[name] != text:
                compared = difflib.unified_diff(golden[name].splitlines(), text.splitlines(), "golden", "now", n=9)
                lines += [f"said otherwise: {name}", *(f"  {line.rstrip()}" for line in compared)]
        return lines

    def update(self) -> None:
        with changed_sections(self.path) as sections:
            for name in [name for name in sections if name_of_test(name) == self._name]:
                del sections[name]
            sections.update(self.said)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[_CALL_PASSED] = report.passed
    return report


@pytest.fixture
def says(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Holds messages against `goldens/messages.txt`; at the end of the test, so that facts are asserted first."""
    kept = Says(request)
    yield kept
    if not request.node.stash.get(_CALL_PASSED, False):
        return  # a test that failed or was skipped has not said all
    chosen = request.node.get_closest_marker("words_of_jax")
    if chosen is not None and not version("jax").startswith(chosen.args):
        return  # facts were asserted; another compiler's sentences are in no golden
    if request.config.getoption("--update-goldens"):
        kept.update()
        return
    if lines := kept.differences():
        fix = f"if this is meant: pytest {request.node.nodeid.partition('::')[0]} --update-goldens"
        pytest.fail("\n".join([*lines, fix]), pytrace=False)


class GoneTests(pytest.Item):
    """A check that is there only to fail: sections of a golden that belong to no test."""

    def __init__(self, *, gone: Iterable[str], **known: Any) -> None:
        super().__init__(**known)
        self._gone = sorted(gone)

    def runtest(self) -> None:
        pytest.fail("\n".join([*(f"of no test: {name}" for name in self._gone), "--update-goldens drops it"]), False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        return str(excinfo.value)


def gone_sections(path: Path, sections: Mapping[str, str], names: Mapping[Path, set[str]]) -> set[str]:
    """The sections whose file is gone, or was collected and has no such test."""
    gone = set()
    for section in sections:
        file = path.parent.parent / section.partition("::")[0]
        if not file.exists() or (file in names and name_of_test(section) not in names[file]):
            gone.add(section)
    return gone


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Looks for sections without a test, where whole files were collected: before any of their tests is left out."""
    if any("::" in str(argument) for argument in config.args) or config.getoption("lf", default=False):
        return
    names: dict[Path, set[str]] = {}
    for item in items:
        names.setdefault(item.path, set()).add(own_name(item))
    for path in sorted({golden_of(file) for file in names}):
        gone = gone_sections(path, read_sections(path), names)
        if gone and config.getoption("--update-goldens"):
            with changed_sections(path) as sections:
                for section in gone:
                    sections.pop(section, None)
        elif gone:
            items.append(GoneTests.from_parent(session, name=f"{path.parent.parent.name}/goldens", gone=gone))
