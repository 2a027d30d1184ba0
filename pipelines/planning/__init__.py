"""What a fit chooses: box, grid, memory and time, and the scales of the prior."""
