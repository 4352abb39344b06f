"""Queries to git about the repository of a project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hloscope.errors import HloscopeError


def commit_of(folder: Path) -> str | None:
    """Returns the commit checked out in a folder's repository; None if there is none or it is unknown."""
    try:
        return git("rev-parse", "HEAD", cwd=folder).decode().strip()
    except HloscopeError:
        return None


def git(
    *arguments: str,
    cwd: Path,
    what: str | None = None,
    fix: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Returns the output of a git command.

    Args:
        arguments: The command.
        cwd: The folder to run it in.
        what: What it means when it fails.
        fix: What helps then.
        environment: Variables on top of this process's.

    Raises:
        HloscopeError: It fails, or there is no git.
    """
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, check=False
        )
    except OSError as error:
        raise HloscopeError("git cannot be run", why=str(error)) from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip() or None
        raise HloscopeError(what or f"git {arguments[0]} failed in {cwd}", why=why, fix=fix)
    return done.stdout
