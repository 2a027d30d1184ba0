"""A run: its folder, predictions, assessment and status."""
