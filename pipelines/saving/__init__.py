"""What a fit leaves while it is under way: a lock, checkpoints, how far it is."""
