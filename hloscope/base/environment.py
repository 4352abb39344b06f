"""Where hloscope runs: frames that only start a program, cells of notebooks, continuous integration, its own files."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from functools import lru_cache
from pathlib import Path

_PACKAGES = (
    "_pytest asyncio click concurrent/futures debugpy execnet fire hydra ipykernel IPython multiprocessing nbclient "
    "pluggy pydevd tornado traitlets typer xdist".split()
)
_FILES = (
    "absl/app.py bdb.py cProfile.py hloscope/__main__.py ipykernel_launcher.py pdb.py runpy.py threading.py "
    "unittest/case.py".split()
)
_SCRIPTS = ("hloscope", "ipython", "jupyter[\\w-]*", "pytest", "py.test")
_OWN_ROOMS = "api|app|cli|compile|compiler|program|pytest_plugin|verification"
"""The rooms that call user code; `api`, `compiler` and `program` are those of 0.2, which older texts name."""
_LAUNCHER = re.compile(
    r"^<frozen (?:runpy|importlib)"
    rf"|(?:^|/)hloscope/(?:{_OWN_ROOMS})/[\w/]+\.py$"
    rf"|(?:^|/)(?:{'|'.join(_PACKAGES)})/[\w/]+\.py$"
    rf"|(?:^|/)(?:{'|'.join(map(re.escape, _FILES))})$"
    rf"|/bin/(?:{'|'.join(_SCRIPTS)})$"
)


@lru_cache(maxsize=4096)
def is_launcher(file: str) -> bool:
    """Returns whether code in a file only starts the user's code, which is never further out on a stack."""
    return _LAUNCHER.search(file.replace("\\", "/")) is not None


_OWN = str(Path(__file__).parent.parent)
_STANDARD = str(Path(contextlib.__file__).parent)


def is_library(filename: str) -> bool:
    """Returns whether a source file belongs to Python, a package or hloscope."""
    return (
        filename.startswith(("<frozen", _OWN, _STANDARD)) or "site-packages" in filename or "dist-packages" in filename
    )


# ---- cells of a notebook by their numbers; the kernel runs each as a file with a meaningless name

_FILE_OF_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\w+\.py$|^<ipython-input-(?P<number>\d+)-")


def find_cell(file: str) -> str | None:
    """The cell of a file, by its last run: `In[44]`; None for any other file, and if unknown."""
    found = _FILE_OF_CELL.search(file)
    if found is None:
        return None
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    known = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = known.get(file, found["number"]) if isinstance(known, dict) else found["number"]
    return None if number is None else f"In[{number}]"


def format_place(place: str) -> str:
    """A place in a cell, `In[44]:3`, instead of its file and line; any other place is unchanged."""
    file, colon, line = place.rpartition(":")
    cell = find_cell(file)
    return place if cell is None else f"{cell}{colon}{line}"


# ---- detection of continuous integration, where notes are not read and nothing should be accepted

_SAYS_NO = frozenset({"", "0", "false", "no", "off"})


def is_ci() -> bool:
    """Returns whether `CI` is set, as in GitHub, GitLab and others; `CI=false` counts as not set."""
    return os.environ.get("CI", "").strip().lower() not in _SAYS_NO


def is_strict(asked: bool | None) -> bool:
    """Returns whether loosened checks fail: as requested, or otherwise if `CI` is set."""
    return is_ci() if asked is None else asked


# ---- the one door to the grammar files, in a wheel, an sdist and an editable checkout alike

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "grammars", _PACKAGE.parent / "grammars")


def read_grammar(name: str) -> str:
    """Returns the text of `grammars/<name>.lark`.

    Args:
        name: The grammar's file name without its ending, such as `hlo` or `argument`.

    Raises:
        FileNotFoundError: The grammar was not shipped; a test of every kind of installation guards against it.
    """
    for place in _PLACES:
        path = place / f"{name}.lark"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(f"grammar {name}.lark is in none of {[str(place) for place in _PLACES]}")
