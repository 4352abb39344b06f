"""Home folders below other folders are hidden as well; name stacks that look alike are not."""

from __future__ import annotations

import os
from time import process_time

import pytest

from hloscope.report.html.privacy import Privacy, hide_people


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
        (r"C:\Users\Jane Doe\w.py:3", r"~\w.py:3"),
        ("'/home/jane doe/w.bin', (/home/bob), /home/o'brien/x", "'~/w.bin', (~), ~/x"),
        ("read ~jane/w.bin with -I/home/jane/inc", "read ~/w.bin with -I~/inc"),
        (r"\\server\users\jane\w.bin", r"\\server\~\w.bin"),
        ("https://example.org/home/index.html", "https://example.org/home/index.html"),
        ("file:///home/jane/w.py", "file://~/w.py"),
        ("transpose(jvp(f))/home/dense/dot_general", "transpose(jvp(f))/home/dense/dot_general"),
        ("jit(f)/home/dense/dot_general", "jit(f)/home/dense/dot_general"),
        ("params['home']['w']", "params['home']['w']"),
    ],
)
def test_home_folders_are_hidden_wherever_they_lie(text, shown):
    assert hide_people(text) == shown


@pytest.mark.parametrize("piece", ["/$", "/home", "/.home/", "\\x", " /a"])
def test_a_long_hostile_path_is_read_in_one_go(piece):
    begun = process_time()
    hide_people(piece * 40_000)
    assert process_time() - begun < 2


@pytest.mark.parametrize(
    "file",
    [
        "/home/jane/My Project/w.py",
        "/Users/Jane Doe/My Drive/w.py",
        "/home/jane/bin/train",
        "/home/jane/w.jinja",
        "/nfs/home/jane/My Project/w.py",
        r"C:\Users\Jane Doe\w.py",
    ],
)
def test_a_home_folder_is_hidden_before_the_folder_that_all_have_in_common_is_cut(file):
    known = Privacy.of([file, "/opt/lib/other.py"])
    for shown in (known.hide_place(file), known.hide_place(f"{file}:3"), known.hide(f"made at {file}:3, moved")):
        assert "jane" not in shown.lower()
        assert "doe" not in shown.lower()
    assert known.hide_place(f"{file}:3").endswith(":3")


def test_files_of_several_people_that_are_called_alike_stay_apart():
    known = Privacy.of(["/home/jane/train.py", "/home/bob/train.py"])
    assert {known.hide_place("/home/bob/train.py"), known.hide_place("/home/jane/train.py")} == {
        "~/train.py",
        "~2/train.py",
    }


@pytest.mark.parametrize("folder", ["/app", "/tmp", "/model"])
def test_parts_of_a_model_that_are_called_as_the_current_folder_stay(folder, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: folder)
    name = folder.removeprefix("/")
    for kept in (f"jit(step)/{name}_0/dense", f"jit(step)/{name}/dense", f"{folder}2/x.py"):
        assert hide_people(kept) == kept
    assert hide_people(f"no file {folder}/x.py in {folder}") == "no file x.py in ."
