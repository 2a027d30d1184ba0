"""The files of an unfinished fit: lock, checkpoints and status."""
