"""The model of a fit: its plan, cost, observations and inference."""
