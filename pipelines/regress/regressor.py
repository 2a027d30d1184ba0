"""A regressor for arrays and tables with scikit-learn's interface, in user units."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from astropy import units as u
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals, Nodes, PointValues
from dustmap.gp.torus import TorusGP
from dustmap.inference.svi.bound import LatentMoments
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.likelihoods import Gaussian, StudentT
from dustmap.models.means import ConstantMean
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.base.quantities import numbers, path_of
from pipelines.catalog.tables import as_columns, is_table
from pipelines.regress import methods
from pipelines.regress.saved import read_model
from pipelines.regress.table import repeats

# Most rows for which `auto` is exact.
EXACT_ROWS = 2_000
# Most rows for which `exact` is possible.
MOST_EXACT = 8_000
# Most inputs of a grid, and for which `auto` does not use `svgp` for outliers.
GRID_INPUTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Distributions of the target at some places, including its noise.

    ``latent`` and ``likelihood`` are standardised: the target is ``shift + scale ·``
    its standardised value. The shift is that of each place (n,).
    """

    latent: LatentMoments
    likelihood: Gaussian | StudentT
    shift: float | np.ndarray
    scale: float

    @property
    def mean(self) -> np.ndarray:
        """Mean of the target (n,)."""
        return self.shift + self.scale * self.latent.mean.numpy()

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the target (n,)."""
        variance = self.likelihood.predictive_variance(self.latent.variance)
        return self.scale * variance.sqrt().numpy()

    @property
    def field_std(self) -> np.ndarray:
        """Standard deviation of the field, without noise (n,)."""
        return self.scale * self.latent.variance.sqrt().numpy()

    def quantile(self, probability: float) -> np.ndarray:
        """Return a quantile of the target."""
        values = self.likelihood.quantile(probability, *self.latent)
        return self.shift + self.scale * values.numpy()

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Return the natural log density of true values [per unit of target] (n,)."""
        white = torch.as_tensor((y - self.shift) / self.scale)
        density = self.likelihood.predictive_log_density(white, *self.latent)
        return density.numpy() - np.log(self.scale)


class Rescaled(Functionals):
    """Functionals of ``f((x − shift) / scale)``, as functionals of f."""

    def __init__(self, own: Functionals, shift: Tensor, scale: Tensor) -> None:
        self.own, self.shift, self.scale = own, shift, scale

    def __len__(self) -> int:
        return len(self.own)

    @property
    def dimension(self) -> int:
        return self.own.dimension

    def select(self, index: Tensor) -> Rescaled:
        return Rescaled(self.own.select(index), self.shift, self.scale)

    def nodes(self) -> Nodes:
        nodes = self.own.nodes()
        weights, points = nodes.weights, (nodes.points - self.shift) / self.scale
        if nodes.axes is not None:
            along = self.scale[nodes.axes.clamp_min(0)]
            weights = torch.where(nodes.axes < 0, weights, weights / along)
        return replace(nodes, points=points, weights=weights)


