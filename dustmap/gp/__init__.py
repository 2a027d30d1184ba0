"""Gaussian-process regression at large: any dimension, likelihood, inducing points.

Exact, and by the collapsed bound; :mod:`dustmap.inference.svi` has the stochastic one.
"""
