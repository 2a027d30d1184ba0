"""The fit of a map: its stages, and its state between them."""

from pipelines.fit.fitting import fit
from pipelines.fit.writing import FitReport

__all__ = ["FitReport", "fit"]
