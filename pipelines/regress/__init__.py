"""Gaussian-process regression of any table: `Regressor`, and runs of tables."""

from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.run import Report, predict_table, regress_table

__all__ = ["Prediction", "Regressor", "Report", "predict_table", "regress_table"]
