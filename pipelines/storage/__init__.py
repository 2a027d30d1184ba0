"""Files that are whole or absent, their digests, and records as they grow."""
