"""The command line: verbs only. Parse, call one stage, print, exit code.

Exit status: 0 done, 1 failed, 2 bad input or usage, 75 stopped by a signal, to be taken
up again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

import dustmap
from pipelines.errors import InputError, Stopped
from pipelines.progress import rank_mark

# Read when torch is first imported, which the verbs do: threads that wait sleep instead
# of spinning, which is twice as fast where cores are shared with other jobs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# NumPy's and SciPy's own threads only ever see small matrices here, and spin on them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_OUT = click.Path(path_type=Path)
# What sysexits.h calls EX_TEMPFAIL: job scripts queue the same command again.
_TRY_AGAIN = 75
_OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
)


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what went wrong into one message and an exit status."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except InputError as error:
            _fail(2, f"{error}")
        except Stopped as reason:
            _fail(_TRY_AGAIN, f"{reason}")
        except (OSError, MemoryError, RuntimeError, ArithmeticError) as error:
            _fail(1, f"failed: {type(error).__name__}: {error}")
        except KeyboardInterrupt:
            _fail(1, "interrupted; nothing was written")

    return guarded


def _fail(status: int, message: str) -> None:
    click.echo(f"{rank_mark()}dustmap: {message}", err=True)
    sys.exit(status)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dustmap.__version__, prog_name="dustmap")
def main() -> None:
    """Three-dimensional maps of interstellar dust from catalogues of stars.

    \b
    A map in four steps:
      dustmap ingest catalogue.fits --preset starhorse-edr3 -o stars.parquet
      dustmap fit stars.parquet -o run
      dustmap export run --zarr map.zarr --fits map.fits --healpix map.hpx.fits
      dustmap plot run -o figures
    """


def _print_simulation_keys(context: click.Context, _: Any, wanted: bool) -> None:
    """Answer ``--help-config`` like ``--help``: whatever else is on the line."""
    from pipelines.config import SimulateConfig, describe

    if wanted and not context.resilient_parsing:
        click.echo(describe(SimulateConfig))
        context.exit()


@main.command()
@click.option("-o", "--output", required=True, type=_OUT, help="Parquet table to make.")
@click.option("--truth", type=_OUT, help="Also write the true density as zarr.")
@click.option("--stars", type=int, help="Number of stars.")
@click.option("--seed", type=int, help="Seed of every random draw.")
@click.option("-c", "--config", type=_OUT, help="TOML configuration.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option(
    "--help-config",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_simulation_keys,
    help="Print every key and its default.",
)
@_OVERWRITE
@_reporting
def simulate(
    output: Path,
    truth: Path | None,
    stars: int | None,
    seed: int | None,
    config: Path | None,
    overrides: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Make a mock galaxy: dust, stars, realistic errors; the truth is kept."""
    from pipelines.config import SimulateConfig, load_config
    from pipelines.simulate import simulate as run

    flags = [f"stars={stars}"] if stars is not None else []
    flags += [f"seed={seed}"] if seed is not None else []
    settings = load_config(SimulateConfig, config, [*overrides, *flags])
    click.echo(str(run(settings, output, truth=truth, overwrite=overwrite)))


@main.command()
@click.argument("sources", nargs=-1, required=True, type=_OUT, metavar="SRC...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=_OUT,
    help="Table to make: NAME.parquet, or a folder of partitions, sorted over the sky.",
)
@click.option("--preset", help="Survey preset, by name or as a TOML file.")
@click.option(
    "--map",
    "mappings",
    multiple=True,
    metavar="CANONICAL=COLUMN[:UNIT]",
    help="Where a canonical column comes from, e.g. distance=dist_pc:pc; a number "
    "stands for a constant. Repeatable.",
)
@click.option("--where", metavar="EXPR", help="Keep rows that fulfil, e.g. 'snr > 20'.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Carry a column along.")
@click.option(
    "--max-bad",
    type=float,
    default=0.5,
    show_default=True,
    metavar="FRACTION",
    help="Refuse the input if more of its rows are faulty.",
)
@click.option("--positions", is_flag=True, help="Positions only, for predict.")
@click.option(
    "--workers",
    type=int,
    default=1,
    show_default=True,
    help="Processes that fill a folder; the result is the same for any number.",
)
@click.option(
    "--merge",
    metavar="NSIDE,BINS",
    help="Merge the stars of each HEALPix pixel and distance bin into one (see "
    "`dustmap merge`); needs a folder.",
)
@_OVERWRITE
@_reporting
def ingest(
    sources: tuple[Path, ...],
    output: Path,
    preset: str | None,
    mappings: tuple[str, ...],
    where: str | None,
    keep: tuple[str, ...],
    max_bad: float,
    positions: bool,
    workers: int,
    merge: str | None,
    overwrite: bool,
) -> None:
    """Read catalogues into the table that fit and predict take.

    SRC: CSV, ECSV, FITS, VOTable, parquet (file or folder), HDF5 or a HATS catalogue.

    \b
    Canonical columns: l b [deg] (or ra dec, or x y z [pc]), distance [pc] (or
    parallax [mas]), extinction, extinction_error [mag]; optional source_id,
    distance_error, parallax_error, and *_lower / *_upper bounds.
    Units are never guessed: give them in the file, a preset or --map.
    """
    from pipelines.catalog.ingest import ingest as run
    from pipelines.progress import Progress

    with Progress(description="ingest", unit="row") as progress:
        report = run(
            list(sources),
            output,
            preset=preset,
            mappings=mappings,
            where=where,
            keep=keep,
            positions_only=positions,
            max_bad=max_bad,
            workers=workers,
            merge=merge,
            overwrite=overwrite,
            progress=progress.update,
        )
    click.echo(str(report))


