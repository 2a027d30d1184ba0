"""The command line: its verbs parse options, call one stage, and print."""

from __future__ import annotations

import os

import click

import dustmap
from pipelines.base.errors import require_known_system
from pipelines.cli.catalogues import ingest, simulate
from pipelines.cli.fitting import config_, fit, regress, status
from pipelines.cli.products import compare, export, plot, view
from pipelines.cli.questions import predict, query
from pipelines.cli.reporting import reporting

# torch reads this at its first import, by the verbs: waiting threads sleep instead of
# spinning, which is twice as fast on cores shared with other jobs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# NumPy's and SciPy's own threads would spin on small matrices only.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(dustmap.__version__, prog_name="dustmap")
@reporting
def main() -> None:
    """Three-dimensional maps of interstellar dust from catalogues of stars.

    \b
    A map in four steps:
      dustmap ingest catalogue.fits --preset starhorse-edr3 -o stars.parquet
      dustmap fit stars.parquet -o run
      dustmap export run --zarr map.zarr --fits map.fits --healpix map.hpx.fits
      dustmap plot run -o figures
    """
    require_known_system()


for _verb in (
    *(simulate, ingest, fit, status, predict, query, export, plot),
    *(view, compare, regress, config_),
):
    main.add_command(_verb)
