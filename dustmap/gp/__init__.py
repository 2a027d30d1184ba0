"""Gaussian-process regression at large: any dimension, likelihood, inducing points."""