@main.command()
@click.argument("stars", type=_OUT)
@click.option("-o", "--output", required=True, type=_OUT, help="Folder to make.")
@click.option(
    "--cells",
    required=True,
    metavar="NSIDE,BINS",
    help="HEALPix pixels and bins of distance: their number, e.g. 256,40, or their "
    "width, e.g. 256,25pc.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes.")
@_OVERWRITE
@_reporting
def merge(stars: Path, output: Path, cells: str, workers: int, overwrite: bool) -> None:
    """Merge the STARS of each pixel and distance bin into one pseudo-observation.

    For catalogues with many stars in each voxel of the map: choose cells smaller than
    that. Column `members` has the number of stars; outliers stay by themselves. The
    same as `dustmap ingest STARS --merge NSIDE,BINS`.
    """
    from pipelines.catalog.ingest import ingest as run
    from pipelines.progress import Progress

    with Progress(description="merge", unit="row") as progress:
        report = run(
            [stars],
            output,
            workers=workers,
            merge=cells,
            overwrite=overwrite,
            progress=progress.update,
        )
    click.echo(str(report))


@main.command()
@click.argument("stars", type=_OUT)
@click.option("-o", "--output", required=True, type=_OUT, help="Run folder to make.")
@click.option("-c", "--config", type=_OUT, help="TOML configuration.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key, e.g. --set box.spacing=50. Repeatable.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where a fit into RUN stopped; begin if there is none.",
)
@click.option(
    "--resume-anyway",
    "anyway",
    is_flag=True,
    help="Go on even if configuration, catalogue or code are others by now.",
)
@_OVERWRITE
@_reporting
def fit(
    stars: Path,
    output: Path,
    config: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
    anyway: bool,
    overwrite: bool,
) -> None:
    """Fit a map to STARS. Without a configuration everything is chosen and printed.

    `dustmap config` prints every key with its default. A fit saves itself every few
    minutes and on SIGTERM, SIGUSR1 and Ctrl-C, with which it ends with status 75:
    the same command with --resume goes on.
    """
    from pipelines.config import FitConfig, load_config
    from pipelines.fit import fit as run
    from pipelines.launch import processes

    settings = load_config(FitConfig, config, overrides)
    with processes() as group:
        report = run(
            stars,
            output,
            settings,
            overwrite=overwrite,
            resume=resume,
            anyway=anyway,
            group=group,
        )
        if not group.first:
            return
    click.echo(str(report))
    if not report.converged:
        click.echo("dustmap: warning: the solver did not converge (above)", err=True)


@main.command(name="config")
@click.option("--simulate", "simulation", is_flag=True, help="Of simulate instead.")
@_reporting
def config_(simulation: bool) -> None:
    """Print the configuration of fit: every key, its meaning and default, as TOML."""
    from pipelines.config import FitConfig, SimulateConfig, describe

    click.echo(describe(SimulateConfig if simulation else FitConfig))


@main.command()
@click.argument("run", type=_OUT)
@click.argument("stars", type=_OUT)
@click.option("-o", "--output", required=True, type=_OUT, help="Parquet table to make.")
@_OVERWRITE
@_reporting
def predict(run: Path, stars: Path, output: Path, overwrite: bool) -> None:
    """Extinction and density, with std, at the place of every row of STARS.

    One row per row of the input, in its order; stars outside the map get NaN and
    inside = false.
    """
    from pipelines.predict import predict as predict_

    _, rows, inside = predict_(run, stars, output, overwrite=overwrite)
    click.echo(f"{rows} rows, {inside} inside the map, in {output}")