@dataclass(kw_only=True, eq=False)
class Regressor:
    """A Gaussian process with automatic kernel, scales, noise and method.

    It is an estimator of scikit-learn, which need not be installed. The kernel is a
    Matérn with one lengthscale per input. After ``fit`` it has ``n_features_in_``,
    ``feature_names_in_`` if the inputs had names, ``method_``, ``left_out_`` and
    ``repeated_``, the numbers of rows without a finite value and of repeated ones, and
    ``field_``, the posterior in standardised units. `fit` checks the parameters.

    Parameters
    ----------
    likelihood
        ``gaussian``, or ``student-t`` for outliers.
    method
        ``exact``, ``neighbours`` (every place from its nearest rows), ``grid`` (all
        rows on a grid, with a linear mean, in one to three inputs) or ``svgp``
        (inducing points); ``auto`` is ``svgp`` for outliers in more than three inputs,
        else ``exact`` for up to 2,000 rows, and for more ``neighbours``, or in one to
        three inputs the ``grid``, if it predicts withheld rows at least as well.
    whitening
        ``cholesky``, or ``ciq`` for the method ``svgp`` by products with K alone.
    seed
        Seed of all random choices.
    """

    # What scikit-learn before 1.6 asks for instead of tags.
    _estimator_type: ClassVar[str] = "regressor"
    likelihood: str = "gaussian"
    method: str = "auto"
    whitening: str = "cholesky"
    seed: int = 0

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the fitted regressor of a folder that `dustmap regress` wrote.

        Raises `InputError` if the folder is incomplete, altered, of another version, or
        has no model.
        """
        model = cls()
        vars(model).update(read_model(path_of(folder)))
        return model

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; none has parameters of its own (``deep``)."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Change parameters for the next fit; unknown ones are an `InputError`."""
        if unknown := params.keys() - (known := self.get_params()).keys():
            raise InputError(f"{', '.join(known)} are parameters, not {unknown}")
        vars(self).update(params)
        return self

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this, so that it is loaded.
        known = sys.modules["sklearn.utils"]
        return known.Tags(
            estimator_type="regressor",
            target_tags=known.TargetTags(required=True),
            regressor_tags=known.RegressorTags(),
            # Rows with NaN are left out.
            input_tags=known.InputTags(allow_nan=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "field_")

    def check(self) -> None:
        """Raise an `InputError` if an option is unknown, or ciq is not with svgp."""
        likelihoods = ("gaussian", "student-t")
        choices = {"likelihood": likelihoods, "method": ("auto", *methods.METHODS)}
        choices["whitening"] = ("cholesky", "ciq")
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name} takes {', '.join(known)}, got {value!r}")
        if self.whitening == "ciq" and self.method != "svgp":
            raise InputError("whitening ciq goes with method svgp only")

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        noise: Any = None,
        functionals: Functionals | None = None,
    ) -> Self:
        """Learn from the complete rows, and return this regressor.

        X is an array or quantity (n, d), or a table of d columns (DataFrame, astropy's,
        one of astropy.io.fits, a structured array, a mapping), which predictions take
        by name and unit; y (n,) are numbers or a quantity. Rows with a masked value, or
        one that is not finite, are left out and counted, as those of files are, and so
        are `repeats` of other rows. An earlier fit is forgotten.

        ``noise`` (n,) are standard deviations of the rows' own noise, in the unit of y;
        a common one is learnt in addition. ``functionals`` take the place of X, which
        is None: values, derivatives and integrals of the field over the inputs, of
        which y are observations (`dustmap.functionals`).

        Raises `InputError` if an option is unknown, shapes disagree, there are fewer
        than 10 complete rows, the target does not vary, or the method cannot have these
        rows.
        """
        self.check()
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self._names, X = None, as_columns(X)
        if functionals is not None:
            if X is not None or not isinstance(functionals, Functionals):
                raise InputError(
                    "functionals: expected those of dustmap.functionals, and None for X"
                )
            self._units = [None] * functionals.dimension
            whole = np.ones(len(functionals), dtype=bool)
        else:
            if is_table(X):
                self._names = list(getattr(X, "colnames", X))
                self._units = [getattr(X[n], "unit", None) for n in self._names]
            elif len(shape := np.asarray(X).shape) != 2:
                raise InputError(
                    f"inputs have shape {shape}, expected (n, d), and no sparse matrix"
                )
            else:
                self._units = [getattr(X, "unit", None)] * shape[1]
            if not self._units:
                raise InputError("a regression needs an input: there is no column")
            x = self._inputs(X)
            whole = np.asarray(np.isfinite(x).all(axis=1))
            functionals = PointValues(torch.as_tensor(np.where(whole[:, None], x, 0.0)))
        self._unit = getattr(y, "unit", None)
        columns = {"the target": _numbers(y, self._unit, "the target")}
        if noise is not None:
            columns["the noise"] = _numbers(noise, self._unit, "the noise")
            if (columns["the noise"] < 0).any():
                raise InputError("the noise is negative in some row")
            if self.likelihood != "gaussian":
                raise InputError("noise by rows goes with likelihood gaussian only")
        for what, column in columns.items():
            if column.shape != whole.shape:
                raise InputError(
                    f"{what} has shape {column.shape}, expected {whole.shape}"
                )
            whole = np.asarray(whole & np.isfinite(column))
        self.left_out_ = int((~whole).sum())
        if self.left_out_:
            say(f"{self.left_out_} of {len(whole)} rows lack a finite value: left out")
        self.repeated_ = 0
        if isinstance(functionals, PointValues):
            kept, points = np.flatnonzero(whole), functionals.points.numpy()
            together = np.column_stack([points, *columns.values()])[kept]
            again = repeats(together, points.shape[1])
            whole[kept[again]], self.repeated_ = False, int(again.sum())
            if self.repeated_:
                say(f"{self.repeated_:,} rows repeat others exactly: each counts once")
        rows = int(whole.sum())
        # Fewer do not constrain a covariance.
        if rows < 10:
            raise InputError(f"{rows} rows to fit, at least 10 are needed")
        values = columns["the target"][whole]
        if np.ptp(values) == 0:
            raise InputError(f"the target is {values[0]:g} in every row to fit")
        functionals = functionals.select(torch.from_numpy(np.flatnonzero(whole)))
        of_values = isinstance(functionals, PointValues)
        method, self.why_ = self._choose(rows, functionals.dimension, of_values)
        self.n_features_in_ = functionals.dimension
        if self._names is not None:
            self.feature_names_in_ = np.array(self._names, dtype=object)
        points = functionals.nodes().points.numpy()
        spread = points.std(axis=0)
        # Constant inputs have no effect.
        self.input_shift_ = points.mean(axis=0)
        self.input_scale_ = spread + (spread == 0)
        # Rows that depend on the level of the field.
        level = _level(functionals)
        known = level != 0
        means = values[known] / level[known] if known.any() else np.zeros(1)
        self.target_shift_ = float(means.mean())
        self.target_scale_ = float(means.std()) or float(values.std())
        white = (values - self.target_shift_ * level) / self.target_scale_
        stated = None
        if noise is not None:
            std = columns["the noise"][whole] / self.target_scale_
            stated = torch.as_tensor(std**2)
        data = methods.Observed(
            self._rescaled(functionals),
            torch.as_tensor(white),
            known_noise=stated,
            outliers=self.likelihood == "student-t",
        )
        fitted = methods.METHODS.get(method, partial(methods.fit, methods.learn_many))
        if self.whitening == "ciq":
            fitted = partial(methods.fit_variational, whitening="ciq")
        self.field_ = fitted(data, torch_stream(self.seed, Purpose.REGRESSION))
        found = "grid" if isinstance(self.field_.model, TorusGP) else "neighbours"
        self.method_ = method if method in methods.METHODS else found
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        *,
        functionals: Functionals | None = None,
    ) -> Any:
        """Return the mean of the target (n,), in its unit, if it had one.

        With ``return_std``, a pair: the mean, and the standard deviation (n,) of the
        target, noise included. ``functionals`` take the place of X, which is None;
        their means have no unit, and their standard deviations no noise.

        Raises
        ------
        InputError
            If an input is absent, of another unit, missing or not finite, or there is
            no row. If ``fit`` has not been called, it is a ``NotFittedError`` of
            scikit-learn as well where that is loaded, else an `AttributeError`.
        RuntimeError
            If the covariance is so close to singular that a variance is negative.
        """
        found = self.distribution(X, functionals=functionals)
        if functionals is not None:
            return (found.mean, found.field_std) if return_std else found.mean
        mean = self._in_unit(found.mean)
        return (mean, self._in_unit(found.std)) if return_std else mean

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return ``R² = 1 − Σ w (y − mean)² / Σ w (y − ȳ)²``, weights (n,) or 1."""
        mean = self.distribution(X).mean
        truth = _numbers(y, self._unit, "the target", complete=True)
        square = (truth - np.average(truth, weights=sample_weight)) ** 2
        error = np.average((truth - mean) ** 2, weights=sample_weight)
        return float(1 - error / np.average(square, weights=sample_weight))

    def samples(
        self, X: Any, count: int, *, functionals: Functionals | None = None
    ) -> Any:
        """Draw the field, without noise, jointly at n places (count, n).

        ``functionals`` take the place of X, as in `predict`. Draws have the target's
        unit, if it had one. The same seed, places and count give the same draws; those
        of other places are of other fields.

        Raises
        ------
        InputError
            As `predict`, and if the method has no joint samples (``exact``, ``grid``
            and ``svgp`` do), there are more than 4,000 places, or one lies outside the
            grid.
        FloatingPointError
            If a solve on the grid has not converged.
        """
        there, level = self._standardised(X, functionals)
        if (draw := getattr(self.field_.model, "samples", None)) is None:
            raise InputError(
                f"the method {self.method_} predicts every place on its own: for joint "
                "samples fit with method='exact', 'grid' or 'svgp'"
            )
        # Joint samples need a dense covariance of their places, of 128 MB here.
        if len(there) > 4_000:
            raise InputError(f"expected at most 4000 places, got {len(there)}")
        try:
            white = draw(there, count, self.seed)
        except ValueError as error:
            raise InputError(f"samples: {error}") from error
        drawn = self.target_shift_ * level + self.target_scale_ * white.numpy()
        return drawn if functionals is not None else self._in_unit(drawn)

    def distribution(
        self, X: Any, *, noise: Any = None, functionals: Functionals | None = None
    ) -> Prediction:
        """Return the whole distribution of the target at some places, without units.

        ``noise`` and ``functionals`` are as in `fit`.
        """
        there, level = self._standardised(X, functionals)
        try:
            latent = self.field_.model.predict(there)
        except ValueError as error:
            raise InputError(str(error)) from error
        likelihood = self.field_.likelihood
        if noise is not None:
            known = _numbers(noise, self._unit, "the noise", complete=True)
            assert isinstance(likelihood, Gaussian)
            likelihood = likelihood.widened(
                torch.as_tensor((known / self.target_scale_) ** 2)
            )
        lowest = float(latent.variance.min())
        if lowest < -1e-6:
            raise RuntimeError(
                f"a variance of the field is {lowest:.3g} of the target's: the "
                "covariance is close to singular, try another method"
            )
        return Prediction(
            # Remaining negative values are due to rounding.
            latent=latent._replace(variance=latent.variance.clamp_min(0.0)),
            likelihood=likelihood,
            shift=self.target_shift_ * level,
            scale=self.target_scale_,
        )

    def hyperparameters(self) -> dict[str, Any]:
        """Return kernel, lengthscales, std, mean and noise in the units of the data."""
        kernel, unit = self.field_.kernel, self.target_scale_
        own = kernel.lengthscale.detach().expand(self.n_features_in_).numpy()
        names = self._names or [f"x{axis}" for axis in range(self.n_features_in_)]
        scales = (own * self.input_scale_).tolist()
        likelihood, model = self.field_.likelihood, self.field_.model
        # At the mean of the inputs, where it is linear in them.
        mean = model.trend[0] if isinstance(model, TorusGP) else model.mean
        if isinstance(likelihood, StudentT):
            noise = {"noise": float(likelihood.scale) * unit}
            noise["degrees"] = float(likelihood.degrees)
        else:
            noise = {"noise": float(likelihood.variance.sqrt()) * unit}
        return {
            "kernel": type(kernel).__name__,
            "lengthscale": dict(zip(names, scales, strict=True)),
            "std": float(kernel.variance.detach().sqrt()) * unit,
            "mean": float(mean) * unit + self.target_shift_,
            **noise,
        }

    def _in_unit(self, values: np.ndarray) -> Any:
        return values if self._unit is None else u.Quantity(values, self._unit)

    def _rescaled(self, functionals: Functionals) -> Functionals:
        """Return functionals of the field, whose inputs are standardised."""
        shift, scale = map(torch.as_tensor, (self.input_shift_, self.input_scale_))
        if isinstance(functionals, PointValues):
            return PointValues((functionals.points - shift) / scale)
        return Rescaled(functionals, shift, scale)

    def _standardised(
        self, X: Any, functionals: Functionals | None
    ) -> tuple[Functionals, np.ndarray]:
        """Return the functionals to predict, and their values for a field of one."""
        if not hasattr(self, "field_"):
            known = sys.modules.get("sklearn.exceptions")
            kinds = (known.NotFittedError if known else AttributeError, InputError)
            raise type("NotFittedError", kinds, {})(
                "this regressor has not been fitted: call fit(X, y) first"
            )
        if functionals is None:
            functionals = PointValues(torch.as_tensor(self._inputs(X, complete=True)))
        elif X is not None or functionals.dimension != self.n_features_in_:
            raise InputError(
                f"functionals: expected {self.n_features_in_} inputs, and None for X"
            )
        if not len(functionals):
            raise InputError("there is no row to predict")
        return self._rescaled(functionals), _level(functionals)

    def _choose(self, rows: int, inputs: int, of_values: bool) -> tuple[str, str]:
        """Return a suitable method, or `auto`, and the reason for the user."""
        if self.method == "exact" and rows > MOST_EXACT:
            raise InputError(
                f"the method exact takes at most {MOST_EXACT} rows to fit, got {rows}"
            )
        if self.method in ("neighbours", "svgp") and not of_values:
            raise InputError(
                f"the method {self.method} takes values alone: take exact or grid"
            )
        if self.method != "auto":
            return self.method, "as given"
        if self.likelihood == "student-t" and inputs > GRID_INPUTS:
            return "svgp", f"outliers in more than {GRID_INPUTS} inputs"
        if rows <= EXACT_ROWS:
            return "exact", f"no more than {EXACT_ROWS:,} rows"
        why = f"more than {EXACT_ROWS:,} rows"
        if not of_values:
            return "grid" if inputs <= GRID_INPUTS else "exact", f"{why}, not values"
        if inputs > GRID_INPUTS:
            return "neighbours", f"{why}, more than {GRID_INPUTS} inputs"
        return "auto", why

    def _inputs(self, X: Any, *, complete: bool = False) -> Float[np.ndarray, "n d"]:
        """Return columns as an array, in the order and units of the fit."""
        X = as_columns(X)
        if is_table(X):
            if self._names is None:
                raise InputError("the fit had inputs without names: give an array")
            for name in self._names:
                if name not in getattr(X, "colnames", X):
                    raise InputError(
                        f"there is no column {name!r}: the inputs are "
                        f"{', '.join(self._names)}"
                    )
            columns = [X[name] for name in self._names]
        else:
            array = X if hasattr(X, "unit") else np.asarray(X)
            if array.ndim != 2 or array.shape[1] != len(self._units):
                raise InputError(
                    f"inputs have shape {array.shape}, expected (n, {len(self._units)})"
                )
            columns = list(array.T)
        names = self._names or [f"number {axis}" for axis in range(len(columns))]
        parts = [
            _numbers(column, unit, f"the input {name}", complete=complete)
            for column, unit, name in zip(columns, self._units, names, strict=True)
        ]
        if len({len(part) for part in parts}) > 1:
            raise InputError("inputs have different numbers of rows")
        return np.stack(parts, axis=1)


def _level(functionals: Functionals) -> Float[np.ndarray, " n"]:
    """Return the functionals of a field of one."""
    return ConstantMean(value=1.0).observed(functionals).numpy()


def _numbers(
    values: Any, unit: Any, what: str, *, complete: bool = False
) -> Float[np.ndarray, " n"]:
    """Return numbers in a unit, also assumed for values without one.

    Masked ones are NaN; with ``complete`` they, and others not finite, are refused.
    """
    try:
        if np.asarray(values).dtype.kind == "c":
            raise TypeError("Complex data not supported")
        column = numbers(values, unit or u.one)
    except (u.UnitConversionError, TypeError, ValueError) as error:
        expected = f"in {unit}" if unit else "without a unit"
        raise InputError(f"{what}: expected numbers {expected} ({error})") from error
    if column.ndim != 1:
        raise InputError(f"{what} has shape {column.shape}, expected one value per row")
    faulty = ~np.isfinite(column)
    if complete and faulty.any():
        raise InputError(
            f"{what} is missing or not finite in {int(faulty.sum())} of {len(column)} "
            f"rows, first in row {int(np.argmax(faulty)) + 1}: leave these rows out"
        )
    return column
