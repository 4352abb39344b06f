"""Running hloscope as CI does, in a repository of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
from command_line import hloscope

ROOT = Path(__file__).parent.parent.parent
CLEAN = {
    key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "COLUMNS", "TPU_", "GIT_"))
}


SARIF = json.loads((Path(__file__).parent / "published" / "sarif-2.1.0.json").read_text(encoding="utf-8"))


def sarif_run(text: str) -> dict:
    """The one run of a SARIF log that keeps to the published schema."""
    log = json.loads(text)
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    return run


class Repository:
    """A folder with a targets file and a cache of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.environment = {
            **CLEAN,
            "PYTHONPATH": str(ROOT),
            "HLOSCOPE_CACHE": "1",
            "HLOSCOPE_CACHE_DIR": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.cache = cache

    def command(self, *arguments):
        return [sys.executable, "-m", "hloscope", *map(str, arguments)]

    def run(self, *arguments):
        return hloscope(*arguments, cwd=self.folder, environ=self.environment)

    def run_process(self, *arguments):
        """For what depends on the path of a new process, and not only on its folder."""
        command = self.command(*arguments)
        options = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    def start(self, *arguments):
        # A child of a shell's background job would ignore interrupts, as the job itself does.
        own = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, own)

    def document(self, *arguments):
        done = self.run(*arguments, "--format", "json")
        assert done.stdout, done.stderr
        return done.returncode, {one["name"]: one for one in json.loads(done.stdout)["checks"]}

    def git(self, *arguments):
        command = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", *arguments]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True)

    def status(self):
        command = ["git", "status", "--porcelain"]
        return subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True).stdout

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)


def demonstration(folder: Path) -> Repository:
    """The repository of `fixtures/ci`, its first commit made and its baselines accepted; all share one cache."""
    shutil.copytree(ROOT / "fixtures" / "ci", folder / "repository")
    repository = Repository(folder / "repository", folder.parent / "demonstration-cache")
    repository.git("init", "-q")
    accepted = repository.run("accept")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    repository.commit("good")
    return repository
