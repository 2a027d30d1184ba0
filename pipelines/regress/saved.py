"""A fitted regressor as a file of tensors and plain JSON, without executable content.

Objects are kept as the arguments that make them again. A new method needs only that the
classes of its model are among ``_CLASSES``.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from astropy import units as u
from scipy.spatial import KDTree

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.neighbours import NeighbourGP
from dustmap.gp.torus import TorusGP
from dustmap.grid import Grid, Torus
from dustmap.inference.svi import Svgp
from dustmap.inference.svi.gaussian import NaturalGaussian
from dustmap.kernels import Matern12, Matern32, Matern52
from dustmap.likelihoods import Gaussian, StudentT
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.roots import CIQ
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowReport, RowwiseGaussian
from dustmap.residual.neighbours import RowIndex
from dustmap.whitening import CholeskyWhitening, CiqWhitening
from pipelines.base.errors import InputError
from pipelines.catalog.units import parse_unit
from pipelines.regress.methods import FittedField
from pipelines.saving.state_file import read_state, write_state
from pipelines.storage.atomic import check_manifest

FILE = "regressor.safetensors"
# Layout of the file; it grows by one with every change.
VERSION = 2
_CLASSES: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(FittedField, Gaussian, StudentT, Matern12, Matern32, Matern52, PointValues),
        *(ExactGP, NeighbourGP, RowIndex, KDTree, TorusGP, Grid, Torus),
        ConjugateGradients,
        *(Svgp, NaturalGaussian, RowwiseGaussian, CholeskyWhitening, ConstantMean),
        *(CiqWhitening, CIQ, RowReport),
    )
}
_MARK = "$class"


def write_model(folder: Path, fitted: dict[str, Any]) -> None:
    """Save the attributes of a fitted regressor."""
    write_state(folder / FILE, {"fitted": _apart(fitted)}, version=VERSION)


def read_model(folder: Path) -> dict[str, Any]:
    """Read the attributes of a fitted regressor.

    Raises `InputError` if the folder is incomplete, altered, without a model, or of
    another version.
    """
    check_manifest(folder, allow_extra=True)
    if not (folder / FILE).is_file():
        raise InputError(f"{folder} has no {FILE}: make it by `dustmap regress`")
    return _made(read_state(folder / FILE, version=VERSION)["fitted"])


def _apart(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, u.UnitBase):
        return {_MARK: "unit", "text": str(value)}
    if isinstance(value, np.ndarray):
        names = value.dtype == object
        own = value.tolist() if names else torch.from_numpy(value)
        return {_MARK: "array", "a": own, "dtype": value.dtype.name}
    if kind in _CLASSES:
        # These arguments are left at their defaults.
        left = {"group", "compact_nodes", "copy_data", "balanced_tree", "boxsize"}
        names = [n for n in signature(_CLASSES[kind]).parameters if n not in left]
        return {_MARK: kind, **{n: _apart(getattr(value, n)) for n in names}}
    if isinstance(value, dict):
        return {name: _apart(part) for name, part in value.items()}
    return [*map(_apart, value)] if isinstance(value, list | tuple) else value


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_made, value)]
    if not isinstance(value, dict):
        return value
    own = {name: _made(part) for name, part in value.items()}
    makers = {"unit": parse_unit, "array": np.asarray, **_CLASSES}
    kind = own.pop(_MARK, None)
    return own if kind is None else makers[kind](**own)
