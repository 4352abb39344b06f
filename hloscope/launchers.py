"""Frames of a stack that only start a program: those of hloscope itself, its starter, notebooks and test runners."""

from __future__ import annotations

import re
from functools import lru_cache

_PACKAGES = (
    "_pytest asyncio click concurrent/futures debugpy execnet fire hydra ipykernel IPython multiprocessing nbclient "
    "pluggy pydevd tornado traitlets typer xdist".split()
)
_FILES = (
    "absl/app.py bdb.py cProfile.py hloscope/__main__.py ipykernel_launcher.py pdb.py runpy.py threading.py "
    "unittest/case.py".split()
)
_SCRIPTS = ("hloscope", "ipython", "jupyter[\\w-]*", "pytest", "py.test")
_OWN_ROOMS = "api|cli|compiler|program|pytest_plugin|verification"
_LAUNCHER = re.compile(
    r"^<frozen (?:runpy|importlib)"
    rf"|(?:^|/)hloscope/(?:{_OWN_ROOMS})/[\w/]+\.py$"
    rf"|(?:^|/)(?:{'|'.join(_PACKAGES)})/[\w/]+\.py$"
    rf"|(?:^|/)(?:{'|'.join(map(re.escape, _FILES))})$"
    rf"|/bin/(?:{'|'.join(_SCRIPTS)})$"
)


@lru_cache(maxsize=4096)
def is_launcher(file: str) -> bool:
    """Returns whether code in a file only starts the user's: no code of the user's is outside of it on a stack."""
    return _LAUNCHER.search(file.replace("\\", "/")) is not None
