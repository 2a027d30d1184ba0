"""Does the density of a map peak where clouds are known to be?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.measurement import Row
from pipelines.compare.chance import groups, one_each, p_at_least, p_value
from pipelines.compare.cloud_pictures import cloud_figure
from pipelines.compare.comparison import Comparison
from pipelines.compare.peaks import Profile, largest_peak, local_peaks, profiles
from pipelines.compare.tables import Cloud
from pipelines.run.folder import Run

# Entries of one cloud are this near one another [deg].
_SAME = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedCloud:
    """A cloud and the map along its line.

    ``tolerance`` [pc] is 2 σ of its distance and a cell, in quadrature.
    """

    cloud: Cloud
    profile: Profile
    tolerance: float

    @property
    def peak(self) -> float:
        """Where the median density is largest [pc]; NaN without a peak."""
        return largest_peak(self.profile.distance, self.profile.median)

    @property
    def peaks_of_samples(self) -> np.ndarray:
        """Where every sample's density is largest [pc]."""
        distance, samples = self.profile.distance, self.profile.samples
        return np.array([largest_peak(distance, sample) for sample in samples])

    @property
    def nearest_peak(self) -> float:
        """The peak of the median nearest to the cloud [pc], large or not."""
        peaks = self.profile.distance[local_peaks(self.profile.median)]
        away = np.abs(peaks - self.cloud.distance)
        return float(peaks[np.argmin(away)]) if len(peaks) else math.nan

    @property
    def found(self) -> bool:
        """Whether the largest peak is at the cloud's distance."""
        return bool(abs(self.peak - self.cloud.distance) <= self.tolerance)

    @property
    def chance(self) -> float:
        """Share of the informed line within the tolerance of the largest peak."""
        return float(
            np.mean(np.abs(self.profile.distance - self.peak) <= self.tolerance)
        )

    def ranks(self, distance: np.ndarray) -> np.ndarray:
        """Shares of the informed line that are less dense than at distances [pc]."""
        values = self.profile.median
        there = np.interp(distance, self.profile.distance, values)
        return np.mean(values < there[:, None], axis=1)


def compare_clouds(
    run: Run,
    clouds: list[Cloud],
    *,
    radius: float = 2.0,
    generator: np.random.Generator,
) -> Comparison:
    """Look for clouds along their lines of sight.

    The density is averaged over ``radius`` [deg] around each cloud. A cloud is judged
    if its place on the sky is known, it lies in the box, and sight lines cross the
    disc at its distance or beyond. Its line ends there where the last one does.

    Chance is estimated twice: by a cloud anywhere along its own line, and by exchanging
    distances among lines that are informed there, one cloud of every complex.

    Raises
    ------
    InputError
        If no cloud can be judged.
    """
    judged, fates = _validated(run, clouds, radius)
    counts = dict(Counter(fates))
    if not judged:
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        raise InputError(f"none of {len(clouds)} clouds can be judged: {told}")
    complexes = _complexes(judged)
    numbers = _numbers(judged, complexes, generator)
    rows = [_row(each, number) for each, number in zip(judged, complexes)]
    fate_rows = [
        {"name": cloud.name, "distance [pc]": cloud.distance, "fate": fate}
        for cloud, fate in zip(clouds, fates, strict=True)
    ]
    return Comparison(
        kind="clouds",
        numbers={
            "clouds": len(clouds),
            "counts": counts,
            "radius_deg": radius,
            **numbers,
            "judged": rows,
        },
        tables={"summary": [numbers], "clouds": rows, "fates": fate_rows},
        shown=("clouds", "summary"),
        words=_words(counts, numbers),
        figures={"clouds": cloud_figure(judged)},
    )


def _validated(
    run: Run, clouds: list[Cloud], radius: float
) -> tuple[list[ValidatedCloud], list[str]]:
    """The clouds that can be judged, and what became of every one."""
    place = np.array([(c.l, c.b) for c in clouds if c.placed]).T
    found = iter(profiles(run, *place, radius=radius) if place.size else [])
    judged, fates = [], []
    for cloud in clouds:
        profile = next(found) if cloud.placed else None
        if profile is None:
            fates.append("position not known")
        elif cloud.distance > profile.reach:
            fates.append("outside the box")
        elif cloud.distance > profile.informed:
            fates.append("no star at its distance or beyond")
        else:
            error = 0.0 if math.isnan(cloud.error) else cloud.error
            width = math.hypot(2 * error, run.plan.step_at(cloud.distance))
            each = ValidatedCloud(cloud=cloud, profile=profile, tolerance=width)
            judged.append(each)
            fates.append("judged")
    return judged, fates


