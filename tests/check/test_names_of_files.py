"""Names that no file can have: they are names of files that are not there."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import hloscope
from hloscope.cli import group

LONG = "x" * 300
WAYS = {
    "analyze": lambda name: hloscope.analyze(f"{name}.hlo"),
    "check": lambda name: hloscope.check(f"{name}.hlo", contract="none"),
    "diff": lambda name: hloscope.diff(f"{name}.hlo", f"{name}.hlo"),
    "a function": lambda name: hloscope.analyze(f"{name}.py:step"),
}


@pytest.mark.parametrize("name", [LONG, "/".join(["x"] * 3000)], ids=["long", "deep"])
@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_is_too_long_is_one_message(way, name):
    with pytest.raises(hloscope.HloscopeError, match=f"there is no file {name}"):
        WAYS[way](name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", f"{LONG}.hlo"),
        ("check", "--config", f"{LONG}.toml"),
        ("diff", f"{LONG}.json", f"{LONG}.hlo"),
        ("price", f"{LONG}.hlo", "--slice", "v5e:2x4"),
        ("graph", f"{LONG}.hlo"),
        ("record", f"{LONG}.py"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_is_too_long_is_one_message_of_a_command(arguments):
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code != 0
    assert f"there is no file {LONG}" in "".join(done.stderr.split("\n")).replace("  ", "")


def test_a_ban_on_a_file_whose_name_is_too_long_cannot_fail(tmp_path):
    text = "HloModule m\nENTRY main {\n  ROOT p = f32[8] parameter(0)\n}\n"
    (tmp_path / "m.hlo").write_text(text)
    found = hloscope.check(str(tmp_path / "m.hlo"), contract=f'no all-gather in "{LONG}.py"')
    assert "there is no file xxx" in str(found)
    assert not found.passed
