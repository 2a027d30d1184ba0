"""How much of the experiment with contour quadrature is run."""

from __future__ import annotations

from dataclasses import dataclass

from ciq_report import START, TRAINED
from paper_report import Size
from svgp_runs import CHOLESKY, DENSE, TOLERANCE

from dustmap.inference.svi import PLEISS_SCHEDULE, SvgpSettings

METHODS = (CHOLESKY, DENSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """So many steps by both whitenings, from hyperparameters as ``kernel`` says.

    Without ``learn`` these stay: only q is fitted.
    """

    points: int
    steps: int
    kernel: str = START
    learn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` and ``tests`` limit a set; ``sizes`` are trained by ``methods`` with
    ``settings``; ``timed`` are the M of one step (``hard``: the largest at which
    trained hyperparameters are timed, too), ``sides`` those of grids, of which those of
    at most ``dense`` points are compared with methods that hold K. ``published``:
    points are learnt, and some sets have rates and minibatches of their own, as in the
    paper.
    """

    rows: int | None
    tests: int | None
    sizes: tuple[int, ...]
    methods: tuple[str, ...]
    settings: SvgpSettings
    pairs: tuple[Pair, ...]
    pair_tests: int
    timed: tuple[int, ...]
    hard: int
    batch: int
    repeats: int
    sides: tuple[int, ...]
    dense: int
    grid_rows: int
    published: bool = False


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows=600,
        tests=150,
        sizes=(20, 40),
        methods=(CHOLESKY,),
        settings=SvgpSettings(
            steps=12, batch_size=64, natural_rate=0.3, tolerance=TOLERANCE
        ),
        pairs=(
            Pair(points=40, steps=4, kernel=TRAINED, learn=False),
            Pair(points=30, steps=4),
            Pair(points=40, steps=2, kernel=TRAINED),
        ),
        pair_tests=50,
        timed=(30, 60),
        hard=30,
        batch=32,
        repeats=2,
        sides=(8, 16),
        dense=100,
        grid_rows=8,
    ),
    "default": Plan(
        rows=30_000,
        tests=4_000,
        sizes=(125, 250, 500, 1_000),
        methods=(CHOLESKY,),
        settings=SvgpSettings(
            steps=200, natural_rate=0.2, rate=0.05, tolerance=TOLERANCE, record_every=20
        ),
        pairs=(
            *(
                Pair(points=count, steps=steps, kernel=TRAINED, learn=False)
                for count, steps in ((250, 8), (500, 6), (1_000, 3))
            ),
            *(
                Pair(points=count, steps=steps)
                for count, steps in ((250, 16), (500, 8), (1_000, 4))
            ),
            Pair(points=250, steps=4, kernel=TRAINED),
            Pair(points=500, steps=3, kernel=TRAINED),
        ),
        pair_tests=256,
        timed=(500, 1_000, 2_000, 4_000),
        hard=2_000,
        batch=256,
        repeats=1,
        sides=(32, 64, 128),
        dense=4_096,
        grid_rows=16,
    ),
    "full": Plan(
        rows=None,
        tests=None,
        sizes=(1_000, 2_000, 3_000, 4_000, 5_000, 10_000),
        methods=METHODS,
        settings=SvgpSettings(
            epochs=20,
            natural_rate=0.01,
            rate=0.01,
            decay_at=PLEISS_SCHEDULE,
            rest=0.0,
            tolerance=TOLERANCE,
        ),
        pairs=(),
        pair_tests=0,
        timed=(500, 1_000, 2_000, 4_000, 5_000, 10_000),
        hard=10_000,
        batch=256,
        repeats=3,
        sides=(32, 64, 128, 256, 512),
        dense=4_096,
        grid_rows=64,
        published=True,
    ),
}
