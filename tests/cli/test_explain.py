"""`hloscope explain` and `hloscope shardings`, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from command_line import hloscope, hloscope_process

MATMUL = "fixtures/programs/matmul.py:matmul"
CAPTURED = "fixtures/captured/matmul.matmul.jax-0.10.hlo"
pytestmark = pytest.mark.usefixtures("cached")


def test_a_misspelled_kind_is_told(says):
    done = hloscope("explain", CAPTURED, "all-gathr@X")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean all-gather?" in says(done.stderr)


@pytest.mark.tpu_compiler
def test_the_whole_chain_as_text(says):
    done = hloscope("explain", MATMUL, "1", "--no-try")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    cost = next(number for number, line in enumerate(lines) if line.startswith("   = cost: one device sends 32.8 kB"))
    assert lines[1] == "  --> matmul.py:19 in matmul"
    (origin,) = [line for line in lines if line.startswith("   = origin: ")]
    assert origin.split()[2] == "inserted"
    assert "fix" not in done.stdout  # sharding differently is tried, or not told
    says([*lines[:cost], origin])


@pytest.mark.tpu_compiler
def test_the_largest_is_told_in_full_and_the_others_are_listed(says, tmp_path):
    cache = {"HLOSCOPE_CACHE": "1", "HLOSCOPE_CACHE_DIR": str(tmp_path)}
    target = "fixtures/programs/moe_two_axes.py:two_axes"
    overview = hloscope("explain", target, "--no-try", **cache)
    assert (overview.returncode, overview.stderr) == (0, "")
    first, others = overview.stdout.split("\nOther collectives, most bytes per step first\n")
    assert re.match(r"all-gather over X .*\bbf16\[8,1024,1024\].* %", first)
    assert "   = chain" in first
    assert "   = fix, not tried: " in first
    assert re.match(r"  2 all-gather over Y .*\bbf16\[128,1024\].* %", others)
    assert re.findall(r"explain TARGET \w+", says(others.splitlines()[-1])) == [
        "explain TARGET 2",
        "explain TARGET all",
    ]
    (kept,) = tmp_path.glob("compile-*")
    written = kept.read_bytes()
    everything = hloscope("explain", target, "all", "--no-try", **cache)
    assert everything.stdout.startswith(first)
    assert everything.stdout.count("   = chain") == 2
    assert [path.read_bytes() for path in tmp_path.glob("compile-*")] == [written]


FIXABLE = "tests/search/programs/fixable.py:masked"


@pytest.mark.tpu_compiler
def test_a_change_that_helps_is_told_with_what_it_gains(tmp_path):
    cache = {"HLOSCOPE_CACHE": "1", "HLOSCOPE_CACHE_DIR": str(tmp_path)}
    how = (FIXABLE, "1", "--try", "5m")
    done = hloscope_process("explain", *how, **cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert "   = tried: argument mask: P(None, 'X') -> P('X', None)" in done.stdout.splitlines()
    assert done.stdout.index("   = why: ") < done.stdout.index("   = tried: ")
    gained = " ".join(done.stdout.split("   = tried: ")[1].split())
    assert "% less; over X one device sends 14.7 MB -> 0 B per step;" in gained
    assert "1 -> 0 collectives" in gained
    assert hloscope_process("explain", *how, **cache).stdout == done.stdout
    comment = hloscope_process("explain", *how, "--format", "markdown", **cache).stdout
    assert "- **tried**: `argument mask: P(None, 'X') -> P('X', None)`" in comment
    (one,) = json.loads(hloscope_process("explain", *how, "--format", "json", **cache).stdout)["explanations"]
    best = one["trials"]["trials"][0]
    assert (best["change"], best["helps"]) == (["argument mask: P(None, 'X') -> P('X', None)"], True)
    assert best["after"]["wire_bytes"] == 0 < one["trials"]["before"]["wire_bytes"] == one["wire_bytes_per_step"]


@pytest.mark.tpu_compiler
def test_the_reason_is_printed_before_anything_is_tried(root, tmp_path):
    command = [sys.executable, "-m", "hloscope", "explain", FIXABLE, "--try", "5m"]
    clean = {**os.environ, "HLOSCOPE_CACHE": "1", "HLOSCOPE_CACHE_DIR": str(tmp_path), "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=root, env=clean, stdout=-1, stderr=-1, text=True) as running:
        lines = list(iter(running.stdout.readline, "   = origin: inserted by the partitioner\n"))
        running.send_signal(signal.SIGINT)
        rest, said = running.communicate()
    assert any(line.startswith("   = why: `mask[") for line in lines)
    assert (running.returncode, rest, said) == (130, "", "interrupted\n")


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_a_reader_that_goes_away_while_changes_are_tried_is_no_error(root, tmp_path):
    said = tmp_path / "said"
    command = f"{sys.executable} -m hloscope explain {FIXABLE} --try 5s 2>{said} | head -1; exit ${{PIPESTATUS[0]}}"
    clean = {**os.environ, "HLOSCOPE_CACHE": "1", "HLOSCOPE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(["bash", "-c", command], cwd=root, env=clean, capture_output=True, text=True, check=False)
    assert (done.returncode, said.read_text(), done.stdout.count("\n")) == (0, "", 1)


@pytest.mark.tpu_compiler
def test_nothing_is_tried_where_nobody_wants_it():
    done = hloscope("explain", FIXABLE, "--no-try")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tried:" not in done.stdout.replace("not tried:", "")
    (one,) = json.loads(hloscope("explain", FIXABLE, "--no-try", "--format", "json").stdout)["explanations"]
    assert one["trials"] is None


@pytest.mark.tpu_compiler
def test_nothing_is_tried_where_nothing_can_be_compared(says):
    done = hloscope("explain", FIXABLE, "--slice", "cpu:8", "--try", "5s")
    assert (done.returncode, done.stderr) == (0, "")
    says([line for line in done.stdout.splitlines() if line.startswith("   = not tried")])


@pytest.mark.parametrize("span", ["soon", "-5", "5d"])
def test_a_span_of_time_is_a_number_with_its_unit(span):
    done = hloscope("explain", FIXABLE, f"--try={span}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "write 30s, 5m or 2h" in done.stderr


def test_a_bare_file_is_explained_as_far_as_it_goes(says):
    done = hloscope("explain", CAPTURED, "--mesh", "X=4,Y=2", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    (one,) = document["explanations"]
    assert (one["kind"], one["axes"], one["copies"], one["steps"], one["advice"]) == ("all-reduce", ["Y"], 1, [], [])
    says(one["why"])
    assert (document["frames"][one["place"]]["line"], one["wire_bytes"], one["executions"]) == (19, 32768, 1)


def test_a_collective_that_is_not_there_is_one_message(says):
    done = hloscope("explain", CAPTURED, "all-gather.9")
    assert (done.returncode, done.stdout) == (2, "")
    text = says(done.stderr)
    assert ("'all-gather.9'" in text, "%all-reduce" in text) == (True, True)


@pytest.mark.tpu_compiler
def test_shardings_of_everything_without_a_compile():
    done = hloscope("shardings", MATMUL, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    table = json.loads(done.stdout)
    assert (table["target"], table["slice_name"], table["axis_sizes"]) == (MATMUL, "v5e:4x2", {"X": 4, "Y": 2})
    rows = [(one["role"], one["name"], one["sharding"], one["local_shape"], one["is_moved"]) for one in table["arrays"]]
    assert rows == [
        ("argument", "In", "P('X', 'Y')", [2, 1024], False),
        ("argument", "W", "P('Y', None)", [1024, 8192], False),
        ("output", "result", "P('X', None)", [2, 8192], False),
        ("intermediate", "Out", "P('X', None)", [2, 8192], True),
        ("intermediate", "result of square", "P('X', 'Y')", [2, 1024], False),
    ]


def test_shardings_need_a_function(says):
    done = hloscope("shardings", CAPTURED)
    assert (done.returncode, done.stdout) == (2, "")
    assert CAPTURED in says(done.stderr)


@pytest.mark.long
def test_text_prints_no_line_of_a_file_that_it_names(says, root, tmp_path):
    secret = tmp_path / "src" / "secret.py"
    secret.parent.mkdir()
    secret.write_text("\npassword = 'hunter2'\n")
    text = (
        "HloModule m, num_partitions=2\n\nENTRY main {\n  p = f32[4] parameter(0)\n"
        "  ROOT g = f32[8] all-gather(p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, "
        f'dimensions={{0}}, metadata={{source_file="{secret}" source_line=2}}\n}}\n'
    )
    file = tmp_path / "e.hlo"
    file.write_text(text)
    done = hloscope("explain", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert "hunter2" not in done.stdout
    place, unread = done.stdout.splitlines()[1:3]
    assert place == "  --> secret.py:2"
    assert "--source-root" in says(unread)
    allowed = hloscope("explain", str(file), "--source-root", str(secret.parent))
    assert "   | password = 'hunter2'" in allowed.stdout.splitlines()
    elsewhere = hloscope("explain", str(file), "--source-root", str(root), "--format", "json")
    (one,) = json.loads(elsewhere.stdout)["explanations"]
    assert (one["excerpt"], one["excerpt_unread"]) == (None, True)


def test_a_source_root_is_for_hlo_text(says, root, tmp_path):
    for command in ("analyze", "explain"):
        done = hloscope(command, "fixtures/programs/two_layer.py:step", "--source-root", str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert "--source-root" in says(done.stderr, command)


WATCHED = """
import sys
def watch(event, given):
    if event == "open" and "secret" in str(given[0]):
        print("OPENED", file=sys.stderr)
