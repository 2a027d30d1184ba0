"""Figures of a map, drawn without pyplot, for threads and headless machines."""
