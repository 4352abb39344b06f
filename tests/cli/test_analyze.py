"""`hloscope analyze` as a user runs it: a process, its two streams and its exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from command_line import hloscope, hloscope_process

from hloscope.cli import running

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = "fixtures/programs"
SCHEMA = json.loads((ROOT / "hloscope/schemas/analysis.json").read_text())
M = f"{PROGRAMS}/matmul.py"

ONE_ALL_REDUCE = """HloModule reduce, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[16,128] parameter(0)
  ROOT r = f32[16,128] all-reduce(p), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=add
}
"""


pytestmark = pytest.mark.usefixtures("cached")


def document(*arguments, run=hloscope, **options):
    done = run("analyze", *arguments, "--format", "json", **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def frames_of(found, collective):
    """The frames of a collective's source, which stand in the document's tables."""
    return [found["frames"][number] for number in found["stacks"][collective["source"]]]


@pytest.fixture
def hlo_file(tmp_path):
    path = tmp_path / "reduce.hlo"
    path.write_text(ONE_ALL_REDUCE)
    return path


@pytest.mark.smoke
@pytest.mark.tpu_compiler
def test_the_matmul_has_one_all_reduce_over_y():
    found = document(f"{PROGRAMS}/matmul.py:matmul")
    (collective,) = found["collectives"]
    assert (collective["kind"], collective["axes"], collective["executions"]) == ("all-reduce", ["Y"], 1)
    assert collective["operand_shapes"] == ["bf16[2,8192]"]
    assert frames_of(found, collective)[0]["file"].endswith(f"{PROGRAMS}/matmul.py")
    assert [(a["name"], a["dtype"], a["local_shape"]) for a in found["arguments"]] == [
        ("In", "bf16", [2, 1024]),
        ("W", "bf16", [1024, 8192]),
    ]
    assert found["unmodelled"] == found["findings"] == []


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("name", ["matmul_shard_map", "matmul_explicit"])
def test_the_matmul_in_the_other_two_modes(name):
    (collective,) = document(f"{PROGRAMS}/matmul.py:{name}")["collectives"]
    assert (collective["kind"], collective["axes"], collective["payload_bytes"]) == ("all-reduce", ["Y"], 2 * 8192 * 2)


@pytest.mark.smoke
@pytest.mark.tpu_compiler
def test_the_experts_are_gathered_in_every_iteration():
    found = document(f"{PROGRAMS}/mixture_of_experts.py:mixture_of_experts")
    gather = found["collectives"][0]
    assert (gather["kind"], gather["axes"]) == ("all-gather", ["X"])
    assert (gather["executions"], gather["executions_bound"]) == (8, "exact")
    assert (gather["payload_bytes"], gather["wire_bytes"]) == (939_524_096, 822_083_584)
    line = frames_of(found, gather)[0]["line"]
    assert "A @ W[e]" in (ROOT / PROGRAMS / "mixture_of_experts.py").read_text().splitlines()[line - 1]
    assert found["totals"]["by_axis"]["X"]["wire_bytes"] >= 8 * 822_083_584
    assert found["totals"]["bound"] == "exact"


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_the_naive_matmul_gathers_and_the_collective_one_permutes():
    naive = document(f"{PROGRAMS}/collective_matmul.py:naive")["collectives"]
    assert [(c["kind"], c["axes"]) for c in naive] == [("all-gather", ["Y"])]
    collective = document(f"{PROGRAMS}/collective_matmul.py:collective")["collectives"]
    assert {(c["kind"], tuple(c["axes"])) for c in collective} == {("collective-permute", ("Y",))}


@pytest.mark.tpu_compiler
def test_the_two_matmuls_keep_their_hidden_activation_in_place():
    (collective,) = document(f"{PROGRAMS}/two_matmuls.py:two_matmuls")["collectives"]
    assert (collective["kind"], collective["axes"]) == ("all-reduce", ["Y"])


@pytest.mark.tpu_compiler
def test_a_module_in_the_current_directory_with_all_options(tmp_path):
    (tmp_path / "model.py").write_text("def step(x, w, *, power):\n    print('tracing')\n    return (x @ w) ** power\n")
    done = hloscope_process(
        *("analyze", "model:step", "--mesh", "data=2,model=4", "--arg", "bfloat16[S@data,D]"),
        *("--arg", "w=bf16[D,4096@model]", "--dim", "S=64,D=512", "--static", "power=2"),
        *("--out", "P('data', None)", "--slice", "v5litepod-8", "--axis-types", "auto", "--format", "json"),
        *("--compiler-option", "xla_enable_async_all_gather=false"),
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    assert set(done.stderr.splitlines()) == {"tracing"}
    assert [c["kind"] for c in found["collectives"]] == ["all-gather"]
    assert found["collectives"][0]["axes"] == ["model"]
    assert found["slice"]["name"] == "v5e:2x4"
    assert [a["local_shape"] for a in found["arguments"]] == [[32, 512], [512, 1024]]


@pytest.mark.tpu_compiler
def test_user_prints_go_to_stderr_and_the_report_stays_clean(tmp_path):
    (tmp_path / "loud.py").write_text("print('importing')\ndef f(x):\n    print('tracing')\n    return x\n")
    done = hloscope_process("analyze", "loud.py:f", "--arg", "f32[8]", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["collectives"] == []
    assert done.stderr == "importing\ntracing\n"


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    "closing",
    [
        "os.close(1)",
        pytest.param("os.close(2)", marks=pytest.mark.long),
        pytest.param("sys.stderr.close()", marks=pytest.mark.long),
        "sys.stdout.close(); sys.stderr.close()",
    ],
)
def test_streams_that_the_users_module_closes_are_open_for_the_report(says, tmp_path, closing):
    (tmp_path / "closing.py").write_text(
        f"import os, sys\n{closing}\n\ndef f(x):\n    return x\n\ndef g(x):\n    return x.nothing\n"
    )
    done = hloscope_process("analyze", "closing.py:f", "--arg", "f32[8]", "--format", "json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["collectives"]) == (0, [])
    failed = hloscope_process("analyze", "closing.py:g", "--arg", "f32[8]", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert says(failed.stderr.splitlines()[0]).split()[-1] == "closing.py:g"


@pytest.mark.tpu_compiler
def test_a_program_that_makes_a_larger_mesh_than_it_was_started_with():
    found = document("tests/compile/user_code/modern.py:big_mesh", run=hloscope_process)
    assert (found["slice"]["name"], found["mesh"]["axis_sizes"]) == ("v5e:4x8", [8, 4])


@pytest.mark.tpu_compiler
def test_a_mesh_over_all_devices_decides_how_many_there_are(tmp_path):
    (tmp_path / "four.py").write_text(
        "import jax\nfrom jax.experimental import mesh_utils\n"
        "mesh = jax.sharding.Mesh(mesh_utils.create_device_mesh((2, 2)), ('X', 'Y'))\n"
        "def make():\n    x = jax.ShapeDtypeStruct((8,), 'float32', sharding=jax.NamedSharding(mesh, jax.P('X')))\n"
        "    return (lambda x: x.sum()), (x,)\n"
    )
    assert document("four.py:make", run=hloscope_process, cwd=tmp_path)["slice"]["name"] == "v5e:2x2"


def test_hlo_text_with_a_mesh(hlo_file):
    found = document(hlo_file, "--mesh", "X=4,Y=2")
    (collective,) = found["collectives"]
    assert (collective["axes"], collective["payload_bytes"], collective["wire_bytes"]) == (["Y"], 8192, 8192)
    assert found["totals"]["wire_bytes"] == 8192
    assert found["slice"] is None


@pytest.mark.tpu_compiler
def layers_of(count):
    """HLO text in which the weights of so many layers are gathered."""
    paths = [f"params[\\'layers\\'][{layer}][\\'{name}\\']" for layer in range(count) for name in ("gate", "up")]
    body = [f'  p{at} = f32[16,128] parameter({at}), metadata={{op_name="{path}"}}' for at, path in enumerate(paths)]
    gathered = "all-gather({}), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}"
    body += [f"  g{at} = f32[128,128] {gathered.format(f'p{at}')}" for at in range(len(paths))]
    names = ", ".join(f"g{at}" for at in range(len(paths)))
    shape = ", ".join(["f32[128,128]"] * len(paths))
    return "\n".join(
        ["HloModule layers, num_partitions=8", "ENTRY main {", *body, f"  ROOT r = ({shape}) tuple({names})", "}"]
    )


def test_many_collectives_are_grouped_by_module_or_as_asked(tmp_path):
    path = tmp_path / "layers.hlo"
    path.write_text(layers_of(24))
    by_module, by_kind, each = (
        hloscope("analyze", path, "--mesh", "X=8", *options).stdout
        for options in ((), ("--group-by", "kind"), ("--all",))
    )
    assert "layers[0-23].gate" in by_module
    assert "layers[0-23].gate" not in by_kind.partition("Collectives by kind")[2]
    assert sum(" all-gather " in line for line in each.splitlines()) == 48
    parts = document(path, "--mesh", "X=8")["parts"]
    assert {part["module"] for part in parts} == {"layers.*.gate", "layers.*.up"}


def test_pytrees_and_open_outputs_on_the_command_line(tmp_path):
    (tmp_path / "model.py").write_text("def step(p, x):\n    return {'y': x @ p['w'], 'z': x * 2}\n")
    found = document(
        *("model.py:step", "--mesh", "X=8", "--arg", "{'w': 'f32[64,128@X]'}", "--arg", "f32[8,64]"),
        *("--out", "P(None, 'X')", "--out", "None"),
        cwd=tmp_path,
    )
    assert [a["name"] for a in found["arguments"]] == ["p['w']", "x"]
    assert [a["chosen_by"] for a in found["outputs"]] == ["user", "compiler"]


def test_a_text_file_of_another_ending(tmp_path):
    (tmp_path / "step.dump").write_text(ONE_ALL_REDUCE)
    assert len(document(tmp_path / "step.dump")["collectives"]) == 1


def test_hlo_text_on_standard_input_without_a_mesh():
    done = hloscope("analyze", "-", "--format", "json", stdin=ONE_ALL_REDUCE)
    found = json.loads(done.stdout)
    (collective,) = found["collectives"]
    assert collective["axes"] == ["axis_1"]
    assert (found["mesh"]["axis_sizes"], found["mesh"]["made_up"]) == ([4, 2], True)
    assert found["device_groups"][collective["groups"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_slice_beside_hlo_text_gives_the_chip(hlo_file):
    found = document(hlo_file, "--slice", "v5e-8")
    assert (found["slice"]["name"], found["memory"]["hbm_bytes"]) == ("v5e:2x4", 16 * 2**30)


def test_the_report_goes_to_a_file(hlo_file, tmp_path):
    done = hloscope("analyze", hlo_file, "--mesh", "X=4,Y=2", "-o", tmp_path / "report.txt")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "all-reduce" in (tmp_path / "report.txt").read_text()


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_report_keeps_to_the_width(hlo_file, width):
    done = hloscope("analyze", hlo_file, "--mesh", "X=4,Y=2", COLUMNS=str(width))
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "\x1b" not in done.stdout


def test_findings_break_the_build_only_when_asked_to(says, tmp_path):
    path = tmp_path / "kernel.hlo"
    path.write_text(
        "HloModule k, num_partitions=2\nENTRY e {\n  p = f32[8] parameter(0)\n  ROOT k = f32[8] custom-call(p), "
        'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"has_communication":true}}\n}\n'
    )
    assert hloscope("analyze", path).returncode == 0
    assert hloscope("analyze", path, "--fail-on", "error").returncode == 0
    failed = hloscope("analyze", path, "--fail-on", "warning")
    assert failed.returncode == 1
    assert "--fail-on warning: %k " in says(failed.stderr)


TRUNCATED = ONE_ALL_REDUCE[: ONE_ALL_REDUCE.index("replica_groups") + 20]


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "empty"), ("hello world\n", "not HLO")],
)
def test_text_that_cannot_be_read_shows_line_column_and_caret(text, what):
    done = hloscope("analyze", "-", stdin=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: "), what
    assert "Traceback" not in done.stderr
    assert "  --> <stdin>:" in done.stderr
    assert done.stderr.splitlines()[3].endswith("^")


def test_text_cut_off_inside_entry_is_read_and_every_total_is_a_lower_bound(says):
    found = document("-", stdin=TRUNCATED)
    assert found["totals"]["bound"] == "at least"
    assert [finding["rule"] for finding in found["findings"]] == ["unmodelled-text"] * len(found["findings"])
    assert "after %add" in says(found["findings"][0]["message"])
    failed = hloscope("analyze", "-", "--fail-on", "warning", stdin=TRUNCATED)
    assert failed.returncode == 1


BAD_INPUT = [
    (["nothing_here:f"], "nothing_here"),
    ([f"{M}:matmull"], "matmull"),
    ([M], M),
    ([f"{PROGRAMS}/matmull.py:f"], "matmull.py"),
    (["nowhere/step.py:f"], "nowhere/step.py"),
    (["nothing.hlo"], "nothing.hlo"),
    ([f"{M}:MESH"], f"{M}:MESH"),
    ([f"{M}:matmul", "--slice", "v5x:2x2"], "v5x"),
    ([f"{M}:matmul", "--slice", "v5e:3x3"], "3x3"),
    ([f"{M}:matmul", "--mesh", "X=4,X=2"], "X"),
    ([f"{M}:matmul", "--arg", "bf17[8]"], "bf17"),
    ([f"{M}:matmul", "--arg", "bf16[Q]"], "Q"),
    ([f"{M}:matmul", "--compiler-option", "x"], "x"),
    ([f"{M}:matmul", "--arg", "z=bf16[8]"], "z"),
    ([f"{M}:matmul", "--arg", "{'w': bf16[8]}"], "{'w': bf16[8]}"),
    ([f"{M}:matmul", "--static", "nope=5"], "nope"),
    ([f"{M}:matmul", "--axis-types", "foo"], "foo"),
    ([f"{M}:matmul", "--kernel-cost", "foo"], "error: foo is"),
]


@pytest.fixture(scope="module")
def of_bad_input():
    """How each command ends; the first one, which no other has been before, also in a process of its own."""
    commands = [["analyze", *arguments] for arguments, _ in BAD_INPUT]
    ended = [hloscope(*command) for command in commands]
    alone = hloscope_process(*commands[0])
    assert (alone.returncode, alone.stdout, alone.stderr) == (ended[0].returncode, ended[0].stdout, ended[0].stderr)
    return {str(arguments): done for (arguments, _), done in zip(BAD_INPUT, ended, strict=True)}


@pytest.mark.parametrize(
    ("arguments", "named"), BAD_INPUT, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_bad_input_gets_one_message_and_exit_code_2(says, of_bad_input, arguments, named):
    done = of_bad_input[str(arguments)]
    assert (done.returncode, done.stdout) == (2, "")
    first = done.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert named in first
    says(done.stderr)


def test_a_format_that_there_is_not():
    done = hloscope("analyze", f"{M}:matmul", "--format", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: hloscope analyze [OPTIONS] TARGET\n")


def test_a_misspelled_command_gets_a_suggestion():
    near, far = hloscope("analyse", M), hloscope("xyzzy", M)
    assert (near.returncode, far.returncode) == (2, 2)
    assert near.stderr.endswith("No such command 'analyse'. Did you mean analyze?\n")
    assert far.stderr.endswith("No such command 'xyzzy'.\n")


def test_the_error_of_a_python_function_that_user_code_calls_has_the_heading(tmp_path):
    (tmp_path / "wrong.py").write_text("import hloscope\n\nf = hloscope.target(mehs={'X': 8})(abs)\n")
    done = hloscope("analyze", "wrong.py:f", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0][:13]) == (2, "error: target")


def test_errors_in_user_code_show_the_users_line(says, tmp_path):
    (tmp_path / "broken.py").write_text("import jax\n\ndef f(x):\n    return x.reshape(7)\n\nclass A:\n    pass\n")
    done = hloscope("analyze", "broken.py:f", "--arg", "f32[8]", cwd=tmp_path)
    assert done.returncode == 2
    ours = done.stderr.splitlines()[:3]
    assert ours[1:] == ["  --> broken.py:4 in f", "   | return x.reshape(7)"]
    says(ours, "trace")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    done = hloscope("analyze", "syntax.py:f", cwd=tmp_path)
    ours, why = done.stderr.splitlines()[:2]
    assert why.startswith("   = why: SyntaxError: ")
    says(ours, "import")


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    ("body", "arguments", "named"),
    [
        ("def f(x):\n    import sys\n    sys.exit(0)\n", [], "m.py:f"),
        ("def f(x):\n    import os\n    os._exit(0)\n", [], "m.py:f"),
        ("import os\nos._exit(0)\n", [], "m.py"),
        ("async def f(x):\n    return x\n", [], "m.py:f"),
        ("class C:\n    def __getattr__(self, n):\n        raise RuntimeError(n)\nx = C()\n", ["m.py:x.y"], "y"),
        ("def f(x):\n    return x\n", ["m.py:f", "--mesh", "a=100000"], "100,000"),
        ("def f(x):\n    return x\n", ["m.py:f", "--static", "x=1"], "x"),
        ("def f(x):\n    return x\n", [":f"], ":f"),
        ("def f(x):\n    return x\n", ["."], "."),
    ],
    ids=["exit", "exit-at-once", "exit-on-import", "async", "getattr", "mesh", "twice", "no-module", "no-name"],
)  # fmt: skip
def test_hostile_modules_and_options(says, tmp_path, body, arguments, named):
    (tmp_path / "m.py").write_text(body)
    options = ["--arg", "x=f32[8]"] if "--static" in arguments else ["--arg", "f32[8]"]
    done = hloscope("analyze", *(arguments or ["m.py:f"]), *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    first = done.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert named in first
    assert "Traceback" not in done.stderr
    says(first)


@pytest.mark.tpu_compiler
def test_nothing_but_the_report_reaches_stdout(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import atexit, os\natexit.register(lambda: print('bye'))\nos.write(1, b'low level\\n')\n"
        "import jax\njax.config.update('jax_num_cpu_devices', 4)\njax.config.update('jax_platforms', 'tpu')\n"
        "def f(x):\n    os.system('echo child')\n    return x\n"
    )
    done = hloscope_process("analyze", "loud.py:f", "--arg", "f32[8]", "--format", "json", cwd=tmp_path)
    assert json.loads(done.stdout)["collectives"] == []
    assert set(done.stderr.splitlines()) == {"bye", "low level", "child"}


def test_xla_flags_that_xla_refuses(says):
    done = hloscope_process("analyze", f"{M}:matmul", XLA_FLAGS="--xla_no_such_flag=3")
    assert done.returncode == 2
    ours = done.stderr.splitlines()[:2]
    assert ours[1] == "  --> XLA_FLAGS=--xla_no_such_flag=3"
    says(ours)
    assert "xla_no_such_flag" in done.stderr.splitlines()[2]


@pytest.mark.parametrize("arguments", ["analyze FILE", "rules", "rules lost-sharding", "--version", "check --help"])
def test_a_full_disk(says, hlo_file, arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hloscope", *arguments.replace("FILE", str(hlo_file)).split()]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    says(done.stderr)


def test_an_encoding_without_rules(hlo_file):
    assert hloscope_process("analyze", hlo_file, PYTHONIOENCODING="latin-1").returncode == 0


def test_a_closed_standard_output_is_told(says, hlo_file):
    command = f"{sys.executable} -m hloscope analyze {hlo_file} >&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    says(done.stderr)


def test_options_that_do_not_go_with_hlo_text(says, hlo_file):
    options = (["--axis-types", "auto"], ["--compiler-option", "a=b"], ["--arg", "f32[8]"], ["--donate", "0"])
    ended = [hloscope("analyze", hlo_file, *option) for option in options]
    for option, done in zip(options, ended, strict=True):
        assert (done.returncode, done.stderr.splitlines()[0].startswith(f"error: {option[0]} ")) == (2, True)
        says(done.stderr, option[0])


def test_debug_shows_the_traceback(tmp_path):
    done = hloscope("analyze", "nothing.hlo", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "\nerror: there is no file nothing.hlo\n" in done.stderr


def test_a_reader_that_goes_away_is_no_error(hlo_file):
    command = f"{sys.executable} -m hloscope analyze {hlo_file} --format json | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_version_and_help():
    assert hloscope("--version").stdout == "hloscope 0.2.0\n"
    assert "package.module:fn" in hloscope("analyze", "--help").stdout


def test_save_hlo_keeps_the_text_that_lines_refer_to(tmp_path):
    saved = tmp_path / "matmul.hlo"
    (one,) = document(f"{M}:matmul", "--save-hlo", saved)["collectives"]
    assert f"%{one['name']} = " in saved.read_text().splitlines()[one["line"] - 1]
    (again,) = document(saved, "--mesh", "X=4,Y=2")["collectives"]
    assert (again["wire_bytes"], again["line"]) == (one["wire_bytes"], one["line"])


def test_save_hlo_does_not_go_with_text(says, hlo_file, tmp_path):
    done = hloscope("analyze", hlo_file, "--save-hlo", tmp_path / "again.hlo")
    assert done.returncode == 2
    assert "--save-hlo" in says(done.stderr)


def test_whatever_user_code_raises_is_not_the_exit_code_of_findings(capsys):
    class Cancelled(BaseException):
        pass

    def cancelled():
        raise Cancelled("by its scheduler")

    with pytest.raises(SystemExit) as caught:
        running.run_guarded(cancelled, debug=False)
    assert caught.value.code == 2
    assert "Cancelled: by its scheduler" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("whole", "is_terminal", "expected"),
    [
        ("first\nmore\n", True, ""),
        ("whole\n", False, ""),
        ("whole\n", True, "\x1b[3F\x1b[J"),
    ],
    ids=["the whole begins with it", "no terminal", "it is replaced"],
)
def test_the_whole_report_takes_the_place_of_the_first(monkeypatch, whole, is_terminal, expected):
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    begun = "first\n" if whole.startswith("first") else "\x1b[1mfirst\x1b[0m\nof twelve ch.\n"
    assert running._clear_begun(begun, whole) == expected
    assert running._clear_begun("a\n" * 5, "b\n") == ("\n" if is_terminal else "")
