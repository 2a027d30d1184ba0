"""Verbs for values of a map: query and predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from pipelines.base.errors import InputError
from pipelines.cli.reporting import (
    ANGLE,
    LENGTH,
    NEW,
    OUT,
    OUTSIDE,
    OVERWRITE,
    PERCENTILES,
    RIGHT_ASCENSION,
    Grouped,
    band_options,
    output,
    refuse,
    reporting,
    target_options,
    wanted,
)

if TYPE_CHECKING:
    from pipelines.query.map import DustMap
    from pipelines.query.table import QueryOptions

_TABLE = "Table to make: .parquet, .csv, .ecsv, .fits or .vot."
# Flags of which every row has one, unless it is outside the map.
_ANSWERED = {"inside", "beyond_box", "no_distance", "no_position"}


@click.command(
    cls=Grouped,
    groups={
        "l": "One place",
        "integrated": "What to return",
        "mappings": "Places of a table",
        "outside": "Beyond the box, and bands",
        "output": "Output",
    },
)
@click.argument("map_", metavar="MAP")
@click.argument("table", required=False, type=OUT)
@click.option("--l", type=ANGLE, help="Galactic longitude.")
@click.option("--b", type=ANGLE, help="Galactic latitude.")
@click.option("--ra", type=RIGHT_ASCENSION, help="Right ascension (ICRS).")
@click.option("--dec", type=ANGLE, help="Declination (ICRS).")
@click.option("--distance", type=LENGTH, help="Distance from the Sun, or e.g. 0.4kpc.")
@click.option(
    "--integrated/--differential",
    default=None,
    help="Extinction to the place, or density there.  [default: both]",
)
@click.option("--mode", help="mean, std, median, percentile, samples, random_sample.")
@click.option("--pct", type=PERCENTILES, help="Percentiles of --mode percentile.")
@click.option("--total", is_flag=True, help="Extinction through the whole map.")
@click.option("--at-extinction", type=float, help="Return its distance [mag].")
@click.option("--seed", default=0, help="Seed of --mode random_sample.")
@target_options
@OUTSIDE
@band_options
@click.option("-o", "--output", type=NEW, help=_TABLE)
@OVERWRITE
@reporting
def query(map_: str, table: Path | None, **options: Any) -> None:
    """Query MAP (a run folder, a map store, an .npz cube or dustmaps:edenhofer2023) at
    one place or the rows of TABLE.

    \b
    dustmap query map.zarr --l 90 --b 5 --distance 400
    dustmap query map.zarr --ra 83.8 --dec -5.4 --at-extinction 0.5
    dustmap query map.zarr stars.parquet -o answers.parquet --integrated

    Without a mode: mean, std, and quantiles from 2.5% to 97.5%. Every row of TABLE is
    kept, with all of its columns; values outside the map, or without a position or
    distance, are NaN, with flags.
    """
    from pipelines.query import open_map

    dust = open_map(map_, outside=options.pop("outside"))
    question = _question(dust, options)
    if table is None:
        _answer_one(dust, options, question)
        return
    if options["output"] is None:
        raise InputError("the output needs a name: -o answers.parquet")
    place = ("l", "b", "ra", "dec", "distance")
    refuse(place, "is one place: give it or a table, not both")
    _answer_table(dust, table, options, question)


@click.command()
@click.argument("run", type=OUT)
@click.argument("table", type=OUT)
@target_options
@click.option(
    "--distances",
    is_flag=True,
    help="Distances of ingested stars given the map, instead of extinctions.",
)
@output(_TABLE)
@OUTSIDE
@band_options
@OVERWRITE
@reporting
def predict(run: Path, table: Path, **options: Any) -> None:
    """Predict extinction and density, with std and quantiles, at the rows of TABLE;
    or the target of a regression, with its std.

    Values are those at the places themselves, where `dustmap query RUN TABLE`
    interpolates. Every row is kept, with all of its columns. With
    --distances TABLE is a file of `dustmap ingest`, and the results are name and place
    of each star, mean and std of its distance given its extinction and the map, and
    the distribution of its measured extinction given the map and its distance error.
    """
    if (run / "summary.json").is_file():
        _predict_target(run, table, options)
        return
    if options["distances"]:
        _predict_distances(run, table, options)
        return
    from pipelines.query.exact import open_exactly
    from pipelines.query.map import DustMap
    from pipelines.query.table import QueryOptions

    dust = DustMap(answers=open_exactly(run)).with_outside(options["outside"])
    given = {"prefix": options["prefix"] or "", "changes": wanted(dust, options)}
    _answer_table(dust, table, options, QueryOptions(**given))


def _predict_target(run: Path, table: Path, options: dict[str, Any]) -> None:
    from pipelines.regress import predict_table

    own = {name: options.pop(name) for name in ("output", "overwrite")}
    prefix = options.pop("prefix") or ""
    refuse(sorted(options), "does not go with a regression")
    rows, gaps = predict_table(run, table, **own, prefix=prefix)
    lack = f" ({gaps} lack an input: NaN)" if gaps else ""
    click.echo(f"{rows} rows{lack}, in {own['output']}")


def _predict_distances(run: Path, table: Path, options: dict[str, Any]) -> None:
    from pipelines.catalog.schema import read_stars
    from pipelines.run.distances import distance_columns
    from pipelines.run.folder import read_run
    from pipelines.run.predict import write_predictions

    # All other options are those of extinctions.
    others = options.keys() - {"distances", "output", "overwrite"}
    refuse(sorted(others), "does not go with --distances")
    path, stars = options["output"], read_stars(table)
    found = distance_columns(read_run(run), stars)
    known = {"distance_error": stars.distance_std, **found}
    write_predictions(path, stars, known, overwrite=options["overwrite"])
    count = int(np.isfinite(found["posterior_distance"]).sum())
    click.echo(f"{len(stars)} stars ({len(stars) - count} outside the map), in {path}")


def _question(dust: DustMap, options: dict[str, Any]) -> QueryOptions:
    from pipelines.query.table import QueryOptions

    chosen, total, pct = options["integrated"], options["total"], options["pct"]
    if options["at_extinction"] is not None:
        others = ("mode", "pct", "total", "seed", "integrated")
        refuse(others, "does not go with --at-extinction")
    if options["mode"] != "random_sample":
        refuse(("seed",), "goes with --mode random_sample")
    if total and chosen is False:
        raise InputError("--total is an extinction: it does not go with --differential")
    both = (True,) if total else (True, False)
    return QueryOptions(
        integrated=both if chosen is None else (chosen,),
        mode=options["mode"] or ("percentile" if pct else None),
        pct=pct or (),
        total=total,
        extinction=options["at_extinction"],
        seed=options["seed"],
        prefix=options["prefix"] or "",
        changes=wanted(dust, options),
    )


def _answer_table(
    dust: DustMap, table: Path, options: dict[str, Any], question: QueryOptions
) -> None:
    """Write a table of results, and print the number of rows inside the map."""
    from pipelines.query.table import with_magnitudes, write_answers

    how = {"preset": options["preset"], "distance": not question.directions}
    bands = options["deredden"]
    changes = wanted(dust, options, *(f"A_{band}" for band in bands)) if bands else []
    given = options["mappings"], dict(zip(bands, changes))
    targets, magnitudes = with_magnitudes(table, *given, **how)
    question = replace(question, magnitudes=magnitudes)
    path, overwrite = options["output"], options["overwrite"]
    counts = write_answers(dust, targets, question, path, overwrite=overwrite)
    rows = counts.pop("rows")
    counts["outside the map"] = rows - sum(counts[name] for name in _ANSWERED)
    parts = [f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n]
    click.echo(f"{rows} rows ({', '.join(parts)}), in {path}")


def _answer_one(dust: DustMap, options: dict[str, Any], question: QueryOptions) -> None:
    """Print the results at the place of the command line, with units and flags."""
    from pipelines.maps.places import coordinates
    from pipelines.query.table import ask, rounded, unit_text

    of_tables = ("output", "mappings", "preset", "prefix", "overwrite", "deredden")
    refuse(of_tables, "goes with a table of places")
    angles = ("l", "b", "ra", "dec")
    given = {name: options[name] for name in angles if options[name] is not None}
    if set(given) not in ({"l", "b"}, {"ra", "dec"}):
        raise InputError("give a table, or one place: --l and --b, or --ra and --dec")
    if question.directions:
        refuse(("distance",), "does not go with --total and --at-extinction")
    else:
        if options["distance"] is None:
            raise InputError(
                "the distance is missing: use --distance PC; or --total for the "
                "extinction through the whole map, --at-extinction MAG for the "
                "distance itself"
            )
        given["distance"] = options["distance"]
    place = {name: np.array([value]) for name, value in given.items()}
    columns = rounded(ask(dust, coordinates(place, "the place"), question))
    width, true = max(map(len, columns)), []
    for name, column in columns.items():
        if column.dtype != bool:
            click.echo(f"{name:{width}} {column[0]:12.6g} {unit_text(column)}".rstrip())
        elif column[0]:
            true.append(name)
    known = _ANSWERED & {*true}
    flags = ", ".join(true).replace("_", " ") if known else "outside the map"
    click.echo(f"{'flags':{width}} {flags}")
    origins = dust.answers.origins()
    if (band := question.band(dust)) or origins:
        click.echo(f"{'band':{width}} {band or 'unknown'}")
    if said := dust.answers.said(integrated=any(question.integrated)):
        click.echo(f"{'estimate':{width}} {said}")
    for origin in origins:
        for name, value in origin.items():
            if value != "" and name != "band":
                click.echo(f"{name:{width}} {value}")
