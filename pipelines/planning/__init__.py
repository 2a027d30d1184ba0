"""Choices of a fit: box, grid, memory and time, and the scales of the prior."""
