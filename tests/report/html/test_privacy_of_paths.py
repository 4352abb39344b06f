"""Home folders below other folders are hidden as well; name stacks that look alike are not."""

from __future__ import annotations

from time import perf_counter

import pytest

from hloscope.report.html.privacy import without_people


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/usr/local/google/home/jane/p/w.py:3", "/usr/local/google/~/p/w.py:3"),
        ("mnt/c/Users/janewsl/proj/w.py", "mnt/c/~/proj/w.py"),
        ("/var/home/jane/w.py", "/var/~/w.py"),
        ("/home/jane/w.py", "~/w.py"),
        ("cannot read /var/home/jane/w.bin:", "cannot read /var/~/w.bin:"),
        ("'/mnt/c/Users/jane/w.bin'", "'/mnt/c/~/w.bin'"),
        (r"C:\Users\jane\w.bin", r"~\w.bin"),
        ("/lustre/users/jane/w.bin", "/lustre/~/w.bin"),
        ("experimental/users/jane/w.py:29", "experimental/~/w.py:29"),
        ("model/users/embedding", "model/users/embedding"),
        ("transpose(jvp(f))/home/dense/dot_general", "transpose(jvp(f))/home/dense/dot_general"),
        ("jit(f)/home/dense/dot_general", "jit(f)/home/dense/dot_general"),
        ("params['home']['w']", "params['home']['w']"),
    ],
)
def test_home_folders_are_hidden_wherever_they_lie(text, shown):
    assert without_people(text) == shown


@pytest.mark.parametrize("piece", ["/$", "/home", "/.home/", "\\x", " /a"])
def test_a_long_hostile_path_is_read_in_one_go(piece):
    begun = perf_counter()
    without_people(piece * 40_000)
    assert perf_counter() - begun < 2
