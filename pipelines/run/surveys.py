"""Several catalogues of one fit, calibrated to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.residual.surveys import (
    FEWEST,
    SurveyLaw,
    SurveyRows,
    learn_surveys,
    shared_errors,
)
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.run.kriged import rays_of


def surveys_of(
    stars: Stars, known: np.ndarray, config: FitConfig, source: Path
) -> tuple[SurveyLaw, ...]:
    """Learn the laws of several surveys from the known rows, those not held out.

    Raises `InputError` if ``model.reference`` is not one of the surveys, or the engine
    is svi.
    """
    wanted = config.model.reference
    names = [] if stars.survey is None else np.unique(stars.survey).tolist()
    if wanted is not None and wanted not in names:
        there = ", ".join(names) or "none, as it has no column survey"
        raise InputError(
            f"model.reference = {wanted} is no survey of {source}; it has {there}"
        )
    if len(names) < 2:
        return ()
    if not config.inference.abilities.shared_errors:
        raise InputError(
            f"{source} has {len(names)} surveys ({', '.join(names)}), but the engine "
            f"{config.inference.engine} does not know errors that stars share: fit "
            "them by full-batch, or each in its own fit"
        )
    rows = _rows(stars.select(known), names)
    counts = torch.bincount(rows.survey, minlength=len(names))
    number = int(counts.argmax()) if wanted is None else names.index(wanted)
    if counts[number] < FEWEST:
        raise InputError(
            f"the reference {names[number]} has {counts[number]} stars to fit, "
            f"expected at least {FEWEST}: set model.reference to another of {names}"
        )
    say(f"calibrating {len(names)} surveys to {names[number]}")
    generator = torch_stream(config.inference.seed, Purpose.SURVEYS)
    laws = learn_surveys(rows, names, number, generator)
    for law in laws:
        say(in_words(law))
    return laws


def calibrated(
    stars: Stars, laws: Sequence[SurveyLaw], others: Stars | None = None
) -> Stars:
    """Return the stars with the reference's extinctions, and errors by their laws.

    These grow with the extinction of near stars, or of ``others``, calibrated before.

    Raises `InputError` if a star is of no survey, or of one without a law.
    """
    if not laws:
        return stars
    names = [law.name for law in laws]
    found = set() if stars.survey is None else set(stars.survey.tolist())
    if stars.survey is None or not found <= set(names):
        named = ", ".join(sorted(found - set(names))) or "no column survey"
        raise InputError(
            f"the map is calibrated to {', '.join(names)}; the stars have {named}: "
            "state the survey of each, such as --map survey=COLUMN"
        )
    known = None
    if others is not None:
        assert others.extinction is not None
        known = rays_of(others, others.extinction / others.distance)
    extinction, error = _rows(stars, names).calibrated(laws, known)
    return replace(stars, extinction=extinction.numpy(), extinction_error=error.numpy())


def calibration_errors(stars: Stars, laws: Sequence[SurveyLaw]) -> torch.Tensor | None:
    """Return `shared_errors` of calibrated stars, if they are of several surveys."""
    if not laws:
        return None
    rows = _rows(stars, [law.name for law in laws])
    return shared_errors(laws, rows.survey, rows.extinction)


def in_words(law: SurveyLaw) -> str:
    """Describe the calibration of one survey in a line."""
    if law.rows < FEWEST:
        return f"survey {law.name}: {law.rows} stars, too few to calibrate"
    place = "the reference"
    if law.zero_error:
        prior = " (the prior: the others hardly tell)" if law.unconstrained else ""
        place = (
            f"zero point {law.zero:+.3f} ± {law.zero_error:.3f} mag{prior}, slope "
            f"{law.slope:.3f} ± {law.slope_error:.3f}"
        )
    return (
        f"survey {law.name}: {law.rows} stars, {law.overlap:.0%} of them near those of "
        f"others; {place}; errors {law.factor:.2f} times "
        f"the stated ones and {law.common:.2g} mag; Student-T with {law.degrees:.2g} "
        "degrees of freedom"
    )


def _rows(stars: Stars, names: Sequence[str]) -> SurveyRows:
    assert stars.survey is not None
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    return SurveyRows(
        directions=torch.tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.tensor(stars.distance),
        extinction=torch.tensor(stars.extinction),
        error=torch.tensor(stars.extinction_error),
        distance_std=torch.tensor(stars.distance_std),
        survey=torch.tensor(np.searchsorted(np.array(names), stars.survey.astype(str))),
    )
