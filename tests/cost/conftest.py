"""Makes `cost_examples` importable for the tests beside it."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
