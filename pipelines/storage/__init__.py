"""Atomic files, and their digests."""
