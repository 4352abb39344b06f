"""The test suite on this Python, and a smoke set on every other supported Python that is installed.

`nox -s quick` runs what needs no compiler and starts no process, in about a minute; `nox -s long` what takes long:
processes that die and hang, random programs, and the whole suite on the other Python. `nox -s stages` compares what
libtpu schedules with what it compiles: for a new libtpu. `nox -s decisions` judges hloscope against programs whose lost
decisions are known. `nox -s docs` builds the documentation; `nox -s wheel` builds the package, and installs and runs it
on every supported Python.
"""

import sys
from pathlib import Path

import nox

SUPPORTED = ("3.11", "3.12", "3.13")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [version for version in SUPPORTED if version in ("3.11", "3.13") and version != HERE]
ROOMS = (
    "analysis",
    "app",
    "cost",
    "hlo",
    "judge",
    "measurement",
    "report",
    "tpu",
)
QUICK = [
    *(f"tests/{room}" for room in ROOMS),
    "tests/test_api.py",
    "tests/test_errors.py",
    "tests/test_house.py",
    "tests/house",
]
SERVERS = ("aiohttp", "cheroot", "moto[server]", "paramiko", "s3fs", "webdav4[fsspec]", "wsgidav")
"""What holds a shared cache on this machine, and its clients; OpenSSH's server is used where it is installed."""
SIDE_BY_SIDE = ("-n", "auto", "--dist", "worksteal")  # neighbors stay together, and share what they compile

nox.options.sessions = ["tests", "smoke"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True


@nox.session(python=sys.executable)
def tests(session: nox.Session) -> None:
    """Runs every test but the long ones: the tool itself, its house rules (ruff, mypy, layers) and its packaging."""
    session.install("-e", ".[test]")
    session.run("pytest", *SIDE_BY_SIDE, "-m", "not long", *session.posargs)


@nox.session(python=sys.executable)
def quick(session: nox.Session) -> None:
    """Runs the tests that need no compiler and start no process."""
    session.install("-e", ".[test]")
    chosen = "not tpu_compiler and not process and not long"
    session.run("pytest", *SIDE_BY_SIDE, "-m", chosen, "--no-processes", *QUICK, *session.posargs)


@nox.session(python=[sys.executable, *OTHERS])
def long(session: nox.Session) -> None:
    """Runs the tests marked `long` here, and every test on another Python with its JAX."""
    chosen = ["-m", "long"] if session.python == sys.executable else []
    session.install("-e", ".[test]", *(SERVERS if chosen else ()))
    session.run("pytest", *SIDE_BY_SIDE, *chosen, *session.posargs)
    if chosen:
        session.run("pytest", *SIDE_BY_SIDE, "tests/truth", env={"HLOSCOPE_RANDOM": "more"})


@nox.session(python=[sys.executable, *OTHERS])
def stages(session: nox.Session) -> None:
    """Compares both stages of many compiles, and prints the entry for `hloscope/compile/stages.toml`: an hour."""
    session.install("-e", ".[test]")
    devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "64", "HLOSCOPE_CACHE": "0"}
    session.run("python", "tests/compile/two_stages.py", *session.posargs, env=devices)


@nox.session(python=sys.executable)
def decisions(session: nox.Session) -> None:
    """Judges the decisions of programs with known cures: half an hour. `-- language:tied` judges one."""
    session.install("-e", ".[test]")
    session.run("python", "tests/decisions/run.py", *session.posargs)


@nox.session(python=OTHERS)
def smoke(session: nox.Session) -> None:
    """Runs the tests marked `smoke` with the newest JAX of another Python."""
    session.install("-e", ".[test]")
    session.run("pytest", *SIDE_BY_SIDE, "-m", "smoke", *session.posargs)


@nox.session(python=sys.executable)
def docs(session: nox.Session) -> None:
    """Builds the site; a broken link is an error. `-- refresh` checks what commands print, `-- links` others' sites."""
    session.install("-e", ".[test,docs]")
    build = ("sphinx-build", "-W", "--keep-going")
    if "links" in session.posargs:
        session.run(*build, "-b", "linkcheck", "docs", "docs/_build/links")
        return
    session.run(*build, "-b", "html", "docs", "docs/_build/html")
    if "refresh" in session.posargs:
        session.run("python", "docs/refresh.py", "--check", "README.md", *map(str, sorted(Path("docs").glob("*.md"))))


@nox.session(python=SUPPORTED)
def wheel(session: nox.Session) -> None:
    """Builds wheel and sdist, and runs each where nothing else is installed but what it asks for."""
    session.install("build")
    built = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", built, ".", silent=True)
    for package in sorted(Path(built).glob("hloscope-*")):
        session.run("python", "tests/installed.py", str(package))
