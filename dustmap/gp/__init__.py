"""Gaussian-process regression in any dimension: exact, sparse or by neighbours.

:mod:`dustmap.inference.svi` has stochastic regression with any likelihood.
"""
