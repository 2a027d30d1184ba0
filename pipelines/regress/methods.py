"""The methods of a regression, in standardised units.

A method has the kernel by whose score it predicts best: `fit_exact` by the evidence,
`fit_neighbours`, which predicts every place from its nearest rows, by the log score of
rows, `fit_variational`, with inducing points, by the collapsed bound. Their search for
scales begins at `find_start`, from at most 1,000 rows. `fit_grid` predicts from all
rows on a grid, with scales from rows at all distances; `fit_many` takes neighbours or
the grid, whichever predicts withheld rows better.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.gp.evidence import LBFGS, EvidenceFit, maximise
from dustmap.gp.exact import ExactGP
from dustmap.gp.inducing import clustered_subset, kmeans_points
from dustmap.gp.neighbours import NeighbourGP, scored_across_scales
from dustmap.gp.regression import Regression, ScoredRegression
from dustmap.gp.sgpr import SGPR
from dustmap.gp.torus import LEFT_OUT, TorusGP, torus_for
from dustmap.inference.svi import Svgp, SvgpSettings, fit_svgp
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import KERNELS, Radial
from dustmap.likelihoods import Gaussian, StudentT
from dustmap.linalg.roots import CIQ, RootWarning
from dustmap.minimise import minimise
from dustmap.whitening import CholeskyWhitening, CiqWhitening
from pipelines.base.errors import InputError
from pipelines.base.progress import Progress

# Rows of the first search.
_ROWS = 1000
# Variances of the noise where it starts.
_NOISES = (1e-3, 0.03, 0.3, 0.9)
_CANDIDATES = ("matern52", "matern32", "matern12")
_SEARCH = LBFGS(max_steps=60, gradient_tolerance=0.1, relative_tolerance=1e-7)
# Rows of the second search.
_MORE_ROWS = 2_000
# Smallest variance of the noise: less makes covariances singular in double precision.
_QUIET = 1e-8

# Neighbours: rows whose log score decides on their number.
_SCORED = 1_000
# Rows of the search for scales.
_SEARCH_ROWS = 8_000
# Its steps, and the derivative by a logarithm at which it ends [nats per row].
_STEPS = 30
_FLAT = 2e-3
# Neighbours that predict (the first two while scales are learnt), and the gain for
# which more are taken [nats per row].
_COUNTS = (32, 64, 100, 200, 400)
_GAIN = 5e-3
# Longest time of a prediction on one core [s].
_PREDICTION = 30.0

# Most inducing points, and their relative nugget.
_MOST_POINTS = 500
_NUGGET = 1e-6
# Steps: enough for Adam to change a scale by a factor of ten, and many passes.
_FEWEST_STEPS = 800
_MOST_STEPS = 3000
_EPOCHS = 30
# Of the natural gradient. With 0.3 the bound of 3,000 rows and 200 points ends lower,
# by 0.001 nats per row (kin40k), 0.004 (four inputs) and 0.006 (Student-T noise).
_NATURAL_RATE = 0.1
# Roots: as many products as points make them exact, to rounding.
_CIQ = CIQ(rtol=1e-4, max_steps=_MOST_POINTS)
# Largest change of the bound in the last tenth of the steps [nats per row].
_STILL = 1e-3

# Rows that decide between neighbours and a grid.
_WITHHELD = 2_000

# Rows that are scored where a model only predicts.
_NOBODY = torch.empty(0, dtype=torch.int64)

Ranges = dict[str, tuple[Tensor, Tensor]]
# What a `FittedField` says beside its model and noise.
Record = dict[str, Any]
Learn = Callable[["Observed", torch.Generator], tuple[Regression, Record]]
Model = TypeVar("Model", bound=ScoredRegression)
AnyRegression = TypeVar("AnyRegression", bound=Regression)


@dataclass(frozen=True)
class Observed:
    """Standardised observations: values of functionals, with known noise or outliers.

    ``known_noise`` are variances, beside the common one that is learnt.
    """

    functionals: Functionals
    values: Float[Tensor, " n"]
    known_noise: Float[Tensor, " n"] | None = None
    outliers: bool = False

    @cached_property
    def points(self) -> Float[Tensor, "p d"]:
        """All nodes."""
        return self.functionals.nodes().points

    @cached_property
    def clipped(self) -> Float[Tensor, " n"]:
        """The values, outliers drawn in."""
        return StudentT.clipped(self.values) if self.outliers else self.values

    @property
    def candidates(self) -> tuple[str, ...]:
        """Names of kernels under which these functionals have a variance."""
        values = self.functionals.nodes().axes is None
        # A derivative has one under the smoother kernels only.
        return _CANDIDATES if values else _CANDIDATES[:2]

    def select(self, rows: Tensor) -> Observed:
        """Return some rows."""
        known = None if self.known_noise is None else self.known_noise[rows]
        functionals, values = self.functionals.select(rows), self.values[rows]
        return replace(self, functionals=functionals, values=values, known_noise=known)

    def regression(
        self, kind: Callable[..., AnyRegression], **options: Any
    ) -> AnyRegression:
        """Return a regression of the tame values with these options."""
        return kind(
            functionals=self.functionals,
            observations=self.clipped,
            known_noise=self.known_noise,
            **options,
        )

    def given_to(self, model: AnyRegression, **changes: Any) -> AnyRegression:
        """Return the model with these rows, tame, for its own."""
        return self.regression(partial(replace, model), **changes)

    def few(self, count: int, generator: torch.Generator) -> Observed:
        """Return ``count`` rows in groups of four, or some with 3,000 nodes at most."""
        if isinstance(self.functionals, PointValues):
            chosen = clustered_subset(self.points, count, 4, generator)
        else:
            share = min(1.0, count / len(self.values), 3000 / len(self.points))
            chosen = torch.randperm(len(self.values), generator=generator)
            chosen = chosen[: math.ceil(share * len(chosen))]
        return self.select(chosen)


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

    @property
    def kernel(self) -> Radial:
        """The learnt kernel of the field."""
        assert isinstance(self.model.kernel, Radial)
        return self.model.kernel


def ranges_of(x: Float[Tensor, "n d"]) -> Ranges:
    """Return ranges of lengthscales resolved by the inputs, and of the noise.

    Beyond ten extents of the inputs a field does not vary, and below a tenth of the
    distance of neighbouring values it is like noise.
    """
    ends = []
    for column in x.T:
        values = torch.unique(column)
        # A column constant in these rows varies by its unit in others.
        values = values if len(values) > 1 else torch.tensor([0.0, 1.0]).to(x)
        longest = 10 * (values[-1] - values[0])
        ends.append(torch.stack([0.1 * values.diff().median(), longest]))
    low, high = torch.stack(ends, dim=1)
    quiet = torch.tensor([_QUIET, math.inf], dtype=torch.float64)
    return {"lengthscale": (low, high), "noise": (quiet[0], quiet[1])}


def first_places(
    model: Model, axes: int, ranges: Ranges, variance: float = 1.0
) -> list[Model]:
    """Return the model at five lengthscales, equal along all axes, with four noises."""
    places = []
    # In the root of the dimension, as which distances of random points grow.
    for scale in (0.03, 0.1, 0.3, 1.0, 3.0):
        scales = torch.full((axes,), scale * math.sqrt(axes), dtype=torch.float64)
        scales = scales.clamp(*ranges["lengthscale"])
        for noise in _NOISES:
            size = max(1 - noise, 0.1) * variance
            kernel = KERNELS[_CANDIDATES[0]](lengthscale=scales, variance=size)
            places.append(replace(model, kernel=kernel, noise=noise * variance))
    return places


def scanned(model: NeighbourGP, ranges: Ranges, **found: Any) -> NeighbourGP:
    """Return the model, each lengthscale in turn with the value of best log score.

    Gradients do not lead from a scale of years to one of months, whose variance was
    noise before: every value is tried with the model's noise, and with 30% of the
    variance as noise. It is taken if the gain of the scored rows is above two standard
    errors: outliers alone do not decide. ``found`` replaces the neighbours.
    """
    # Apart by less than a search changes a scale.
    apart = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    for axis in range(len(model.kernel.lengthscale)):
        old, best = model.log_scores(), model
        total = model.kernel.variance + model.noise
        for scale, noise in product(apart, (model.noise, 0.3 * total)):
            scales = model.kernel.lengthscale.clone()
            scales[axis] = scale
            scales = scales.clamp(*ranges["lengthscale"])
            sizes = {"lengthscale": scales, "variance": total - noise}
            kernel = model.kernel.with_parameters(sizes)
            moved = replace(model, kernel=kernel, noise=noise, **found)
            gain = moved.log_scores() - old
            if gain.mean() > 2 * gain.std() / math.sqrt(len(gain)) and (
                moved.log_marginal() > best.log_marginal()
            ):
                best = moved
        model = best
    return model


def find_start(data: Observed, generator: torch.Generator) -> ExactGP:
    """Maximise the evidence of at most 1,000 rows for the first kernel.

    The search begins at five lengthscales, equal along all axes, each with the best
    noise for 300 of the rows.
    """
    ranges, data = ranges_of(data.points), data.few(_ROWS, generator)
    few = torch.randperm(len(data.values), generator=generator)[:300]
    few, searched = data.select(few), []
    kernel, mean = KERNELS[_CANDIDATES[0]](lengthscale=1.0), float(few.clipped.mean())
    model = few.regression(ExactGP, kernel=kernel, noise=1.0, mean=mean)
    settings = replace(_SEARCH, ranges=ranges)
    places = first_places(model, data.points.shape[1], ranges)
    # Covariances of other functionals than values are slow: one search.
    size = len(_NOISES) if isinstance(data.functionals, PointValues) else len(places)
    for first in range(0, len(places), size):
        best = max(places[first : first + size], key=lambda each: each.log_marginal())
        searched.append(data.given_to(maximise(best, settings).model))
    model = max(searched, key=lambda each: each.log_marginal())
    return maximise(model, settings).model


def best_kernel(
    model: Model, data: Observed, settings: LBFGS, score: str
) -> tuple[EvidenceFit[Model], str]:
    """Maximise the model's score for every kernel; return the best, and the reason.

    Each search begins at the result of the one before. ``score`` is in the reason.
    """
    found = {}
    for name in data.candidates:
        parameters: dict[str, Any] = model.kernel.parameters()
        kernel = KERNELS[name](**parameters)
        found[name] = maximise(replace(model, kernel=kernel), settings)
        model = found[name].model
    best, *others = sorted(found, key=lambda name: -found[name].log_marginal)
    beaten = [f"{KERNELS[n].title} {found[n].log_marginal:.1f}" for n in others]
    own = f"{score} {found[best].log_marginal:.1f}"
    return found[best], f"{KERNELS[best].title} ({'; '.join([own, *beaten])})"


def _search(
    data: Observed, generator: torch.Generator
) -> tuple[ExactGP, EvidenceFit[ExactGP], Record]:
    """Return the start, and the model of largest evidence of at most 2,000 rows."""
    ranges = ranges_of(data.points)
    start, data = find_start(data, generator), data.few(_MORE_ROWS, generator)
    settings = replace(_SEARCH, ranges=ranges)
    score = f"log evidence of {len(data.values)} rows"
    found, why = best_kernel(data.given_to(start), data, settings, score)
    # A variance or mean at its limit means divergence.
    converged = found.converged and set(found.at_bounds) <= set(ranges)
    return start, found, {"why": why, "converged": converged}


def learn_exact(data: Observed, generator: torch.Generator) -> tuple[ExactGP, Record]:
    """Return the exact posterior of all rows, with the kernel of largest evidence.

    At most 2,000 rows are searched. If there are more, the result is used unless the
    start has a larger evidence of all rows.
    """
    start, found, record = _search(data, generator)
    models = [data.given_to(found.model), data.given_to(start)]
    model = max(models, key=lambda each: each.log_marginal())
    if model is not models[0]:
        record["why"] += f"; of all rows {KERNELS[_CANDIDATES[0]].title} has more"
    return model, record | {"facts": {"log_evidence": model.log_marginal()}}


def learn_neighbours(
    data: Observed, generator: torch.Generator
) -> tuple[NeighbourGP, Record]:
    """Learn kernel, scales and noise by the log score of rows, and their neighbours.

    Each row is predicted from its neighbours among all others. The number of neighbours
    grows while the score does and a prediction of all rows takes under half a minute.
    """
    start = find_start(data, generator)
    order = torch.randperm(len(data.values), generator=generator)
    known = {name: getattr(start, name) for name in ("kernel", "noise", "mean")}
    model = data.regression(
        NeighbourGP, **known, count=_COUNTS[0], scored=order[:_SCORED]
    )
    ranges = ranges_of(data.points)
    model = scanned(model, ranges, index=None, near=None)
    near = _enough(log_scores(model, _COUNTS[:2]))
    # Errors with heavy tails need many rows; their neighbours have eight million
    # covariances at most.
    rows = order[: min(_SEARCH_ROWS, 2**23 // near**2)]
    settings = LBFGS(
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(rows),
        relative_tolerance=1e-5,
        reach=3.0,
        ranges=ranges,
    )
    # 2,000 rows decide on the kernel.
    few = model.renewed(scored=rows[:2_000], count=near)
    with Progress(description="scales", unit="searches") as progress:
        score, last = f"log score of {len(few.scored)} rows", -math.inf
        found, why = best_kernel(few, data, settings, score)
        model = found.model.renewed(scored=rows)
        for _ in range(3):
            # Neighbours for the current lengthscales.
            found = maximise(model.renewed(), settings)
            before, last = last, found.log_marginal / len(rows)
            model = found.model
            progress.update(score=last)
            # A gain of 0.002 nats per scored row decides nothing.
            if still := last < before + 2e-3:
                break
    by_count = log_scores(model.renewed(scored=order[:_SCORED]), _COUNTS)
    model = model.renewed(count=_enough(by_count), scored=_NOBODY)
    each = ", ".join(f"{score:.3f} of {k}" for k, score in by_count.items())
    return model, {
        "why": why,
        "converged": still or found.converged,
        "messages": (f"neighbours: {model.count}; log score per row {each}",),
        "facts": {
            "neighbours": model.count,
            "log_score_per_row": last,
            "log_score_by_neighbours": by_count,
        },
    }


def learn_grid(
    data: Observed, generator: torch.Generator, start: Regression | None = None
) -> tuple[TorusGP, Record]:
    """Return all rows on a grid, with the kernel and scales of largest log score.

    Values are scored given neighbours at all distances alike; functionals of other
    kinds have their evidence. The mean is linear in the inputs. The search begins at
    equal lengthscales or at `start`, by default `find_start`.

    Raises `InputError` if there are more than three inputs, or no grid resolves the
    lengthscales.
    """
    if (inputs := data.points.shape[1]) > 3:
        raise InputError(f"a grid takes at most 3 inputs, got {inputs}")
    if isinstance(data.functionals, PointValues):
        start = find_start(data, generator) if start is None else start
        found, record = _scales_of_all(data, generator, start)
    else:
        _, found, record = _search(data, generator)
    kernel, noise = found.model.kernel, found.model.noise
    assert isinstance(kernel, Radial)
    try:
        known = 0.0 if data.known_noise is None else data.known_noise
        torus = torus_for(data.functionals, kernel, noise + known)
        model = data.regression(
            TorusGP, kernel=kernel, noise=noise, torus=torus, count=_COUNTS[0]
        )
    except ValueError as error:
        raise InputError(f"{error}: take another method") from error
    return model, record | {"facts": {"grid": torus.grid.shape}}


def _scales_of_all(
    data: Observed, generator: torch.Generator, start: Regression
) -> tuple[EvidenceFit[NeighbourGP], Record]:
    """Return kernel, scales and noise of largest log score at all distances.

    Residuals from a linear least-squares fit are scored, of 6,000 rows given 20
    neighbours; the search starts with every sixth of them.
    """
    x = data.points
    basis = torch.cat([torch.ones_like(x[:, :1]), x], dim=1)
    # The rounding of torch's solution differs from call to call.
    slopes, *_ = np.linalg.lstsq(basis.numpy(), data.clipped.numpy(), rcond=None)
    rest = data.clipped - basis @ torch.from_numpy(slopes)
    # Targets that are linear in the inputs also start within the range of noise.
    ranges, variance = ranges_of(x), max(float(rest.var()), _QUIET / min(_NOISES))
    # Three quarters of few rows are scored at least.
    count = min(20, len(x) // 4)
    scored, near = scored_across_scales(x, count, 6_000, generator)
    model = replace(data, values=rest, outliers=False).regression(
        NeighbourGP,
        kernel=KERNELS[_CANDIDATES[0]](lengthscale=1.0),
        noise=variance,
        count=count,
        scored=scored[::6],
        near=near[::6],
    )
    places = first_places(model, x.shape[1], ranges, variance)
    places.append(replace(model, kernel=start.kernel, noise=start.noise))
    model = scanned(max(places, key=lambda each: each.log_marginal()), ranges)
    settings = LBFGS(
        names=("lengthscale", "variance", "noise"),
        max_steps=_STEPS,
        gradient_tolerance=_FLAT * len(scored),
        relative_tolerance=1e-6,
        ranges=ranges,
    )
    model = replace(model, scored=scored, near=near)
    found, why = best_kernel(model, data, settings, f"log score of {len(scored)} rows")
    return found, {"why": why, "converged": found.converged}


def learn_many(
    data: Observed, generator: torch.Generator
) -> tuple[NeighbourGP | TorusGP, Record]:
    """Return neighbours or a grid, whichever predicts withheld rows better.

    The grid is taken if it resolves the field, and its log score of 2,000 withheld rows
    is not below that of neighbours by more than the gain that decides on their number.
    """
    near, record = learn_neighbours(data, generator)
    try:
        grid, own = learn_grid(data, generator, start=near)
        if (left := grid.left_out) > LEFT_OUT:
            raise InputError(f"a grid would leave {left:.2g} of the noise's variance")
    except InputError as error:
        record["messages"] += (f"neighbours, since {error}",)
        return near, record
    order = torch.randperm(len(data.values), generator=generator)
    held, rest = data.select(order[:_WITHHELD]), data.select(order[_WITHHELD:])
    found, scores = {"scored": _NOBODY, "near": None, "index": None}, []
    for model, changes in ((near, found), (grid, {})):
        fitted = rest.given_to(model, **changes)
        noise = Gaussian(variance=model.noise, known=held.known_noise)
        found = fitted.predict(held.functionals)
        scores.append(noise.predictive_log_density(held.clipped, *found))
    gain = scores[1] - scores[0]
    better = float(gain.mean()) >= -_GAIN
    model, record = (grid, own) if better else (near, record)
    name = "grid" if better else "neighbours"
    said = f"{name}: log score of {len(gain)} withheld rows "
    said += f"{scores[1].mean():.3f} on the grid, {scores[0].mean():.3f} of neighbours"
    return model, record | {"messages": (*record.get("messages", ()), said)}


def log_scores(model: NeighbourGP, counts: tuple[int, ...]) -> dict[int, float]:
    """Return log scores per row by the number of neighbours.

    They end if the score decreases, or a prediction of all rows would take too long.
    """
    scores: dict[int, float] = {}
    for count in counts:
        # One core makes 8e9 operations and 5e7 values of a kernel per second.
        seconds = len(model) * (count**3 / 3 / 8e9 + count**2 / 5e7)
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


def fit(learn: Learn, data: Observed, generator: torch.Generator) -> FittedField:
    """Learn a method's model; replace normal noise of tame values by Student-T noise.

    Student-T noise is a mixture of normals, in which rows have the variance
    ``s²/w_n``: the weights ``w_n`` of the field's posterior at the rows, and the
    parameters of the noise given that posterior, by 5,000 rows, are found in four turns
    (Tipping & Lawrence 2005, Neurocomputing 69, 123).
    """
    model, record = learn(data, generator)
    noise, y = model.parameters()["noise"], data.values
    likelihood: Gaussian | StudentT = Gaussian(variance=noise)
    if data.outliers:
        likelihood, model = StudentT(scale=noise.sqrt()), replace(model, observations=y)
        for _ in range(4):
            latent = model.predict(model.functionals)
            few = LatentMoments(*(part[:5_000] for part in latent))
            likelihood = fitted_noise(y[:5_000], few, likelihood)
            variance = likelihood.normal_variances(y, *latent)
            least = variance.min()
            model = replace(model, noise=least, known_noise=variance - least)
    if isinstance(model, TorusGP):
        shape, solution = " x ".join(map(str, model.torus.grid.shape)), model.solution
        said = f"grid of {shape} points: {solution.message}"
        record["messages"] = (*record.get("messages", ()), said)
        record["converged"] &= bool(solution.converged.all())
    return FittedField(model=model, likelihood=likelihood, **record)


def fitted_noise(
    y: Float[Tensor, " n"], latent: LatentMoments, before: StudentT
) -> StudentT:
    """Return the noise of largest ``Σ_n E_q[log p(y_n | f_n)]``.

    Parameters change by a factor of e³ at most; the search ends at a derivative by
    their logarithms of 3e-4 nats per row.
    """
    parameters = before.parameters()
    start = torch.stack([*parameters.values()]).to(torch.float64).log()
    ends = [before.ranges.get(name, (0.0, math.inf)) for name in parameters]
    lowest, highest = torch.tensor(ends, dtype=torch.float64).log().T

    def noise_at(logarithms: Tensor) -> StudentT:
        return before.with_parameters(
            dict(zip(parameters, logarithms.exp(), strict=True))
        )

    found = minimise(
        lambda place: -noise_at(place).expected(y, *latent).mean(),
        start,
        slope=3e-4,
        lower=torch.maximum(lowest, start - 3.0),
        upper=torch.minimum(highest, start + 3.0),
    )
    return noise_at(found.place)


def fit_variational(
    data: Observed, generator: torch.Generator, whitening: str = "cholesky"
) -> FittedField:
    """Put inducing points at centres of clusters, scales by a subset, then by Adam.

    There are 50 to 500 points, one per five rows.
    """
    start, nodes = find_start(data, generator), data.points
    ranges = ranges_of(nodes)
    size, y = len(data.values), data.values
    count = min(max(size // 5, 50), _MOST_POINTS, size)
    kernel = start.kernel
    # In units of the lengthscales: inputs that hardly matter do not spread the points.
    scales = kernel.parameters()["lengthscale"]
    points = kmeans_points(nodes / scales, count, generator) * scales
    few = data.select(torch.randperm(size, generator=generator)[:3000])
    sparse = few.regression(
        partial(SGPR, points=points),
        kernel=kernel,
        # What few points cannot follow is noise to them: it starts with more.
        noise=max(float(start.noise), 0.1),
        mean=start.mean,
        jitter=_NUGGET,
    )
    # The search begins within a factor of e of the start: from afar it can leap to
    # where the whole target is noise, and stay.
    near, far = (
        LBFGS(max_steps=30, gradient_tolerance=1.0, reach=reach, ranges=ranges)
        for reach in (1.0, 3.0)
    )
    score = f"bound of the log evidence of {len(few.values)} rows"
    found, why = best_kernel(sparse, data, near, score)
    sparse = maximise(found.model, far).model
    learnt = sparse.parameters()
    batch = min(256, size)
    steps = max(_FEWEST_STEPS, _EPOCHS * math.ceil(size / batch))
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(steps, _MOST_STEPS),
        natural_rate=_NATURAL_RATE,
        watch_rows=10_000,
        solves="iterative" if whitening == "ciq" else "cholesky",
    )
    made = partial(CiqWhitening, ciq=_CIQ) if whitening == "ciq" else CholeskyWhitening
    nugget = _NUGGET * float(learnt["variance"])
    said = warnings.catch_warnings(record=True, action="always", category=RootWarning)
    with Progress(description="fit", total=settings.steps) as progress, said as caught:
        result = fit_svgp(
            data.functionals,
            y,
            made(sparse.kernel, points, nugget=nugget),
            StudentT(scale=learnt["noise"].sqrt())
            if data.outliers
            else Gaussian(variance=learnt["noise"], known=data.known_noise),
            generator=generator,
            mean=float(learnt["mean"]),
            settings=settings,
            on_step=lambda *_: progress.update(),
        )
    rise, likelihood = result.rise, result.model.likelihood
    assert rise is not None
    assert isinstance(likelihood, Gaussian | StudentT)
    if isinstance(likelihood, Gaussian):
        # New measurements have no known noise.
        likelihood = Gaussian(variance=likelihood.variance)
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
            f"warning: that is more than {_STILL:g} per row: the steps ended before "
            "scales and intervals had settled"
        )
    return FittedField(
        model=result.model,
        likelihood=likelihood,
        why=why,
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


METHODS: dict[str, Callable[[Observed, torch.Generator], FittedField]] = {
    "exact": partial(fit, learn_exact),
    "neighbours": partial(fit, learn_neighbours),
    "grid": partial(fit, learn_grid),
    "svgp": fit_variational,
}
