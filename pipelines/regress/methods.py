"""The methods of a regression, in standardised units.

All begin with the kernel and scales of largest exact evidence for at most 1,000 rows
(`find_start`). `fit_exact` keeps the exact posterior, `fit_neighbours` predicts every
place from its nearest rows, `fit_variational` has inducing points. `fit_grid` predicts
from all rows on a grid, with scales learnt from rows at all distances.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.inducing import clustered_subset, kmeans_points
from dustmap.gp.neighbours import NeighbourGP, scored_across_scales
from dustmap.gp.regression import Regression
from dustmap.gp.sgpr import SGPR
from dustmap.gp.torus import TorusGP, torus_for
from dustmap.inference.svi import Svgp, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import KERNELS, Radial
from dustmap.likelihoods import Gaussian, StudentT
from dustmap.linalg.roots import CIQ, RootWarning
from dustmap.whitening import CholeskyWhitening, CiqWhitening
from pipelines.base.errors import InputError
from pipelines.base.progress import Progress

# Rows of the first search, near neighbours in a group of them, and rows to compare its
# starting points on.
_ROWS, _GROUP, _FEW = 1000, 4, 300
# These places: lengthscales in the root of the dimension, as which distances of random
# points grow, and variances of the noise.
_SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
_NOISES = (1e-3, 0.03, 0.3, 0.9)
_CANDIDATES = ("matern52", "matern32", "matern12")
_SEARCH = LBFGS(max_steps=60, gradient_tolerance=0.1, relative_tolerance=1e-7)
# Rows of the second search.
_MORE_ROWS = 2_000
# Longest lengthscale in extents of the inputs, and shortest in the distance of
# neighbouring values: beyond, a field along this axis cannot be distinguished from one
# that does not vary, and from noise.
_LONGEST, _SHORTEST = 10.0, 0.1
# Smallest variance of the noise: less makes covariances singular in double precision.
_QUIET = 1e-8

# Alternating rounds of noise and field, rows for fitting the noise, and the largest
# change of the logarithm of a parameter in one round.
_NOISE_ROUNDS, _NOISE_ROWS, _REACH = 4, 5_000, 3.0

# Neighbours: rows whose log score decides on their number; rows, or covariances of
# neighbours, of the search for scales; its steps, and the derivative by a logarithm at
# which it ends [nats per row].
_SCORED, _SEARCH_ROWS, _COVARIANCES, _STEPS, _FLAT = 1_000, 8_000, 2**23, 30, 2e-3
# Searches, neighbours chosen anew before each, and the gain at which they end [nats
# per scored row].
_ROUNDS, _STILL_ROUND = 3, 2e-3
# Neighbours that predict (the first two while scales are learnt), and the gain for
# which more are taken [nats per row].
_COUNTS, _GAIN = (32, 64, 100, 200, 400), 5e-3
# Longest time of a prediction on one core [s], and operations and values of a kernel
# per second.
_PREDICTION, _OPERATIONS, _VALUES = 30.0, 8e9, 5e7

# Inducing points: one per five rows, within limits, and their relative nugget.
_ROWS_PER_POINT, _FEWEST_POINTS, _MOST_POINTS, _NUGGET = 5, 50, 500, 1e-6
# Rows from which scales and noise start by the collapsed bound. The search begins
# within a factor of e of the start: from afar it can leap to where the whole target is
# noise, and stay. What few points cannot follow is noise to them: it starts with more.
_START_ROWS, _REACHES, _LEAST_NOISE = 3000, (1.0, 3.0), 0.1
# Steps: enough for Adam to change a scale by a factor of ten, and many passes.
_BATCH, _FEWEST_STEPS, _MOST_STEPS, _EPOCHS = 256, 800, 3000, 30
# Of the natural gradient. With 0.3 the bound of 3,000 rows and 200 points ends lower,
# by 0.001 nats per row (kin40k), 0.004 (four inputs) and 0.006 (Student-T noise).
_NATURAL_RATE = 0.1
# Roots: as many products as points make them exact, to rounding.
_CIQ = CIQ(rtol=1e-4, max_steps=_MOST_POINTS)
# Rows for the convergence of the bound, and its largest change in the last tenth of the
# steps [nats per row].
_WATCHED, _STILL = 10_000, 1e-3

# Rows at all distances whose log score decides on the scales of a grid, and their
# neighbours; of every sixth of them, where the search starts.
_GRID_ROWS = 6_000
_GRID_NEIGHBOURS = 20
_START_EVERY = 6
# Least variance of residuals where the search starts: its least noise, of targets that
# are linear in the inputs, is within the range of noise.
_LEAST_VARIANCE = _QUIET / min(_NOISES)

Ranges = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedField:
    """A latent field with its noise.

    ``why`` is the reason for the kernel, ``messages`` are lines for the user, ``facts``
    are for the record; ``converged`` is true if every search and solve converged.
    """

    model: Regression | Svgp
    likelihood: Gaussian | StudentT
    why: str
    converged: bool
    messages: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def latent(self, x: Float[Tensor, "n d"]) -> LatentMoments:
        """Return the moments of the field, without noise."""
        return self.model.predict(PointValues(x))

    @property
    def kernel(self) -> Radial:
        """The learnt kernel of the field."""
        assert isinstance(self.model.kernel, Radial)
        return self.model.kernel


class Start(NamedTuple):
    """The best kernel with its hyperparameters, the reason, and ranges of a search."""

    model: ExactGP
    converged: bool
    why: str
    ranges: Ranges


def ranges_of(x: Float[Tensor, "n d"]) -> Ranges:
    """Return ranges of lengthscales resolved by the inputs, and of the noise."""
    ends = []
    for column in x.T:
        values = torch.unique(column)
        # A column constant in these rows varies by its unit in others.
        values = values if len(values) > 1 else torch.tensor([0.0, 1.0]).to(x)
        longest = _LONGEST * (values[-1] - values[0])
        ends.append(torch.stack([_SHORTEST * values.diff().median(), longest]))
    low, high = torch.stack(ends, dim=1)
    quiet = torch.tensor([_QUIET, math.inf], dtype=torch.float64)
    return {"lengthscale": (low, high), "noise": (quiet[0], quiet[1])}


def find_start(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> Start:
    """Maximise the evidence of at most 1,000 rows for every kernel.

    The search begins at five lengthscales, equal along all axes, each with the best
    noise for 300 of the rows; for other kernels at the result of the first.
    """
    ranges = ranges_of(x)
    settings = replace(_SEARCH, ranges=ranges)
    chosen = clustered_subset(x, _ROWS, _GROUP, generator)
    x, y = x[chosen], y[chosen]
    few = torch.randperm(len(x), generator=generator)[:_FEW]
    axes, searched = x.shape[1], []
    for scale in _SCALES:
        scales = torch.full((axes,), scale * math.sqrt(axes)).to(x)
        scales = scales.clamp(*ranges["lengthscale"])
        places = [
            ExactGP(
                KERNELS[_CANDIDATES[0]](
                    lengthscale=scales, variance=max(1 - noise, 0.1)
                ),
                PointValues(x[few]),
                y[few],
                noise=noise,
                mean=float(y[few].mean()),
            )
            for noise in _NOISES
        ]
        best = max(places, key=lambda model: model.log_marginal())
        searched.append(_on(x, y, maximise(best, settings).model))
    model = max(searched, key=lambda model: model.log_marginal())
    found = {}
    for name in _CANDIDATES:
        model = replace(model, kernel=KERNELS[name](**model.kernel.parameters()))
        found[name] = maximise(model, settings)
        model = found[name].model
    best, why = _best_kernel(found, f"log evidence of {len(x)} rows")
    return Start(found[best].model, _ended(found[best], ranges), why, ranges)


def _best_kernel(found: dict[str, EvidenceFit[Any]], score: str) -> tuple[str, str]:
    """Return the name of the best kernel by its score, and the reason."""
    best, *others = sorted(found, key=lambda name: -found[name].log_marginal)
    beaten = [f"{KERNELS[n].title} {found[n].log_marginal:.1f}" for n in others]
    own = f"{score} {found[best].log_marginal:.1f}"
    return best, f"{KERNELS[best].title} ({own}; {', '.join(beaten)})"


def _on(x: Float[Tensor, "n d"], y: Float[Tensor, " n"], model: ExactGP) -> ExactGP:
    """Return the exact posterior of other rows with these hyperparameters."""
    return replace(model, functionals=PointValues(x), observations=y)


def _ended(fit: EvidenceFit[Any], ranges: Ranges) -> bool:
    # A variance or mean at its limit means divergence.
    return fit.converged and set(fit.at_bounds) <= set(ranges)


def fit_exact(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    outliers: bool,
    generator: torch.Generator,
) -> FittedField:
    """Fit the exact posterior of all rows, with the scales of largest evidence.

    With more rows than in the first search, up to 2,000 are searched again; the result
    is used unless it lowers the evidence of all rows.
    """
    tame = StudentT.tamed(y) if outliers else y
    start = find_start(x, tame, generator)
    models, converged = [_on(x, tame, start.model)], [start.converged]
    if len(x) > _ROWS:
        more = torch.randperm(len(x), generator=generator)[:_MORE_ROWS]
        more = torch.arange(len(x)) if len(x) <= _MORE_ROWS else more
        settings = replace(_SEARCH, ranges=start.ranges)
        again = maximise(_on(x[more], tame[more], start.model), settings)
        models.append(_on(x, tame, again.model))
        converged.append(_ended(again, start.ranges))
    evidence, last = max((m.log_marginal(), n) for n, m in enumerate(models))
    return _with_noise(
        models[last],
        y,
        outliers,
        why=start.why,
        converged=converged[last],
        facts={"log_evidence": evidence},
    )


def fit_neighbours(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    outliers: bool,
    generator: torch.Generator,
) -> FittedField:
    """Learn scales and noise by the log score of rows, and the number of neighbours.

    Each row is predicted from its neighbours among all others. The number of neighbours
    grows while the score does and a prediction of all rows takes under half a minute.
    """
    tame = StudentT.tamed(y) if outliers else y
    start = find_start(x, tame, generator)
    order, kernel = torch.randperm(len(x), generator=generator), start.model.kernel
    assert isinstance(kernel, Radial)
    model = NeighbourGP(
        kernel,
        PointValues(x),
        tame,
        noise=start.model.noise,
        mean=start.model.mean,
        count=_COUNTS[0],
        scored=order[:_SCORED],
    )
    near = _enough(log_scores(model, _COUNTS[:2]))
    # Errors with heavy tails need many rows.
    rows = order[: min(_SEARCH_ROWS, _COVARIANCES // near**2)]
    model, score, converged = model.renewed(scored=rows), -math.inf, False
    settings = LBFGS(
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(rows),
        relative_tolerance=1e-5,
        reach=3.0,
        ranges=start.ranges,
    )
    with Progress(description="scales", unit="searches") as progress:
        for _ in range(_ROUNDS):
            before = score
            # Neighbours for the current lengthscales; rounds end without further gain.
            found = maximise(model.renewed(count=near), settings)
            model, score = found.model, found.log_marginal / len(rows)
            progress.update(score=score)
            still = score < before + _STILL_ROUND
            converged = still or found.converged
            if still:
                break
    by_count = log_scores(model.renewed(scored=order[:_SCORED]), _COUNTS)
    nobody = torch.empty(0, dtype=torch.int64)
    model = model.renewed(count=_enough(by_count), scored=nobody)
    each = ", ".join(f"{score:.3f} of {k}" for k, score in by_count.items())
    return _with_noise(
        model,
        y,
        outliers,
        why=start.why,
        converged=converged,
        messages=(f"neighbours: {model.count}; log score per row {each}",),
        facts={
            "neighbours": model.count,
            "log_score_per_row": score,
            "log_score_by_neighbours": by_count,
        },
    )


def fit_grid(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    outliers: bool,
    generator: torch.Generator,
) -> FittedField:
    """Fit all rows on a grid, with the kernel and scales of largest log score.

    The scored rows are conditioned on neighbours at all distances alike. The mean is
    linear in the inputs.

    Raises
    ------
    InputError
        If there are more than three inputs, or no grid resolves the lengthscales.
    """
    if x.shape[1] > 3:
        raise InputError(f"a grid takes at most 3 inputs, got {x.shape[1]}")
    tame = StudentT.tamed(y) if outliers else y
    found, why = _scales_of_all(x, tame, generator)
    try:
        torus = torus_for(x, found.model.kernel, float(found.model.noise))
    except ValueError as error:
        raise InputError(f"{error}: take the method neighbours") from error
    model = TorusGP(
        found.model.kernel,
        PointValues(x),
        tame,
        noise=found.model.noise,
        count=_COUNTS[0],
        scored=torch.empty(0, dtype=torch.int64),
        torus=torus,
    )
    fitted = _with_noise(
        model,
        y,
        outliers,
        why=why,
        converged=found.converged,
        facts={"grid": torus.grid.shape, "log_score": found.log_marginal},
    )
    assert isinstance(fitted.model, TorusGP)
    solution = fitted.model.solution
    shape = " x ".join(map(str, torus.grid.shape))
    return replace(
        fitted,
        converged=fitted.converged and bool(solution.converged.all()),
        messages=(f"grid of {shape} points: {solution.message}",),
    )


def _scales_of_all(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> tuple[EvidenceFit[NeighbourGP], str]:
    """Return kernel, scales and noise of largest log score at all distances, and why.

    Residuals from a linear least-squares fit are scored.
    """
    basis = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
    rest = y - basis @ torch.linalg.lstsq(basis, y[:, None]).solution[:, 0]
    ranges, variance = ranges_of(x), max(float(rest.var()), _LEAST_VARIANCE)
    # Three quarters of few rows are scored at least.
    count = min(_GRID_NEIGHBOURS, len(x) // 4)
    scored, near = scored_across_scales(x, count, _GRID_ROWS, generator)

    model = NeighbourGP(
        KERNELS[_CANDIDATES[0]](lengthscale=1.0),
        PointValues(x),
        rest,
        noise=variance,
        count=count,
        scored=scored[::_START_EVERY],
        near=near[::_START_EVERY],
    )

    def model_at(scale: float, noise: float) -> NeighbourGP:
        scales = torch.full((x.shape[1],), scale * math.sqrt(x.shape[1])).to(x)
        kernel = KERNELS[_CANDIDATES[0]](
            lengthscale=scales.clamp(*ranges["lengthscale"]),
            variance=max(1 - noise, 0.1) * variance,
        )
        return replace(model, kernel=kernel, noise=noise * variance)

    places = [model_at(scale, noise) for scale in _SCALES for noise in _NOISES]
    model = max(places, key=lambda each: each.log_marginal())
    settings = LBFGS(
        names=("lengthscale", "variance", "noise"),
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(scored),
        relative_tolerance=1e-6,
        ranges=ranges,
    )
    model, found = replace(model, scored=scored, near=near), {}
    with Progress(description="scales", total=len(_CANDIDATES)) as progress:
        for name in _CANDIDATES:
            scales, size = model.kernel.lengthscale, model.kernel.variance
            kernel = KERNELS[name](lengthscale=scales, variance=size)
            found[name] = maximise(replace(model, kernel=kernel), settings)
            model = found[name].model
            progress.update(score=found[name].log_marginal / len(scored))
    best, why = _best_kernel(found, f"log score of {len(scored)} rows")
    return found[best], why


def log_scores(model: NeighbourGP, counts: tuple[int, ...]) -> dict[int, float]:
    """Return log scores per row by the number of neighbours.

    They end if the score decreases, or a prediction of all rows would take too long.
    """
    scores: dict[int, float] = {}
    for count in counts:
        seconds = len(model) * (count**3 / 3 / _OPERATIONS + count**2 / _VALUES)
        if scores and (seconds > _PREDICTION or count >= len(model)):
            break
        scores[count] = float(model.renewed(count=count).log_scores().mean())
        if scores[count] < max(scores.values()) or _enough(scores) < count:
            break
    return scores


def _enough(scores: dict[int, float]) -> int:
    """Return the fewest neighbours whose score is within the gain of the best."""
    best = max(scores.values())
    return min(k for k, score in scores.items() if score >= best - _GAIN)


def _with_noise(
    model: Regression,
    y: Float[Tensor, " n"],
    outliers: bool,
    **record: Any,
) -> FittedField:
    """Replace normal noise, learnt from tamed targets, by Student-T noise.

    Student-T noise is a mixture of normals, in which rows have the variance
    ``s²/w_n``: the weights ``w_n`` of the field's posterior at the rows, and the
    parameters of the noise given that posterior, are found in turn (Tipping & Lawrence
    2005, Neurocomputing 69, 123).
    """
    noise = model.parameters()["noise"]
    if not outliers:
        return FittedField(model=model, likelihood=Gaussian(variance=noise), **record)
    likelihood, model = StudentT(scale=noise.sqrt()), replace(model, observations=y)
    for _ in range(_NOISE_ROUNDS):
        latent = model.predict(model.functionals)
        few = LatentMoments(*(part[:_NOISE_ROWS] for part in latent))
        likelihood = fitted_noise(y[:_NOISE_ROWS], few, likelihood)
        variance = likelihood.normal_variances(y, *latent)
        least = variance.min()
        model = replace(model, noise=least, known_noise=variance - least)
    return FittedField(model=model, likelihood=likelihood, **record)


def fitted_noise(
    y: Float[Tensor, " n"], latent: LatentMoments, before: StudentT
) -> StudentT:
    """Return the noise of largest ``Σ_n E_q[log p(y_n | f_n)]``."""
    start = {n: math.log(float(value)) for n, value in before.parameters().items()}

    def noise_at(logarithms: Tensor) -> StudentT:
        return before.with_parameters(dict(zip(start, logarithms.exp(), strict=True)))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
        total = -noise_at(free).expected(y, *latent).mean()
        (gradient,) = torch.autograd.grad(total, free)
        return float(total.detach()), gradient.numpy()

    bounds = [
        tuple(map(math.log, before.ranges[name]))
        if name in before.ranges
        else (value - _REACH, value + _REACH)
        for name, value in start.items()
    ]
    found = scipy.optimize.minimize(
        loss, list(start.values()), jac=True, method="L-BFGS-B", bounds=bounds
    )
    return noise_at(torch.as_tensor(found.x))


def fit_variational(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    outliers: bool,
    generator: torch.Generator,
    whitening: str = "cholesky",
) -> FittedField:
    """Put inducing points at centres of clusters, scales by a subset, then by Adam."""
    tame = StudentT.tamed(y) if outliers else y
    start = find_start(x, tame, generator)
    count = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), _MOST_POINTS, len(x))
    kernel = start.model.kernel
    # In units of the lengthscales: inputs that hardly matter do not spread the points.
    scales = kernel.parameters()["lengthscale"]
    points = kmeans_points(x / scales, count, generator) * scales
    rows = torch.randperm(len(x), generator=generator)[:_START_ROWS]
    sparse = SGPR(
        kernel,
        PointValues(x[rows]),
        tame[rows],
        points,
        noise=max(float(start.model.noise), _LEAST_NOISE),
        mean=start.model.mean,
        jitter=_NUGGET,
    )
    for reach in _REACHES:
        near = LBFGS(
            max_steps=30, gradient_tolerance=1.0, reach=reach, ranges=start.ranges
        )
        sparse = maximise(sparse, near).model
    learnt = sparse.parameters()
    batch = min(_BATCH, len(x))
    steps = max(_FEWEST_STEPS, _EPOCHS * math.ceil(len(x) / batch))
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(steps, _MOST_STEPS),
        natural_rate=_NATURAL_RATE,
        watch_rows=_WATCHED,
        solves="iterative" if whitening == "ciq" else "cholesky",
    )
    made = partial(CiqWhitening, ciq=_CIQ) if whitening == "ciq" else CholeskyWhitening
    nugget = _NUGGET * float(learnt["variance"])
    said = warnings.catch_warnings(record=True, action="always", category=RootWarning)
    with Progress(description="fit", total=settings.steps) as progress, said as caught:
        result = fit_svgp(
            PointValues(x),
            y,
            made(sparse.kernel, points, nugget=nugget),
            StudentT(scale=learnt["noise"].sqrt())
            if outliers
            else Gaussian(variance=learnt["noise"]),
            generator=generator,
            mean=float(learnt["mean"]),
            settings=settings,
            on_step=lambda *_: progress.update(),
        )
    rise, likelihood = result.rise, result.model.likelihood
    assert rise is not None
    assert isinstance(likelihood, Gaussian | StudentT)
    messages = [
        f"inducing points: {len(points)}; a fixed number of steps ({settings.steps} of "
        f"{batch} rows)",
        *result.message.splitlines(),
    ]
    faults = {each.category: each.message for each in caught}
    messages += [f"warning: {last}" for last in faults.values()]
    ended = abs(rise.value) <= _STILL
    if not ended:
        messages.append(
            f"warning: that is more than {_STILL:g} nats per row: the steps ended "
            "before scales and intervals had settled"
        )
    return FittedField(
        model=result.model,
        likelihood=likelihood,
        why=start.why,
        converged=ended
        and RootWarning not in faults
        and result.rows.unconverged == result.solves.unconverged == 0,
        messages=tuple(messages),
        facts={
            "inducing_points": len(points),
            "bound": result.bound,
            "late_rise_per_row": rise.value,
            "late_rise_error": rise.error,
        },
    )


METHODS: dict[str, Callable[[Tensor, Tensor, bool, torch.Generator], FittedField]] = {
    "exact": fit_exact,
    "neighbours": fit_neighbours,
    "grid": fit_grid,
    "svgp": fit_variational,
}
