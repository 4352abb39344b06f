"""Home folders below other folders are hidden as well; name stacks that look alike are not."""

from __future__ import annotations

import pytest

from hloscope.report.html.privacy import without_people


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/usr/local/google/home/jane/p/w.py:3", "/usr/local/google/~/p/w.py:3"),
        ("mnt/c/Users/janewsl/proj/w.py", "mnt/c/~/proj/w.py"),
        ("/var/home/jane/w.py", "/var/~/w.py"),
        ("/home/jane/w.py", "~/w.py"),
        ("jit(f)/home/dense/dot_general", "jit(f)/home/dense/dot_general"),
        ("params['home']['w']", "params['home']['w']"),
    ],
)
def test_home_folders_are_hidden_wherever_they_lie(text, shown):
    assert without_people(text) == shown
