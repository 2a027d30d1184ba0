"""Writes columns as a HATS catalogue, as the survey archives lay them out."""

from __future__ import annotations

from pathlib import Path

import healpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_hats(
    folder: Path,
    columns: dict[str, np.ndarray],
    *,
    pixels: list[tuple[int, int]] | None = None,
    as_folders: bool = False,
) -> Path:
    """Partition by ``ra, dec`` [deg] over given pixels; all of order 0 by default."""
    pixels = pixels or [(0, pixel) for pixel in range(12)]
    listing = ["Norder,Npix"]
    rows = 0
    for order, pixel in pixels:
        place = (columns["ra"], columns["dec"])
        inside = healpy.ang2pix(2**order, *place, nest=True, lonlat=True) == pixel
        if not inside.any():
            continue
        level = folder / "dataset" / f"Norder={order}" / f"Dir={pixel // 10000 * 10000}"
        path = level / f"Npix={pixel}.parquet"
        if as_folders:
            path = level / f"Npix={pixel}" / "part0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({n: c[inside] for n, c in columns.items()}), path)
        listing.append(f"{order},{pixel}")
        rows += int(inside.sum())
    (folder / "partition_info.csv").write_text("\n".join(listing) + "\n")
    (folder / "hats.properties").write_text(
        f"#HATS catalog\nobs_collection=small\ndataproduct_type=object\n"
        f"hats_nrows={rows}\nhats_col_ra=ra\nhats_col_dec=dec\nhats_version=v1.0\n"
    )
    # Rows a second time, which are not to be read.
    sample = pa.table({name: column[:3] for name, column in columns.items()})
    pq.write_table(sample, folder / "dataset" / "data_thumbnail.parquet")
    pq.write_metadata(sample.schema, folder / "dataset" / "_common_metadata")
    return folder
