"""Gaussian-process regression of any table: `Regressor`, and runs of tables."""

from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.run import Report, regress_table

__all__ = ["Prediction", "Regressor", "Report", "regress_table"]
