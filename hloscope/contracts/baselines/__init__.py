"""Baselines: small text files, made for review, of what a program moved when somebody last looked."""

from hloscope.contracts.baselines.against import against_baseline
from hloscope.contracts.baselines.files import is_baseline, read_baseline, write_baseline
from hloscope.contracts.baselines.model import Baseline, baseline_of
from hloscope.contracts.baselines.printing import format_baseline
from hloscope.contracts.baselines.reading import parse_baseline

__all__ = [
    "Baseline",
    "against_baseline",
    "baseline_of",
    "format_baseline",
    "is_baseline",
    "parse_baseline",
    "read_baseline",
    "write_baseline",
]
