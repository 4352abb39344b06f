"""The scripts that write the site's reference are importable, as they are for Sphinx."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "docs"))
