"""One inference by many processes, which share out the rows of W."""
