"""Messages hold typed parts: both notations, what keeps the parts, and every sentence in the sources."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import msgspec
import pytest

import hloscope
from hloscope.base.calls import front_door, speak_python
from hloscope.base.documents import encode_text, to_plain
from hloscope.base.errors import (
    OPTIONS,
    TARGET,
    Command,
    Either,
    HloscopeError,
    Message,
    Notation,
    Option,
    TimeLimitError,
    find_python_form,
    indent,
    join,
    mark,
    on_one_line,
    placeholder,
    say,
    use_notation,
)
from hloscope.cli import group
from hloscope.compile.target import OPTIONS_BY_NAME

ROOT = Path(__file__).parent.parent
SOURCES = [path for path in (ROOT / "hloscope").rglob("*.py") if path.parts[len(ROOT.parts) + 1] != "cli"]
MESH = Option("mesh", {"X": 4, "Y": 2})
USERS = "pass --mesh data=4,model=2 and --seed 7, or run hloscope check twice"
"""The words of a user's exception that look like hloscope's own."""


# ---- the two notations


@pytest.mark.parametrize(
    ("part", "command_line", "python"),
    [
        (MESH, "--mesh X=4,Y=2", 'mesh={"X": 4, "Y": 2}'),
        (Option("axis-types", "Y=explicit"), "--axis-types Y=explicit", 'axis_types="Y=explicit"'),
        (Option("slice", "v5e:2x4"), "--slice v5e:2x4", 'slice="v5e:2x4"'),
        (Option("slice"), "--slice", "slice"),
        (Option("range", {"B": (0, 8)}), "--range B=0:8", 'ranges={"B": (0, 8)}'),
        (Option("range", {"W": (-0.1, 0.1)}), "--range W=-0.1:0.1", 'ranges={"W": (-0.1, 0.1)}'),
        (Option("chip-override", ["NAME=VALUE"]), "--chip-override NAME=VALUE", 'chip_overrides=["NAME=VALUE"]'),
        (
            Option("kernel-cost", {"splash": (placeholder("FLOPS"), placeholder("BYTES"))}),
            "--kernel-cost splash=FLOPS,BYTES",
            'kernel_costs={"splash": (FLOPS, BYTES)}',
        ),
        (Option("arg", ("bf16[8@X,2048]",)), "--arg 'bf16[8@X,2048]'", 'args=("bf16[8@X,2048]",)'),
        (Option("arg", ("f32[]", "f32[8]")), "--arg 'f32[]' --arg 'f32[8]'", 'args=("f32[]", "f32[8]")'),
        (Option("arg", ({"w": "f32[8]"},)), "--arg \"{'w': 'f32[8]'}\"", 'args=({"w": "f32[8]"},)'),
        (Option("arg", {"name": "f32[16]"}), "--arg name='f32[16]'", 'kwargs={"name": "f32[16]"}'),
        (Option("try", 300), "--try 5m", "try_s=300"),
        (Option("try", 90), "--try 90s", "try_s=90"),
        (Option("timeout", placeholder("SECONDS")), "--timeout SECONDS", "timeout_s=SECONDS"),
        (Option("ignore", ["a", "b"]), "--ignore a --ignore b", 'ignore=["a", "b"]'),
        (Option("beside"), "--beside", "beside=True"),
        (Command("compare"), "hloscope compare", "hloscope.compare"),
        (Command("merge-reports"), "hloscope merge-reports", "hloscope.merge_reports"),
        (Command("accept"), "hloscope accept", "hloscope.accept()"),
        (
            Command("explain", (TARGET, Option("collective", 3))),
            "hloscope explain TARGET 3",
            "hloscope.explain(…, collective=3)",
        ),
        (
            Command("accept", ("my step", Option("only", ["all-gather@X in a.py:3"]))),
            "hloscope accept 'my step' --only 'all-gather@X in a.py:3'",
            'hloscope.accept("my step", only=["all-gather@X in a.py:3"])',
        ),
        (Either("this", "that"), "this", "that"),
    ],
)
def test_a_part_in_both_notations(part, command_line, python):
    message = say("write ", part, ".")
    assert message == f"write {command_line}."
    assert message.python == f"write {python}."
    assert message.python.command_line == message


def test_a_message_is_composed_without_loss():
    message = say("add ", MESH)
    python = message.python
    assert ("or " + message + "!").python == f"or {python}!"
    assert join("; ", [message, "b", message]).python == f"{python}; b; {python}"
    assert on_one_line(say(" a\n  b ", MESH, "\nc")).python == 'a b mesh={"X": 4, "Y": 2} c'
    assert on_one_line(" a\n  b ") == "a b"
    assert indent(say("a ", MESH, "\nb"), 2).python == 'a mesh={"X": 4, "Y": 2}\n  b'
    assert mark("with --scale B=64 or --scale.", Option("scale", {"B": 64}), Option("scale")).python == (
        'with scale={"B": 64} or scale.'
    )
    with use_notation(Notation.PYTHON):
        assert say(message) == python
    assert say(message) == message


def test_text_is_never_changed():
    assert say(USERS, " ", MESH).python == f'{USERS} mesh={{"X": 4, "Y": 2}}'


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("notation", Notation)
def test_a_copy_still_speaks_both(again, notation):
    message = Message(say("add ", MESH).parts, notation)
    made = again(message)
    assert (type(made), made, made.parts) == (Message, message, message.parts)


# ---- what the sources say


LITERAL = {"Either", "Option", "Command", "option", "addoption", "getoption", "git", "add_argument"}
"""Calls whose arguments are words of one notation."""
NOT_OURS = {
    "judge/baseline_files.py": "files that are committed",
    "measurement/fitting.py": "files that are kept",
    "pytest_plugin/__init__.py": "options of pytest",
    "report/html/pieces.py": "the foot of a page, which anyone may read",
    "report/pages.py": "headings of `hloscope rules`",
}
"""Files with sentences for the command line alone."""


def long_options() -> set[str]:
    commands = (group.get_command(click.Context(group), name) for name in group.list_commands(click.Context(group)))
    return {
        flag
        for command in commands
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--") and flag != "--help"
    }


def sentences_in(path: Path) -> Iterator[tuple[int, str]]:
    """The strings that a file holds, but for docstrings and arguments of `LITERAL`, with ‹› for what is filled in."""
    tree = ast.parse(path.read_text())
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LITERAL:
                left_out |= {id(inside) for inside in ast.walk(node)}
        elif isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            filled = (part.value if isinstance(part, ast.Constant) else "‹›" for part in node.values)
            yield node.lineno, "".join(filled)


def test_no_sentence_in_the_sources_names_an_option_or_a_command_as_text():
    names = "|".join(sorted(map(re.escape, long_options()), key=len, reverse=True))
    commands = "|".join(group.list_commands(click.Context(group)))
    named = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])|\bhloscope (?:{commands})\b")
    found = {}
    for path in SOURCES:
        where = path.relative_to(ROOT / "hloscope").as_posix()
        if not named.search(path.read_text()):
            continue
        sentences = [(line, text) for line, text in sentences_in(path) if " " in text and named.search(text)]
        if sentences and where not in NOT_OURS:
            found[where] = sentences
    assert found == {}
    assert len(SOURCES) > 200


@cache
def words_used() -> tuple[set[str], set[str]]:
    """The names of the options and commands that messages hold."""
    options, commands = {"collective"}, set()
    for path in SOURCES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"\b(Option|with_option|Command)\(", text) else ():
            named = getattr(node, "func", None)
            name = getattr(named, "attr", getattr(named, "id", ""))
            if name in ("Option", "with_option", "Command") and node.args and isinstance(node.args[0], ast.Constant):
                (commands if name == "Command" else options).add(node.args[0].value)
    text = (ROOT / "hloscope/verification/judging.py").read_text()
    return options | set(re.findall(r'"([\w-]+)"', text.partition("map(Option, (")[2].partition("))")[0])), commands


def test_the_table_holds_no_option_that_no_message_names():
    options, commands = words_used()
    assert set(OPTIONS) <= options
    assert commands <= set(group.list_commands(click.Context(group)))
    assert (len(options), len(commands)) > (30, 5)


PYTHON = (
    *(hloscope.analyze, hloscope.analyze_all, hloscope.record, hloscope.explain, hloscope.verify, hloscope.check),
    *(hloscope.diff, hloscope.compare, hloscope.measure, hloscope.accept, hloscope.suggest, hloscope.graph),
    *(hloscope.Analysis.report, hloscope.Analysis.fails),
)


@pytest.mark.parametrize("name", sorted(words_used()[0]))
def test_an_option_of_a_message_is_one_of_the_command_line_and_of_python(name):
    word = find_python_form(name)
    if not word.is_argument:
        assert f"--{name}" in long_options()
    takers = [taker for taker in PYTHON if word.keyword in inspect.signature(taker).parameters]
    assert takers
    if word.value is not None:
        assert all(inspect.signature(taker).parameters[word.keyword].default in (False, None) for taker in takers)


def test_options_of_targets_are_called_what_targets_call_them():
    for option in OPTIONS_BY_NAME.values():
        known = words_used()[0] & {flag.removeprefix("--") for flag in option.flags}
        assert all(find_python_form(name).keyword == option.name for name in known)


def names_of(node: ast.AST) -> Iterator[str]:
    """The names that are read or called in an expression."""
    for inside in ast.walk(node):
        if isinstance(inside, ast.Name):
            yield inside.id
        elif isinstance(inside, ast.Attribute) and not isinstance(inside.value, ast.Constant):
            yield inside.attr


def is_a_message(node: ast.AST | None) -> bool:
    if isinstance(node, ast.IfExp):
        return is_a_message(node.body) or is_a_message(node.orelse)
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say"


def messages_named_in(node: ast.AST) -> set[str]:
    """Functions that return or yield a message, or variables that are assigned one."""
    if isinstance(node, ast.FunctionDef):
        ends = (each.value for each in ast.walk(node) if isinstance(each, ast.Return | ast.Yield))
        return {node.name} if any(map(is_a_message, ends)) else set()
    if isinstance(node, ast.Assign) and is_a_message(node.value):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def is_text_of(node: ast.AST) -> bool:
    """Whether an expression makes plain text of what is in it: a part of an f-string, or `", ".join(...)`."""
    is_join = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"
    return isinstance(node, ast.FormattedValue) or (is_join and isinstance(node.func.value, ast.Constant))


def test_no_text_is_made_of_what_is_known_to_be_a_message():
    """An f-string or `str.join` would lose its parts."""
    found = {}
    for path in SOURCES:
        text = path.read_text()
        if "say(" not in text or "report" in path.parts or path.name == "messages.py":
            continue
        tree = ast.parse(text)
        functions = {name for node in tree.body for name in messages_named_in(node)}
        for outer in tree.body:
            known = functions.union(*map(messages_named_in, ast.walk(outer)))
            lost = [known & set(names_of(each)) for each in ast.walk(outer) if is_text_of(each)]
            if any(lost):
                found[path.relative_to(ROOT).as_posix()] = sorted(set().union(*lost))
    assert found == {}


# ---- errors, results and documents


def test_an_error_speaks_the_notation_of_its_door():
    error = TimeLimitError("compiling step", 5).after_waiting(3)
    told = str(error)
    assert "--timeout SECONDS" in told
    crossed = pickle.loads(pickle.dumps(error))
    assert (str(crossed), crossed.fix.parts) == (told, error.fix.parts)
    assert "timeout_s=SECONDS" in crossed.on_one_line().python
    assert "timeout_s=SECONDS" in error.message().python
    spoken = speak_python(crossed)
    assert "timeout_s=SECONDS" in str(spoken)
    assert "timeout_s=SECONDS" in str(pickle.loads(pickle.dumps(spoken)))
    assert "--" not in str(spoken)


@dataclass(frozen=True)
class Document:
    note: str
    notes: tuple[str, ...] = ()


def test_json_has_the_words_of_the_command_line():
    made = Document(say("add ", MESH), (say(MESH), USERS))
    found = speak_python(made)
    assert (found.note, found.notes) == ('add mesh={"X": 4, "Y": 2}', ('mesh={"X": 4, "Y": 2}', USERS))
    assert to_plain(found) == to_plain(made) == {"note": "add --mesh X=4,Y=2", "notes": ["--mesh X=4,Y=2", USERS]}
    again = msgspec.convert(to_plain(found), Document)
    assert speak_python(again) == again  # a document from a file is shown as it is


def test_caches_hold_the_words_of_the_command_line():
    found = speak_python(Document(say("add ", MESH), (USERS,)))
    kept = msgspec.msgpack.encode(found, enc_hook=encode_text)
    assert msgspec.msgpack.decode(kept, type=Document) == Document("add --mesh X=4,Y=2", (USERS,))


def test_a_result_says_python_and_its_json_the_command_line(tmp_path):
    text = (ROOT / "fixtures/captured/matmul.matmul.jax-0.10.hlo").read_text().replace("@Sharding", "@Other")
    (tmp_path / "step.hlo").write_text(re.sub(r", mesh=.*", "", text))
    found = hloscope.analyze(tmp_path / "step.hlo")
    told = [note for note in found.notes if "mesh=" in note]
    assert told
    assert all(note in str(found).replace("\n", " ") or "mesh=" in str(found) for note in told)
    document = json.dumps(found.to_dict())
    assert "--mesh" in document
    assert "mesh={" not in document
    assert json.loads(found.report("json")) == found.to_dict()


# ---- what is the user's is printed as it is


def users_step(x):
    raise ValueError(USERS)


def test_a_users_exception_is_printed_as_it_is():
    with pytest.raises(HloscopeError) as caught:
        hloscope.analyze(users_step, ("f32[8]",))
    assert f"   = why: ValueError: {USERS}" in str(caught.value)


def test_a_users_exception_is_printed_as_it_is_on_the_command_line(tmp_path):
    (tmp_path / "users.py").write_text(f"def step(x):\n    raise ValueError({USERS!r})\n")
    run = [sys.executable, "-m", "hloscope", "analyze", "users.py:step", "--arg", "f32[8]"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, f"   = why: ValueError: {USERS}" in done.stderr) == (2, True), done.stderr


def test_a_path_that_looks_like_an_option_is_printed_as_it_is():
    path = "/data/--top 5/x"
    with pytest.raises(HloscopeError) as caught:
        hloscope.analyze(f"{path}.hlo")
    assert path in str(caught.value)

    @front_door
    def fails():
        raise HloscopeError(f"{path} cannot be read", why=USERS, fix=say("give ", MESH, f" for {path}"))

    with pytest.raises(HloscopeError) as caught:
        fails()
    assert str(caught.value) == (
        f'{path} cannot be read\n   = why: {USERS}\n   = fix: give mesh={{"X": 4, "Y": 2}} for {path}'
    )
