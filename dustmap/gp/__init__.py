"""Gaussian-process regression at large: any dimension, likelihood, inducing points."""

from dustmap.gp.moments import Moments
from dustmap.gp.svgp import Svgp
from dustmap.gp.svgp_fit import SvgpResult, fit_svgp
from dustmap.gp.svgp_settings import PLEISS_SCHEDULE, SvgpSettings

__all__ = [
    "PLEISS_SCHEDULE",
    "Moments",
    "Svgp",
    "SvgpResult",
    "SvgpSettings",
    "fit_svgp",
]
