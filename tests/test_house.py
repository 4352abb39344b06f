"""The house rules, kept by the same command that runs the tests: style, types, layers, public names, lazy imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "hloscope").rglob("*.py"))
PUBLIC = (
    "Accepted Analysis ArrayFact BaselineError CheckReport Checkups Collective Collectives CompileError "
    "CompilerDiedError ConfigError ConfigMistakesError DeviceCountError DiffDocument DumpedModules DumpedResult "
    "ExecutorError Explanation Explanations Finding HbmError HloParseError HloscopeError ImportedTwiceError MeshError "
    "NotationError Picture PluginError Prices ProfileError ProgramGraph RecordedProgram Recorder Recording "
    "ShardingTable SliceError SuggestedSpec Suggestion Suggestions TargetError TimeLimitError Timeline Total Totals "
    "TraceError UnknownKeywordError Unpriced UnsupportedJaxError Verification WrongCallError __version__ accept aio "
    "analyze analyze_all analyze_text check compare contracts diff doctor explain measure merge_reports price "
    "graph record recording rules shardings suggest target timeline verify "
).split()
HEAVY = ("jax", "jaxlib", "networkx", "libtpu")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=["lint", "format"])
def test_ruff(command):
    done = run("-m", "ruff", *command, ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_strict_types():
    done = run("-m", "mypy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_imports_go_downward_only():
    done = run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert done.returncode == 0, done.stdout + done.stderr


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The modules of hloscope that a file imports anywhere, for types alone or late included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hloscope"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {str(node.module)}
    return found


def test_no_circle_of_modules():
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}
    graph = nx.DiGraph((name, other) for name, path in named.items() for other in imports_of(path, set(named)))
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []
    assert graph.number_of_edges() > len(named)


def test_public_names():
    import hloscope

    assert sorted(hloscope.__all__) == sorted(PUBLIC)
    assert all(hasattr(hloscope, name) for name in PUBLIC)
    with pytest.raises(AttributeError, match=r"^module 'hloscope' has no attribute 'analyse': did you mean analyze\?$"):
        _ = hloscope.analyse


def loaded_by(statement: str) -> set[str]:
    done = run("-c", f"import sys\n{statement}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()} & {*HEAVY, "lark", "rich", "numpy"}


@pytest.mark.process
@pytest.mark.smoke
def test_the_package_imports_nothing_heavy():
    assert loaded_by("import hloscope; hloscope.target(mesh={'X': 2}, args=('f32[8@X]',))(lambda x: x)") == set()


@pytest.mark.process
@pytest.mark.smoke
def test_help_imports_nothing_heavy():
    assert loaded_by("from click.testing import CliRunner; from hloscope.cli import group\n"
                     "assert 'analyze' in CliRunner().invoke(group, ['--help']).output") == set()  # fmt: skip


@pytest.mark.process
@pytest.mark.smoke
def test_hlo_text_needs_neither_jax_nor_networkx():
    text = "HloModule m, num_partitions=2\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n"
    assert loaded_by(f"import hloscope; hloscope.analyze_text({text!r}).to_dict()").isdisjoint(HEAVY)


@pytest.mark.process
def test_prices_of_hlo_text_need_no_jax():
    path = "fixtures/captured/matmul.matmul.jax-0.10.hlo"
    loaded = loaded_by(f"import hloscope; assert hloscope.price({path!r}, ['v5e:2x4']).to_dict()")
    assert loaded.isdisjoint({"jax", "jaxlib", "libtpu"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert text.count("\n") <= 800 or path.name == "plain_types.py", "only what is generated may be longer"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            code_lines = node.end_lineno - node.body[0].end_lineno if docstring else node.end_lineno - node.lineno
            assert code_lines <= 40, f"{node.name} has {code_lines} lines"
