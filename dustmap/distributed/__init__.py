"""Inference by several processes that share the rows of W."""
