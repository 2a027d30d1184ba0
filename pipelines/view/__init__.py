"""A page with a map in it: one HTML file that opens in any browser."""
