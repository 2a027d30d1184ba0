"""Typed, frozen configuration, fully validated before any work."""

from pipelines.config.fitting import FitConfig
from pipelines.config.loading import load_config
from pipelines.config.simulation import SimulateConfig
from pipelines.config.text import describe, to_toml

__all__ = ["FitConfig", "SimulateConfig", "describe", "load_config", "to_toml"]
