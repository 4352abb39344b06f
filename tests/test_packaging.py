"""A wheel, an sdist and an editable checkout each bring the grammars along."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile

import pytest


@pytest.fixture(scope="module")
def built(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def grammars(root):
    return {path.name for path in (root / "grammars").glob("*.lark")}


def test_the_checkout_finds_its_grammars(root):
    from hloscope.base.environment import read_grammar

    assert grammars(root) >= {"hlo.lark", "argument.lark"}
    for name in grammars(root):
        assert read_grammar(name.removesuffix(".lark")) == (root / "grammars" / name).read_text()


def test_a_missing_grammar_says_where_it_was_looked_for(says, root):
    from hloscope.base.environment import read_grammar

    with pytest.raises(FileNotFoundError) as caught:
        read_grammar("nothing")
    assert "nothing.lark" in str(caught.value)
    assert str(root / "grammars") in str(caught.value)
    says(caught)


def test_the_wheel_reads_hlo_without_the_checkout(built, root, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    assert {f"hloscope/grammars/{name}" for name in grammars(root)} <= names
    schemas = {f"hloscope/schemas/{path.name}" for path in (root / "hloscope" / "schemas").glob("*.json")}
    assert "hloscope/schemas/analysis.json" in schemas <= names
    assert "hloscope/py.typed" in names
    assets = {f"hloscope/report/html/assets/{path.name}" for path in (root / "hloscope/report/html/assets").iterdir()}
    assert "hloscope/report/html/assets/page.html" in assets <= names
    text = "HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import hloscope\n"
        f"assert hloscope.__file__.startswith({str(tmp_path)!r}), hloscope.__file__\n"
        f"print(hloscope.analyze_text({text!r}).module)\n"
        "from hloscope.compile.notation import parse_mesh; print(parse_mesh('X=4'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "m\n{'X': 4}\n"


def test_the_sdist_holds_what_a_wheel_is_built_from(built, root):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"grammars/{name}" for name in grammars(root)} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "hloscope/py.typed", "fixtures/programs/matmul.py"} <= names