sys.addaudithook(watch)
from hloscope.cli import main
main()
"""


@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "e.hlo", "--format", "json"),
        ("analyze", "e.hlo", "--format", "sarif", "--fail-on", "note"),
        ("explain", "e.hlo", "all"),
        ("price", "e.hlo", "--slice", "v5e:1x2", "--mesh", "X=2"),
        ("diff", "e.hlo", "e.hlo"),
        ("check",),
    ],
    ids=lambda words: words[0],
)
def test_no_command_opens_a_file_that_text_names(root, tmp_path, command):
    (tmp_path / "secret.py").write_text("\nx = 1  # hloscope: allow all-gather: on purpose\n")
    (tmp_path / "hloscope.toml").write_text("[targets.e]\nhlo = 'e.hlo'\ncontract = 'all-gather'\nfail-on = 'note'\n")
    lines = "".join(
        f"  g{at} = f32[8] all-gather(p), channel_id={at + 1}, replica_groups={{{{0,1}}}}, use_global_device_ids=true, "
        f'dimensions={{0}}, metadata={{source_file="{name}" source_line=2}}\n'
        for at, name in enumerate((tmp_path / "secret.py", "secret.py", "./secret.py", "/etc/../secret.py"))
    )
    whole = "ROOT t = (f32[8], f32[8], f32[8], f32[8]) tuple(g0, g1, g2, g3)"
    text = f"HloModule m, num_partitions=2\n\nENTRY main {{\n  p = f32[4] parameter(0)\n{lines}  {whole}\n}}\n"
    (tmp_path / "e.hlo").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "HLOSCOPE_CACHE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if {"check", "--fail-on"} & set(command) else 0), done.stderr
    assert "OPENED" not in done.stderr
    assert "on purpose" not in done.stdout
