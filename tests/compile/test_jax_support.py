"""JAX's private parts: all that are used are listed, are there, and one that is missing is one message."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner
from jax._src.interpreters import mlir

import hloscope
from hloscope.cli import group
from hloscope.compile.jax_support import PRIVATE_PARTS, UnsupportedJaxError, find_missing_parts

SOURCES = sorted(Path(hloscope.__file__).parent.rglob("*.py"))
LISTED = {part.replace(":", ".") for parts in PRIVATE_PARTS.values() for part in parts}


@pytest.mark.smoke
@pytest.mark.parametrize("purpose", PRIVATE_PARTS)
def test_this_jax_has_all_of_them(purpose):
    assert find_missing_parts(purpose) == ()


def private_uses(tree):
    """The dotted names of JAX's private parts that a file uses, as far as the text says."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("jax._src", "jaxlib")):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith(("jax._src", "jaxlib")) for alias in node.names)
    yield from known.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            name = known[node.value.id]
            yield name if name.startswith("jaxlib.mlir") else f"{name}.{node.attr}"


def test_every_private_part_that_is_used_is_listed():
    used = {name for path in SOURCES for name in private_uses(ast.parse(path.read_text()))}
    assert len(used) > 10
    assert {name for name in used if not any(f"{part}.".startswith(f"{name}.") for part in LISTED)} == set()


@pytest.fixture
def an_older_jax(monkeypatch):
    find_missing_parts.cache_clear()
    monkeypatch.delattr(mlir, "module_to_bytecode")
    yield
    find_missing_parts.cache_clear()


@pytest.mark.usefixtures("an_older_jax")
def test_a_jax_that_lacks_one_is_one_message(says):
    with pytest.raises(UnsupportedJaxError) as caught:
        hloscope.analyze(lambda x: x, ("f32[8@X]",), mesh={"X": 8})
    assert f" {jax.__version__} " in caught.value.what
    assert "jax._src.interpreters.mlir.module_to_bytecode" in caught.value.why
    assert re.findall(r"\b0\.\d+\b", caught.value.why) == ["0.10", "0.12"]
    says([caught.value.what.replace(jax.__version__, "VERSION"), caught.value.why])
    assert hloscope.analyze_text("HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n").collectives == ()
    done = CliRunner().invoke(group, ["doctor", "--format", "json"])
    found = {one["name"]: one for one in json.loads(done.stdout)["checkups"]}
    assert done.exit_code == 2
    assert (found["compiling functions"]["works"], found["HLO text"]["works"]) == (False, True)
    fitting = ".".join(jax.__version__.split(".")[:2])  # the tests run with the one that this Python gets
    assert found["compiling functions"]["fix"].endswith(f"'jax[tpu]=={fitting}.*'")


@pytest.mark.tpu_compiler
def test_the_doctor_says_what_works(tmp_path, monkeypatch):
    monkeypatch.delenv("HLOSCOPE_CACHE", raising=False)
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    done = CliRunner().invoke(group, ["doctor", "--format", "json"])
    found = {one["name"]: one for one in json.loads(done.stdout)["checkups"]}
    assert done.exit_code == 0
    assert all(one["works"] is not False for one in found.values())
    assert " v5e " in found["TPU compiler"]["found"]
    assert f"jax {jax.__version__}" in found["versions"]["found"]


def test_a_cache_that_cannot_be_written_is_told(says, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("HLOSCOPE_CACHE", raising=False)
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("hloscope.app.doctor.find_spec", lambda name: None)
    done = CliRunner().invoke(group, ["doctor"])
    assert done.exit_code == 2
    [cache] = re.findall(r"^.*\n.*HLOSCOPE_CACHE_DIR.*$", done.stdout, re.M)
    assert str(tmp_path / "file" / "cache") in cache
    [without_jax] = [line for line in done.stdout.splitlines() if " JAX " in line and "install" in line]
    says([re.sub(" +", " ", cache), re.sub(" +", " ", without_jax)])


def test_a_compiler_that_fails_is_told_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr("hloscope.compile.step.warm_up_compiler", int)  # which raises in the worker, as a libtpu may
    done = CliRunner().invoke(group, ["doctor", "--format", "json"])
    found = {one["name"]: one for one in json.loads(done.stdout)["checkups"]}
    assert done.exit_code == 2
    assert (found["TPU compiler"]["works"], found["HLO text"]["works"]) == (False, True)
    assert "ValueError: " in found["TPU compiler"]["found"]


def test_a_jax_that_is_not_tested_is_a_note_of_every_report(monkeypatch):
    def analyzed():
        return hloscope.analyze(lambda x: x.sum(), ("f32[8@X]",), mesh={"X": 2}, slice="cpu:2")

    assert not [note for note in analyzed().notes if "tested" in note]
    monkeypatch.setattr("hloscope.compile.jax_support.TESTED_VERSIONS", ("0.1",))
    (note,) = [note for note in analyzed().notes if "tested" in note]
    assert note == f"JAX {jax.__version__} has not been tested with hloscope, which is tested with JAX 0.1"
    assert note in str(analyzed())
    assert note in str(hloscope.doctor())


@pytest.mark.process
def test_a_module_that_is_missing_is_one_message_too():
    code = (
        "import sys, jax\n"
        "del jax._src.compilation_cache\n"
        "sys.modules['jax._src.compilation_cache'] = None\n"
        "import hloscope\n"
        "hloscope.analyze(lambda x: x * 2, ('f32[8]',))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UnsupportedJaxError" in done.stderr
    assert "it lacks jax._src.compilation_cache" in done.stderr
