"""Texts that are written into calls: nothing else changes, and formatters leave the result as it is."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from hloscope.base.errors import HloscopeError
from hloscope.pytest_plugin.inline import apply_edits, find_argument, make_edit, read_source, write_source

ONE = ("all-reduce@Y <= 8KiB x1", "nothing else")
SEVERAL = ("all-gather@X <= 8KiB x2", "all-reduce@Y <= 8KiB x1", "nothing else")


def written(tmp_path, before, lines=ONE):
    """A file with the text in its call of `inline`."""
    path = tmp_path / "test_it.py"
    path.write_bytes(before if isinstance(before, bytes) else before.encode())
    source = read_source(path)
    (call,) = (
        node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and "inline" in ast.unparse(node.func)
    )
    text, _ = apply_edits(source, [make_edit(source, call, 1, "expected", lines)])
    write_source(source, text)
    after = read_source(path)
    assert of_call(after.tree) == (*of_call(source.tree)[:-1], clauses("; ".join(lines)))
    return path.read_bytes() if isinstance(before, bytes) else path.read_text()


def of_call(tree):
    """All of a file but what is expected in it, and that."""
    (call,) = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and "inline" in ast.unparse(node.func))
    given = find_argument(call, 1, "expected")
    call.args = [node for node in call.args if node is not given]
    call.keywords = [node for node in call.keywords if node.value is not given]
    return ast.dump(tree), None if given is None else clauses(ast.literal_eval(given))


def clauses(text):
    return [clause.strip() for line in text.splitlines() for clause in line.split(";") if clause.strip()]


OF_ONE = '''
hlo.expect.inline(report, "")
=>
hlo.expect.inline(report, "all-reduce@Y <= 8KiB x1; nothing else")

hlo.expect.inline(report)
=>
hlo.expect.inline(report, "all-reduce@Y <= 8KiB x1; nothing else")

report = hlo.expect.inline(step, mesh=MESH, slice="v5e:2x4")
=>
report = hlo.expect.inline(
    step,
    """
    all-reduce@Y <= 8KiB x1
    nothing else
    """,
    mesh=MESH,
    slice="v5e:2x4",
)

inline(program=r, expected="none")
=>
inline(program=r, expected="all-reduce@Y <= 8KiB x1; nothing else")

inline(program=r)
=>
inline(program=r, expected="all-reduce@Y <= 8KiB x1; nothing else")

inline((a, b))
=>
inline((a, b), "all-reduce@Y <= 8KiB x1; nothing else")

inline(lambda x, w: (x, w), "", ARGS)
=>
inline(lambda x, w: (x, w), "all-reduce@Y <= 8KiB x1; nothing else", ARGS)

inline(r, ("none; " "hbm <= 1GiB"))
=>
inline(r, "all-reduce@Y <= 8KiB x1; nothing else")

hlo.expect.inline(
    report,
    "",  # of the layer
)
=>
hlo.expect.inline(
    report,
    "all-reduce@Y <= 8KiB x1; nothing else",  # of the layer
)

hlo.expect.inline(
    report,
)
=>
hlo.expect.inline(
    report,
    "all-reduce@Y <= 8KiB x1; nothing else",
)

hlo.expect.inline(
    report,
    """
    none
    """,
)
=>
hlo.expect.inline(
    report,
    "all-reduce@Y <= 8KiB x1; nothing else",
)

class TestIt:
    def test_it(self, hlo):
        report = hlo.expect.inline(a_step, r""" """).analysis
=>
class TestIt:
    def test_it(self, hlo):
        report = hlo.expect.inline(
            a_step,
            """
            all-reduce@Y <= 8KiB x1
            nothing else
            """,
        ).analysis
'''
OF_SEVERAL = '''
def test_it(hlo):
    hlo.expect.inline(step, "", ARGS, mesh={"X": 2, "Y": 4})
=>
def test_it(hlo):
    hlo.expect.inline(
        step,
        """
        all-gather@X <= 8KiB x2
        all-reduce@Y <= 8KiB x1
        nothing else
        """,
        ARGS,
        mesh={"X": 2, "Y": 4},
    )

hlo.expect.inline(
    report,
    'none',
)
=>
hlo.expect.inline(
    report,
    """
    all-gather@X <= 8KiB x2
    all-reduce@Y <= 8KiB x1
    nothing else
    """,
)

hlo.expect.inline(
    report, expected="none"
)
=>
hlo.expect.inline(
    report,
    expected="""
    all-gather@X <= 8KiB x2
    all-reduce@Y <= 8KiB x1
    nothing else
    """,
)

hlo.expect.inline(
    report,
)
=>
hlo.expect.inline(
    report,
    """
    all-gather@X <= 8KiB x2
    all-reduce@Y <= 8KiB x1
    nothing else
    """,
)
'''


def cases(text, lines):
    pairs = [each.partition("\n=>\n") for each in text.strip("\n").split("\n\n")]
    return [pytest.param(f"{before}\n", f"{after}\n", lines) for before, _, after in pairs]


CASES = [*cases(OF_ONE, ONE), *cases(OF_SEVERAL, SEVERAL)]


@pytest.mark.parametrize(("before", "after", "lines"), CASES)
def test_a_text_is_written_where_it_belongs(tmp_path, before, after, lines):
    assert written(tmp_path, before, lines) == after


def test_comments_among_the_arguments_stay(tmp_path):
    before = 'hlo.expect.inline(report,  # the first layer\n                  "none")\n'
    after = written(tmp_path, before, SEVERAL)
    assert "# the first layer" in after


def test_formatters_leave_it_as_it_is(tmp_path):
    for number, case in enumerate(CASES):
        (tmp_path / f"of_{number}.py").write_text(case.values[1])
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", str(tmp_path)]
    for width in ("79", "120"):
        done = subprocess.run([*command, "--line-length", width], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            b"def f():\r\n\tinline(r, '')\r\n\tx = 1\r\n",
            b'def f():\r\n\tinline(\r\n\t\tr,\r\n\t\t"""\r\n\t\tall-gather@X <= 8KiB x2\r\n',
        ),
        (b"\xef\xbb\xbfinline(\n    r,\n    '',\n)\n", b'\xef\xbb\xbfinline(\n    r,\n    """\n    all-gather'),
        (
            b"# coding: latin-1\nx = '\xe9'; inline(r, '')  # \xe9\n",
            b"# coding: latin-1\nx = '\xe9'; inline(\n    r,\n",
        ),
        ("s = 'é𝄞'; inline('é', '')\x0c\n".encode(), "s = 'é𝄞'; inline(\n    'é',\n".encode()),
    ],
    ids=["tabs and CRLF", "byte order mark", "latin-1", "wide letters"],
)
def test_a_file_stays_as_it_is_written(tmp_path, before, after):
    assert written(tmp_path, before, SEVERAL).startswith(after)


def test_letters_that_a_file_cannot_spell_are_escaped(tmp_path):
    odd = ('all-reduce@"\\é\N{GREEK SMALL LETTER PI}\u2028" x1', 'all-gather@"\'" x1')
    after = written(tmp_path, b"# coding: latin-1\ninline(r, '')\n", odd)
    assert b"\\\\\xe9\\u03c0\\u2028" in after


def test_a_file_stays_as_accessible_as_it_was(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("inline(r)\n")
    path.chmod(0o754)
    source = read_source(path)
    write_source(source, "inline(r, '')\n")
    assert path.stat().st_mode & 0o777 == 0o754
    assert [each.name for each in tmp_path.iterdir()] == ["test_it.py"]


def test_what_would_be_no_python_is_not_written(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("inline(inline(r, ''), '')\n")
    source = read_source(path)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    with pytest.raises(HloscopeError, match="nested calls"):
        apply_edits(source, [make_edit(source, call, 1, "expected", SEVERAL) for call in calls])
