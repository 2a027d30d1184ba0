"""Hyperparameters of large problems, learnt by evidence gradients and a search."""
