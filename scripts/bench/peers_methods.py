"""Which methods the benchmark knows, how large a run is and how each one is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers_problem import Mock
from peers_run import Machine, Row, run_dustmap, run_peer

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is: stars, grids, truth's spacing [pc], work of the peers."""

    stars: int
    targets: int
    truth_spacing: float
    grids: tuple[Shape, ...]
    newton_steps: tuple[int, ...]
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
    vi_steps=10,
    vi_iterations=6,
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
    "dustmap-mode": Method(run=_dustmap("inference.samples=0"), every_grid=True),
    "nifty": Method(run=_nifty("MAP"), imports=("jax", "nifty.re"), every_grid=True),
    "nifty-geovi": Method(
        run=_nifty("geoVI", "nonlinear_resample"), imports=("jax", "nifty.re")
    ),
    "gpytorch": Method(run=_gpytorch, imports=("gpytorch",)),
}
# Compilation takes the others longer than a smoke run should.
QUICK_METHODS = ("dustmap", "nifty", "gpytorch")
