"""FITS, HEALPix and zarr: products written to files and read back."""
