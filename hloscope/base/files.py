"""Names of files from users: of any text it can be asked whether there is such a file.

`pathlib` raises an OSError for a name that is too long, or that is in a folder that may not be read.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_there(path: str | Path) -> bool:
    """Returns whether there is a file or a folder of this name."""
    return os.path.exists(path)


def is_file(path: str | Path) -> bool:
    """Returns whether there is a file of this name."""
    return os.path.isfile(path)


def is_folder(path: str | Path) -> bool:
    """Returns whether there is a folder of this name."""
    return os.path.isdir(path)
