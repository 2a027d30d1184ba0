"""Hyperparameters of large problems, learnt by a likelihood and a map."""