@main.command()
@click.argument("run", type=_OUT)
@click.option("--zarr", "zarr_", type=_OUT, help="Density cube as zarr v3.")
@click.option("--fits", "fits_", type=_OUT, help="Density cube as FITS.")
@click.option("--healpix", "healpix_", type=_OUT, help="Cumulative extinction.")
@click.option(
    "--distances", metavar="PC,PC,...", help="Distances of the HEALPix maps [pc]."
)
@click.option("--nside", type=int, help="Resolution of the HEALPix maps.")
@_OVERWRITE
@_reporting
def export(
    run: Path,
    zarr_: Path | None,
    fits_: Path | None,
    healpix_: Path | None,
    distances: str | None,
    nside: int | None,
    overwrite: bool,
) -> None:
    """Write the map of RUN: density cubes and cumulative-extinction maps.

    Without a choice all three are written into RUN as map.zarr, map.fits and
    map.healpix.fits.
    """
    from pipelines.export.all import export_run

    if zarr_ is None and fits_ is None and healpix_ is None:
        zarr_, fits_ = run / "map.zarr", run / "map.fits"
        healpix_ = run / "map.healpix.fits"
    written = export_run(
        run,
        zarr=zarr_,
        fits=fits_,
        healpix=healpix_,
        distances=_numbers(distances),
        nside=nside,
        overwrite=overwrite,
    )
    for path in written:
        click.echo(str(path))


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--distances takes numbers in pc separated by commas, got {text!r}"
        ) from None


@main.command()
@click.argument("run", type=_OUT)
@click.option("-o", "--output", required=True, type=_OUT, help="Folder for figures.")
@click.option("--nside", type=int, help="Resolution of the sky maps.")
@_reporting
def plot(run: Path, output: Path, nside: int | None) -> None:
    """Draw the map of RUN: face-on, edge-on, sky, lines of sight, convergence."""
    from pipelines.figures.all import plot_run

    for path in plot_run(run, output, nside=nside):
        click.echo(str(path))


@main.command()
@click.argument("table", type=_OUT)
@click.option("-o", "--output", required=True, type=_OUT, help="Run folder to make.")
@click.option("--target", required=True, metavar="COLUMN", help="What to predict.")
@click.option(
    "--inputs", metavar="A,B,...", help="Columns to predict it from; all other numbers."
)
@click.option(
    "--likelihood",
    default="gaussian",
    show_default=True,
    help="gaussian, student-t (outliers) or bernoulli (two classes).",
)
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="auto, hip (grid, 1 to 3 inputs), svgp, sgpr or exact.",
)
@click.option(
    "--whitening",
    default="cholesky",
    show_default=True,
    help="Of svgp: cholesky or ciq.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--test-fraction",
    type=float,
    default=0.2,
    show_default=True,
    help="Share of the rows kept back, at random.",
)
@click.option(
    "--split-column", metavar="COLUMN", help="1 for rows to test, 0 to fit, instead."
)
@_OVERWRITE
@_reporting
def regress(
    table: Path, output: Path, inputs: str | None, overwrite: bool, **choices: Any
) -> None:
    """Predict one column of TABLE from others by a Gaussian process.

    TABLE: CSV (also .gz) or parquet. Method, kernel, scales and noise are chosen and
    printed; RUN gets metrics.json and predictions.parquet of the test rows, plot.png
    and summary.txt.
    """
    from pipelines.regress import Options
    from pipelines.regress import regress as run

    names = None
    if inputs is not None:
        names = tuple(name.strip() for name in inputs.split(",") if name.strip())
    report = run(table, output, Options(inputs=names, **choices), overwrite=overwrite)
    click.echo(str(report))
    if not report.converged:
        click.echo("dustmap: warning: a search did not converge (above)", err=True)


@main.command()
@click.argument("path", type=_OUT)
@_reporting
def verify(path: Path) -> None:
    """Check a run folder (also of a fit that is not finished), checkpoint, zarr store,
    FITS, HEALPix or parquet file for damage."""
    from pipelines.verify import verify as check

    click.echo(check(path))


@main.command()
@click.argument("run", type=_OUT)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@_reporting
def status(run: Path, as_json: bool) -> None:
    """How far the fit into RUN is: under way, finished, stopped or dead."""
    import json

    from pipelines.status import describe, status_of

    found = status_of(run)
    click.echo(json.dumps(found, indent=1) if as_json else describe(found))


if __name__ == "__main__":
    main()
