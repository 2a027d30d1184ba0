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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from peers_problem import Mock, make_mock, make_problem
from peers_report import draw, entries, table
from peers_run import Machine, Row, run_dustmap, run_peer

import dustmap
from pipelines.errors import InputError
from pipelines.progress import say
from pipelines.store import atomic_file

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is: stars, grids, truth's spacing [pc], work of the peers."""

    stars: int
    targets: int
    truth_spacing: float
    grids: tuple[Shape, ...]
    newton_steps: tuple[int, ...]
    first_steps: int
    vi_steps: int
    vi_iterations: int
    vi_samples: int
    inducing: Shape
    batch: int


FULL = Size(
    stars=100_000,
    targets=20_000,
    truth_spacing=20.0,
    grids=((50, 50, 25), (100, 100, 50)),
    newton_steps=(5, 10, 20, 30, 50),
    first_steps=15,
    vi_steps=10,
    vi_iterations=2,
    vi_samples=2,
    inducing=(20, 20, 10),
    batch=10_000,
)
QUICK = Size(
    stars=2_000,
    targets=500,
    truth_spacing=75.0,
    grids=((16, 16, 8),),
    newton_steps=(2, 5),
    first_steps=2,
    vi_steps=2,
    vi_iterations=1,
    vi_samples=2,
    inducing=(6, 6, 4),
    batch=500,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What every method is called with."""

    machine: Machine
    size: Size
    mock: Mock
    seed: int
    method: str
    shape: Shape
    folder: Path
    problem: Path
    costs: dict[str, Any]

    @property
    def grid(self) -> str:
        """The grid's shape in words."""
        return "×".join(map(str, self.shape))


def _dustmap(*settings: str) -> Callable[[Case], list[Row]]:
    def run(case: Case) -> list[Row]:
        return run_dustmap(
            case.machine,
            case.mock,
            case.folder,
            case.shape,
            method=case.method,
            settings=[*settings, f"inference.seed={case.seed}"],
        )

    return run


def _nifty(name: str, mode: str = "") -> Callable[[Case], list[Row]]:
    def run(case: Case) -> list[Row]:
        size = case.size
        settings = {
            "name": name,
            "mode": mode,
            # Half the time of double precision, at the same error.
            "dtype": "float32",
            "height": (300.0, 150.0),
            "seed": case.seed,
            "newton_steps": size.newton_steps,
            "first_steps": size.first_steps,
            "steps": size.vi_steps,
            "iterations": size.vi_iterations,
            "samples": size.vi_samples,
        }
        return run_peer(
            case.machine,
            "peers_nifty.py",
            case.problem,
            case.folder,
            method=case.method,
            grid=case.grid,
            settings=settings,
        )

    return run


def _gpytorch(case: Case) -> list[Row]:
    size = case.size
    settings = {
        "inducing": size.inducing,
        "nodes": 20,
        "batch": size.batch,
        "threads": case.machine.threads,
    }
    return run_peer(
        case.machine,
        "peers_gpytorch.py",
        case.problem,
        case.folder,
        method=case.method,
        grid="×".join(map(str, size.inducing)),
        settings=settings,
        extra=case.costs["search_cpu_seconds"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How a method is run, what it imports, and whether on every grid."""

    run: Callable[[Case], list[Row]]
    imports: tuple[str, ...] = ()
    every_grid: bool = False


METHODS = {
    "dustmap": Method(run=_dustmap(), every_grid=True),
    "dustmap-gaussian": Method(run=_dustmap("model.density=gaussian")),
    "nifty": Method(run=_nifty("MAP"), imports=("jax", "nifty.re"), every_grid=True),
    "nifty-mgvi": Method(
        run=_nifty("MGVI", "linear_resample"), imports=("jax", "nifty.re")
    ),
    "nifty-geovi": Method(
        run=_nifty("geoVI", "nonlinear_resample"), imports=("jax", "nifty.re")
    ),
    "gpytorch": Method(run=_gpytorch, imports=("gpytorch",)),
}


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
    skipped = {name: machine.missing(METHODS[name].imports) for name in methods}
    skipped = {name: reason for name, reason in skipped.items() if reason}
    rows: list[Row] = []
    costs: dict[str, Any] = {}
    for number, shape in enumerate(size.grids):
        wanted = [
            name
            for name in methods
            if name not in skipped and (number == 0 or METHODS[name].every_grid)
        ]
        grid = work / "x".join(map(str, shape))
        grid.mkdir(exist_ok=True)
        spent: dict[str, Any] = {}
        if any(METHODS[name].imports for name in wanted):
            spent = make_problem(mock, grid, shape, prior="gpytorch" in wanted)
            costs[grid.name] = spent
        for name in wanted:
            folder = grid / name
            folder.mkdir(exist_ok=True)
            case = Case(
                machine=machine,
                size=size,
                mock=mock,
                seed=seed,
                method=name,
                shape=shape,
                folder=folder,
                problem=grid,
                costs=spent,
            )
            try:
                rows += METHODS[name].run(case)
            except InputError as error:
                skipped[f"{name} {grid.name}"] = str(error)
            say(f"{name} {grid.name}: {'failed' if name in skipped else 'done'}")
    return _record(rows, mock, skipped) | {"preparation": costs}


def _record(rows: list[Row], mock: Mock, skipped: dict[str, str]) -> dict[str, Any]:
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
        "skipped": skipped,
    }


def write(record: dict[str, Any], output: Path) -> str:
    """peers.json, peers.md and peers.png; returns the table."""
    text = (
        f"{record['stars']:,} stars of {record['median_error']:.3f} mag, "
        f"{record['test_stars']:,} test stars (scatter "
        f"{record['extinction_scatter']:.3f} mag), {record['threads']} thread(s)\n\n"
        f"{table(record['rows'])}\n\n{' '.join((__doc__ or '').split())} Intervals "
        "hold noise-free values; those of NIFTy are by mean and standard deviation of "
        "its few samples.\n"
    )
    text += "".join(f"\nleft out: {k}: {v}" for k, v in record["skipped"].items())
    for name, content in (
        ("peers.json", json.dumps(record, indent=1)),
        ("peers.md", text),
    ):
        with atomic_file(output / name, overwrite=True) as temporary:
            temporary.write_text(content.rstrip() + "\n", encoding="utf-8")
    if record["rows"]:
        title = f"{record['stars']:,} stars, {record['threads']} thread(s)"
        draw(output / "peers.png", record["rows"], title)
    return text


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="2,000 stars on 16×16×8: a smoke run.")
@click.option(
    "--methods",
    default=",".join(METHODS),
    show_default=True,
    help="Which ones, in this order, with commas between.",
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
    help="Folder for peers.json, peers.md and peers.png, replaced if they exist.",
)
def main(
    quick: bool,
    methods: str,
    peers_python: str,
    threads: int,
    seed: int,
    limit: float,
    output: Path,
) -> None:
    """Turn a user's mistake into one line and exit status 2."""
    wanted = methods.split(",")
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


if __name__ == "__main__":
    main()
