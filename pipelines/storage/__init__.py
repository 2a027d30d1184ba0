"""Atomic files, their digests, and records of iterations."""
