"""What a release says of itself is the same everywhere: versions, supported Pythons, extras, and no caps on JAX."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from hloscope.version import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^version: (.+)$", citation) == [__version__]
    newest = re.search(r"(?m)^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text())
    assert Version(newest[1]) >= Version(__version__)


def test_the_pythons_that_are_promised_are_tried():
    promised = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", name)]
    assert PROJECT["requires-python"] == f">={promised[0]}"
    assert f"python: {str(promised).replace(chr(39), chr(34))}" in WORKFLOWS["release"]
    supported = re.search(r"(?m)^SUPPORTED = (.+)$", (ROOT / "noxfile.py").read_text())
    assert supported[1] == str(tuple(promised)).replace("'", '"')


def test_jax_has_a_lower_limit_and_no_upper_one():
    asked = [text for text in PROJECT["dependencies"] if text.startswith("jax")]
    assert len(asked) == 2
    assert all(re.fullmatch(r"jax(\[tpu\])?>=[\d.]+", text.partition(";")[0]) for text in asked)
    assert "--pre" in WORKFLOWS["scheduled"]


@pytest.mark.parametrize("extra", ["pytest", "dask", "remote"])
def test_extras_are_explained(extra):
    assert PROJECT["optional-dependencies"][extra]
    assert f"`hloscope[{extra}]`" in (ROOT / "docs" / "install.md").read_text()


def test_a_release_is_tried_before_it_is_published_without_a_token():
    jobs = dict(re.findall(r"(?ms)^  (\w+):\n(.*?)(?=^  \w|\Z)", WORKFLOWS["release"].partition("\njobs:\n")[2]))
    assert list(jobs) == ["build", "try", "publish"]
    assert "needs: build" in jobs["try"]
    assert "needs: try" in jobs["publish"]
    assert "python tests/installed.py dist/*" in jobs["try"]
    assert "id-token: write" in jobs["publish"]
    assert "secrets." not in WORKFLOWS["release"]


def test_a_bug_comes_with_what_doctor_prints():
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert re.search(r"label: .*`hloscope doctor`\n.*\n +validations:\n +required: true", form)
