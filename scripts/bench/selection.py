"""The bias of a magnitude-limited catalogue, and its correction (`data.magnitude`).

The stars of `galaxy_dev_clean.npz` get absolute magnitudes with counts that grow as
10^(γ M), dimmed by their true extinctions. One map is of the stars brighter than a
limit, one of the same stars with the correction, and one of equally many that a limit
in magnitudes without extinction leaves. All are judged by the true extinctions of the
same stars, which none has seen; those behind dense clouds have the tenth with the
largest unresolved part: prediction of the unlimited map times its relative error.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from astropy import units
from astropy.coordinates import SkyCoord
from report import Report, Row, data_folder, parser

import dustmap
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig, load_config
from pipelines.fit.fitting import fit

# Growth of counts per magnitude, extinction in the magnitudes' band over that of the
# catalogue, the part of the stars that is seen, and the part that is behind clouds.
_GROWTH, _DIMMING, _SEEN, _BEHIND = 0.35, 0.85, 0.4, 0.1


def main() -> None:
    options = arguments()
    report = Report.of("selection", __doc__, options)
    report.tables = {"Mean errors of extinctions [mag]": table(options)}
    report.write(options.output)


def table(options: argparse.Namespace) -> list[Row]:
    """Fit and judge the three maps."""
    sky = dict(np.load(options.data / "galaxy_dev_clean.npz"))
    tested = sky.pop("is_test")
    known = {n: v[~tested] for n, v in sky.items() if len(v) == len(tested)}
    unseen = {n: v[tested] for n, v in sky.items() if len(v) == len(tested)}
    if options.quick:
        known = {name: values[:4_000] for name, values in known.items()}
    random = np.random.default_rng(options.seed)
    bright = np.log10(random.uniform(size=len(known["l"]))) / _GROWTH
    clear = bright + 5 * np.log10(known["dist_pc"] / 10)
    magnitude = clear + _DIMMING * known["av_true"]
    limit = float(np.quantile(magnitude, _SEEN))
    ends = SkyCoord(
        unseen["l"] * units.deg,
        unseen["b"] * units.deg,
        distance=unseen["dist_pc"] * units.pc,
        frame="galactic",
    )
    corrected = (
        "data.magnitude=m",
        f"data.limit={limit:.4f}",
        f"data.dimming={_DIMMING}",
    )
    maps = {
        "no limit": (clear <= np.quantile(clear, _SEEN), ()),
        "limited": (magnitude <= limit, ()),
        "limited, corrected": (magnitude <= limit, corrected),
    }
    predicted = {}
    for name, (seen, settings) in maps.items():
        work = options.output / "work" / name.replace(", ", "-").replace(" ", "-")
        columns = {key: values[seen] for key, values in known.items()}
        source = work.with_suffix(".parquet")
        write_stars(source, stars(columns, magnitude[seen]), overwrite=True)
        overrides = [*settings, f"inference.seed={options.seed}"]
        config = load_config(FitConfig, overrides=overrides)
        fit(source, work, config, overwrite=True)
        predicted[name] = dustmap.predict(work, ends)
    control = predicted["no limit"]
    unresolved = np.asarray(control["extinction_std"])
    behind = unresolved >= np.nanquantile(unresolved, 1 - _BEHIND)
    rows = []
    for name, (seen, _) in maps.items():
        error = np.asarray(predicted[name]["extinction_mean"]) - unseen["av_true"]
        inside = np.isfinite(error)
        rows.append(
            {
                "map": name,
                "stars": int(seen.sum()),
                "all places": float(error[inside].mean()),
                "behind clouds": float(error[inside & behind].mean()),
                "standard error": float(
                    error[inside & behind].std() / math.sqrt((inside & behind).sum())
                ),
                "RMSE": float((error[inside] ** 2).mean() ** 0.5),
            }
        )
    return rows


def stars(columns: dict[str, np.ndarray], magnitude: np.ndarray) -> Stars:
    """The catalogue of one map."""
    names = {
        "l": "l",
        "b": "b",
        "distance": "dist_pc",
        "distance_error": "e_dist_pc",
        "extinction": "av",
        "extinction_error": "e_av",
    }
    values = {n: columns[key].astype(np.float64) for n, key in names.items()}
    return Stars.of({**values, "m": magnitude}, {}, {})


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    return options.parse_args()


if __name__ == "__main__":
    main()
