"""The stage that fits a map: ``fit`` is the verb, what is beside it are its parts."""

from pipelines.fit.fitting import fit
from pipelines.fit.writing import FitReport

__all__ = ["FitReport", "fit"]