def _complexes(judged: list[ValidatedCloud]) -> list[int]:
    """Numbers of complexes: near on the sky and in distance, through others or not."""
    vectors = unit_vectors(
        *np.array([(each.cloud.l, each.cloud.b) for each in judged]).T
    )
    distance = np.array([each.cloud.distance for each in judged])
    width = np.array([each.tolerance for each in judged])
    near = vectors @ vectors.T >= math.cos(math.radians(_SAME))
    near &= np.abs(distance[:, None] - distance) <= np.maximum(width[:, None], width)
    return groups(near)


def _row(each: ValidatedCloud, number: int) -> Row:
    cloud = each.cloud
    near = np.abs(each.peaks_of_samples - cloud.distance) <= each.tolerance
    return {
        "cloud": cloud.name,
        "l [deg]": cloud.l,
        "b [deg]": cloud.b,
        "complex": number,
        "distance [pc]": cloud.distance,
        "± [pc]": cloud.error,
        "tolerance [pc]": each.tolerance,
        "informed to [pc]": each.profile.informed,
        "largest peak [pc]": each.peak,
        "nearest peak [pc]": each.nearest_peak,
        "peaks there": each.found,
        "by chance": each.chance,
        "share of samples": float(near.mean()),
        "rank of density": float(each.ranks(np.array([cloud.distance]))[0]),
    }


def _numbers(
    judged: list[ValidatedCloud], complexes: list[int], generator: np.random.Generator
) -> dict[str, Any]:
    distance = np.array([each.cloud.distance for each in judged])
    width = np.array([each.tolerance for each in judged])
    peak = np.array([[each.peak] for each in judged])
    informed = np.array([[each.profile.informed] for each in judged])
    chances = np.array([each.chance for each in judged])
    # Row: line; column: whose distance stands on it.
    hits = np.abs(peak - distance) <= width
    ranks = np.array([each.ranks(distance) for each in judged])
    single = one_each(complexes, width.tolist())
    some = np.ix_(single, single)
    # Beyond what a line is informed of it would not have been judged.
    allowed = (distance <= informed)[some]
    p_met, exchanged = p_value(hits[some].astype(float), allowed, generator)
    met = int(hits.diagonal()[single].sum())
    return {
        "judged": len(judged),
        "largest peak there": int(hits.diagonal().sum()),
        "expected anywhere on the line": float(chances.sum()),
        "complexes": len(single),
        "complexes, largest peak there": met,
        "complexes, anywhere on the line": float(chances[single].sum()),
        "p, anywhere on the line": p_at_least(met, chances[single].tolist()),
        "complexes, distances exchanged": exchanged,
        "p, largest peak": p_met,
        "mean rank of density": float(ranks.diagonal()[single].mean()),
        "p, rank": p_value(ranks[some], allowed, generator)[0],
    }


def _words(counts: dict[str, int], numbers: dict[str, Any]) -> tuple[str, ...]:
    told = "; ".join(f"{what}: {n}" for what, n in counts.items())
    met, of = numbers["largest peak there"], numbers["judged"]
    return (
        f"Clouds: {told}. Only the judged clouds count for or against the map.",
        f"The largest peak lies at the cloud for {met} of {of}; a cloud anywhere on "
        f"its line would be met in {numbers['expected anywhere on the line']:.1f}.",
        f"Of {numbers['complexes']} complexes, one cloud each, "
        f"{numbers['complexes, largest peak there']} are met; anywhere on their lines "
        f"{numbers['complexes, anywhere on the line']:.1f} would be "
        f"(p = {numbers['p, anywhere on the line']:.2g}), with distances exchanged "
        f"among them {numbers['complexes, distances exchanged']:.1f} "
        f"(p = {numbers['p, largest peak']:.2g}). The density at a cloud exceeds that "
        f"of {numbers['mean rank of density']:.0%} of its line "
        f"(p = {numbers['p, rank']:.2g}).",
        "A line may hold several clouds: a largest peak elsewhere need not be wrong. "
        "Without a stated error the tolerance is a cell.",
    )
