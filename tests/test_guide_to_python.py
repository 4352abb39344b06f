"""The examples of `docs/python.md` run, and say what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "python.md"


@pytest.mark.tpu_compiler
def test_the_examples_run(cached, capsys):
    text = "\n".join(re.findall(r"```pycon\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    examples = doctest.DocTestParser().get_doctest(text, {}, GUIDE.name, str(GUIDE), 0)
    told: list[str] = []
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=told.append)
    assert (found.failed, "".join(told)) == (0, "")
    assert found.attempted > 20
