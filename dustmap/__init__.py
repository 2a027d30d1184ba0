"""Gaussian-process inference of fields seen through linear functionals.

The mathematics of three-dimensional dust mapping: tensors in, tensors out. Files,
units and coordinates live in :mod:`pipelines`.
"""

__version__ = "0.1.0"
