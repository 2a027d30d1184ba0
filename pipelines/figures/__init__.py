"""Figures of a map, drawn without pyplot: in threads and without a screen."""
