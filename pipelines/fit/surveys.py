"""Several catalogues of one fit, calibrated to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from dustmap.residual.surveys import FEWEST, SurveyLaw, SurveyRows, learn_surveys
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import say
from pipelines.catalog.schema import Stars

if TYPE_CHECKING:
    from pipelines.fit.context import Context


def surveys_of(at: Context) -> tuple[SurveyLaw, ...]:
    """Learn the laws of several surveys from the stars that are not held out.

    Raises
    ------
    InputError
        If ``model.reference`` is not one of the surveys.
    """
    wanted = at.config.model.reference
    names = [] if at.stars.survey is None else np.unique(at.stars.survey).tolist()
    if wanted is not None and wanted not in names:
        there = ", ".join(names) or "none, as it has no column survey"
        raise InputError(
            f"model.reference = {wanted} is no survey of {at.source}; it has {there}"
        )
    if len(names) < 2:
        return ()
    rows = _rows(at.stars.select(at.split.known), names)
    counts = torch.bincount(rows.survey, minlength=len(names))
    number = int(counts.argmax()) if wanted is None else names.index(wanted)
    if counts[number] < FEWEST:
        raise InputError(
            f"the reference {names[number]} has {counts[number]} stars to fit, "
            f"expected at least {FEWEST}: set model.reference to another of {names}"
        )
    say(f"calibrating {len(names)} surveys to {names[number]}")
    generator = torch.Generator().manual_seed(at.config.inference.seed)
    laws = learn_surveys(rows, names, number, generator)
    for law in laws:
        say(in_words(law))
    return laws


def calibrated(stars: Stars, laws: Sequence[SurveyLaw]) -> Stars:
    """Return the stars with the reference's extinctions, and errors by their laws."""
    if not laws:
        return stars
    extinction, error = _rows(stars, [law.name for law in laws]).calibrated(laws)
    return replace(stars, extinction=extinction.numpy(), extinction_error=error.numpy())


def in_words(law: SurveyLaw) -> str:
    """Describe the calibration of one survey in a line."""
    if law.rows < FEWEST:
        return f"survey {law.name}: {law.rows} stars, too few to calibrate"
    place = "the reference"
    if law.zero_error:
        place = (
            f"zero point {law.zero:+.3f} ± {law.zero_error:.3f} mag, slope "
            f"{law.slope:.3f} ± {law.slope_error:.3f}"
        )
    return (
        f"survey {law.name}: {law.rows} stars; {place}; errors {law.factor:.2f} times "
        f"the stated ones and {law.common:.2g} mag; Student-T with {law.degrees:.2g} "
        "degrees of freedom"
    )


def _rows(stars: Stars, names: Sequence[str]) -> SurveyRows:
    assert stars.survey is not None
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    found = np.searchsorted(np.array(names), stars.survey.astype(str))
    return SurveyRows(
        directions=torch.tensor(unit_vectors(stars.l, stars.b)),
        lengths=torch.tensor(stars.distance),
        extinction=torch.tensor(stars.extinction),
        error=torch.tensor(stars.extinction_error),
        placing=torch.tensor(stars.placing_error),
        survey=torch.tensor(found),
    )
