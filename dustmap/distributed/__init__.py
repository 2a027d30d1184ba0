"""One inference by many processes: rows of W shared out, or slabs of the grid."""
