"""`[tool.hloscope]` in pyproject.toml, or hloscope.toml: named targets, their contracts, and where baselines are."""

from hloscope.config.finding import find_project
from hloscope.config.model import ConfigError, ConfigMistakesError, ProjectConfig, TargetConfig, refuse
from hloscope.config.reading import read_project

__all__ = [
    "ConfigError",
    "ConfigMistakesError",
    "ProjectConfig",
    "TargetConfig",
    "find_project",
    "read_project",
    "refuse",
]
