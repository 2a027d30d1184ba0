"""A run: its folder, what it predicts, how good it is, how far it got."""
