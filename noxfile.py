"""The whole test suite on this Python, and a smoke set on every other supported Python that is installed."""

import sys

import nox

SUPPORTED = ("3.11", "3.12", "3.13")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

nox.options.sessions = ["tests", "smoke"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True


@nox.session(python=sys.executable)
def tests(session: nox.Session) -> None:
    """Runs every test: the tool itself, its house rules (ruff, mypy, layers) and its packaging."""
    session.install("-e", ".[test]")
    session.run("pytest", "-n", "auto", *session.posargs)


@nox.session(python=[version for version in SUPPORTED if version in ("3.11", "3.13") and version != HERE])
def smoke(session: nox.Session) -> None:
    """Runs the tests marked `smoke` with the newest JAX of another Python."""
    session.install("-e", ".[test]")
    session.run("pytest", "-n", "auto", "-m", "smoke", *session.posargs)
