"""The fit of a map: a list of stages, and where it stands between them."""

from pipelines.fit.fitting import fit
from pipelines.fit.writing import FitReport

__all__ = ["FitReport", "fit"]
