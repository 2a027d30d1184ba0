"""The report of a run: one HTML file, usable without a network."""
