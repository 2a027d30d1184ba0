#!/usr/bin/env python3
"""Dust maps by `dustmap`, NIFTy.re and GPyTorch from one simulated catalogue.

Every method runs alone, in a process of its own, on the same cores. Times are those of
the fit. For `dustmap` that is the whole process; of the peers only what comes after
imports, reading, the projection onto their grid and compilation.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from peers_methods import FULL, METHODS, QUICK, QUICK_METHODS, Case, Size
from peers_problem import Mock, make_mock, make_problem
from peers_run import Machine, Row
from scoring import score

import dustmap
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.base.table import Table
from pipelines.storage.atomic import atomic_file


def run(
    machine: Machine, size: Size, methods: list[str], seed: int, output: Path
) -> dict[str, Any]:
    """All methods one after the other; returns the record."""
    work = output / "work"
    work.mkdir(exist_ok=True)
    mock = make_mock(
        work,
        stars=size.stars,
        targets=size.targets,
        seed=seed,
        spacing=size.truth_spacing,
    )
    reasons = {name: machine.missing(METHODS[name].imports) for name in methods}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    failed: dict[str, str] = {}
    rows: list[Row] = []
    costs: dict[str, Any] = {}
    present = [name for name in methods if name not in skipped]
    for case in _cases(machine, size, mock, seed, present, work, costs):
        name = f"{case.method} {case.grid}"
        try:
            rows += METHODS[case.method].run(case)
        except InputError as error:
            failed[name] = str(error)
        say(f"{name}: {failed.get(name, 'done')}")
    record = _record(rows, mock)
    return record | {"skipped": skipped, "failed": failed, "preparation": costs}


def _cases(
    machine: Machine,
    size: Size,
    mock: Mock,
    seed: int,
    methods: list[str],
    work: Path,
    costs: dict[str, Any],
) -> Iterator[Case]:
    """Every method on its grids; what a grid's preparation took goes to ``costs``."""
    for number, shape in enumerate(size.grids):
        grid = work / "x".join(map(str, shape))
        grid.mkdir(exist_ok=True)
        for name in methods:
            if number and not METHODS[name].every_grid:
                continue
            folder = grid / name
            folder.mkdir(exist_ok=True)
            if METHODS[name].imports and grid.name not in costs:
                prior = "gpytorch" in methods and not number
                costs[grid.name] = make_problem(mock, grid, shape, prior=prior)
            yield Case(
                machine=machine,
                size=size,
                mock=mock,
                seed=seed,
                method=name,
                shape=shape,
                folder=folder,
                problem=grid,
                costs=costs.get(grid.name, {}),
            )


def _record(rows: list[Row], mock: Mock) -> dict[str, Any]:
    sigma = mock.train.extinction_error
    assert sigma is not None
    return {
        "version": dustmap.__version__,
        "python": platform.python_version(),
        "stars": len(mock.train),
        "test_stars": len(mock.test),
        "median_error": float(sorted(sigma)[len(sigma) // 2]),
        "extinction_scatter": float(mock.truth["extinction"].std()),
        "rows": entries(rows, mock.truth),
    }


def entries(rows: Sequence[Row], truth: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Score rows for the record, with ratios to `dustmap` on the same grid.

    A method that has a grid of its own is compared with the first of `dustmap`'s.
    """
    plain: list[dict[str, Any]] = [
        {
            "method": row.method,
            "grid": row.grid,
            "state": row.name,
            **row.taken.as_dict(),
            **score(row.prediction, truth),
            "facts": row.facts,
        }
        for row in rows
    ]
    own = {row["grid"]: row for row in plain if row["method"] == "dustmap"}
    first = next(iter(own.values()), None)
    for row in plain:
        reference = own.get(row["grid"], first)
        if reference is not None:
            row["cpu_ratio"] = row["cpu_seconds"] / reference["cpu_seconds"]
            row["rmse_ratio"] = row["rmse"] / reference["rmse"]
    return plain


def write(record: dict[str, Any], output: Path) -> str:
    """Write peers.json and peers.md; return the latter."""
    shown = Table.of_rows(
        [{k: v for k, v in r.items() if k != "facts"} for r in record["rows"]]
    ).text()
    text = (
        f"{record['stars']:,} stars of {record['median_error']:.3f} mag, "
        f"{record['test_stars']:,} test stars (scatter "
        f"{record['extinction_scatter']:.3f} mag), {record['threads']} thread(s)\n\n"
        f"{shown}\n\n{' '.join((__doc__ or '').split())} Intervals "
        "hold noise-free values; those of NIFTy are by "
        "mean, standard deviation and Student's quantiles of its few samples.\n"
    )
    for kind in ("skipped", "failed"):
        text += "".join(f"\n{kind}: {k}: {v}" for k, v in record[kind].items())
    for name, content in (
        ("peers.json", json.dumps(record, indent=1)),
        ("peers.md", text),
    ):
        with atomic_file(output / name, overwrite=True) as temporary:
            temporary.write_text(content.rstrip() + "\n", encoding="utf-8")
    return text


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="2,000 stars on 16×16×8: a smoke run.")
@click.option(
    "--methods",
    help=f"In this order, with commas between; without it {','.join(METHODS)}, or "
    f"{','.join(QUICK_METHODS)} if --quick.",
)
@click.option(
    "--peers-python",
    default=sys.executable,
    help="Interpreter that has nifty, jax and gpytorch; this one unless given.",
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--limit", default=60.0, show_default=True, help="Of one process [minutes]."
)
@click.option(
    "-o",
    "--output",
    default=Path("peers"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for peers.json and peers.md, replaced if they exist.",
)
def main(
    quick: bool,
    methods: str | None,
    peers_python: str,
    threads: int,
    seed: int,
    limit: float,
    output: Path,
) -> None:
    """Turn a user's mistake into one line and exit status 2."""
    usual = QUICK_METHODS if quick else METHODS
    wanted = methods.split(",") if methods else list(usual)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise click.UsageError(f"--methods {unknown[0]}: choose among {list(METHODS)}")
    machine = Machine(threads=threads, limit=60 * limit, peers_python=peers_python)
    machine.pin()
    torch.set_num_threads(threads)
    try:
        output.mkdir(parents=True, exist_ok=True)
        record = run(machine, QUICK if quick else FULL, wanted, seed, output.resolve())
        text = write({**record, "threads": threads, "seed": seed}, output)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"failed: {error}", err=True)
        sys.exit(1)
    click.echo(text)
    if record["failed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
