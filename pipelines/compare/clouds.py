"""Does the density of a map peak where clouds are known to be?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.measurement import Row
from pipelines.compare.chance import groups, one_each, p_at_least, p_value
from pipelines.compare.comparison import Comparison
from pipelines.compare.line_pictures import cloud_figure
from pipelines.compare.peaks import Profile, largest_peak, local_peaks, profiles
from pipelines.compare.tables import Cloud
from pipelines.run.folder import Run

# Entries of one cloud are this near one another [deg].
_SAME = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedCloud:
    """A cloud and the map along its line.

    ``tolerance`` [pc] is 2 σ of its distance and a cell, in quadrature; ``group`` the
    complex it belongs to, by number.
    """

    cloud: Cloud
    profile: Profile
    tolerance: float
    group: int = -1

    @property
    def along(self) -> np.ndarray:
        """Which of the profile's distances the map is informed at or before."""
        return self.profile.distance <= self.profile.informed

    @property
    def peak(self) -> float:
        """Where the median density is largest [pc]; NaN without a peak."""
        chosen = self.along
        return largest_peak(self.profile.distance[chosen], self.profile.median[chosen])

    @property
    def peaks_of_samples(self) -> np.ndarray:
        """Where every sample's density is largest [pc]."""
        chosen, distance = self.along, self.profile.distance
        return np.array(
            [largest_peak(distance[chosen], s[chosen]) for s in self.profile.samples]
        )

    @property
    def nearest_peak(self) -> float:
        """The peak of the median nearest to the cloud [pc], large or not."""
        distance = self.profile.distance[self.along]
        peaks = distance[local_peaks(self.profile.median[self.along])]
        if not len(peaks):
            return float("nan")
        return float(peaks[np.argmin(np.abs(peaks - self.cloud.distance))])

    def hit(self, distance: float, tolerance: float) -> bool:
        """Whether the largest peak is within ``tolerance`` of ``distance`` [pc]."""
        return bool(abs(self.peak - distance) <= tolerance)

    def rank(self, distance: float) -> float:
        """Share of the informed line that is less dense than at ``distance`` [pc]."""
        values = self.profile.median[self.along]
        own = np.interp(distance, self.profile.distance[self.along], values)
        return float(np.mean(values < own))

    @property
    def chance(self) -> float:
        """Share of the informed line within the tolerance of the largest peak."""
        if math.isnan(self.peak):
            return 0.0
        near = np.abs(self.profile.distance[self.along] - self.peak) <= self.tolerance
        return float(near.mean())


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

    Chance is told twice: by a cloud anywhere along its own line, and by exchanging
    distances among lines that are informed there, one cloud of every complex.

    Raises
    ------
    InputError
        If no cloud can be judged.
    """
    judged, fates = _judge(run, clouds, radius)
    counts = dict(Counter(fates))
    if not judged:
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        raise InputError(f"none of {len(clouds)} clouds can be judged: {told}")
    numbers = _numbers(judged, generator)
    rows = [_row(each) for each in judged]
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
        words=_words(counts, numbers, len(run.posterior.samples)),
        figures={"clouds": cloud_figure(judged)},
    )


def _judge(
    run: Run, clouds: list[Cloud], radius: float
) -> tuple[list[ValidatedCloud], list[str]]:
    """The clouds that can be judged, and what became of every one."""
    known = [c for c in clouds if math.isfinite(c.l) and math.isfinite(c.b)]
    if not known:
        return [], ["position not known"] * len(clouds)
    place = np.array([(c.l, c.b) for c in known]).T
    found = iter(profiles(run, *place, radius=radius))
    judged, fates = [], []
    cell = min(run.plan.grid.spacing)
    for cloud in clouds:
        if not (math.isfinite(cloud.l) and math.isfinite(cloud.b)):
            fates.append("position not known")
            continue
        profile = next(found)
        if cloud.distance > profile.reach:
            fates.append("outside the box")
        elif cloud.distance > profile.informed:
            fates.append("no star at its distance or beyond")
        else:
            error = 0.0 if math.isnan(cloud.error) else cloud.error
            tolerance = math.hypot(2 * error, cell)
            each = ValidatedCloud(cloud=cloud, profile=profile, tolerance=tolerance)
            judged.append(each)
            fates.append("judged")
    return _grouped(judged), fates


def _grouped(judged: list[ValidatedCloud]) -> list[ValidatedCloud]:
    """Number the complexes: near on the sky and in distance, through others or not."""
    place = np.array([(each.cloud.l, each.cloud.b) for each in judged]).reshape(-1, 2).T
    vectors = unit_vectors(*place)
    distance = np.array([each.cloud.distance for each in judged])
    width = np.array([each.tolerance for each in judged])
    near = vectors @ vectors.T >= math.cos(math.radians(_SAME))
    near &= np.abs(distance[:, None] - distance) <= np.maximum(width[:, None], width)
    return [
        replace(each, group=g) for each, g in zip(judged, groups(near), strict=True)
    ]


def _row(each: ValidatedCloud) -> Row:
    drawn = each.peaks_of_samples
    near = np.abs(drawn - each.cloud.distance) <= each.tolerance
    return {
        "cloud": each.cloud.name,
        "l [deg]": each.cloud.l,
        "b [deg]": each.cloud.b,
        "complex": each.group,
        "distance [pc]": each.cloud.distance,
        "± [pc]": each.cloud.error,
        "tolerance [pc]": each.tolerance,
        "informed to [pc]": each.profile.informed,
        "largest peak [pc]": each.peak,
        "nearest peak [pc]": each.nearest_peak,
        "peaks there": each.hit(each.cloud.distance, each.tolerance),
        "by chance": each.chance,
        "share of samples": float(near.mean()),
        "rank of density": each.rank(each.cloud.distance),
    }


def _numbers(
    judged: list[ValidatedCloud], generator: np.random.Generator
) -> dict[str, Any]:
    distance = np.array([each.cloud.distance for each in judged])
    width = np.array([each.tolerance for each in judged])
    # Row: line; column: whose distance stands on it.
    hits = np.array(
        [[each.hit(d, t) for d, t in zip(distance, width)] for each in judged]
    )
    ranks = np.array([[each.rank(d) for d in distance] for each in judged])
    single = one_each([each.group for each in judged], width.tolist())
    some = np.ix_(single, single)
    # Beyond what a line is informed of it would not have been judged.
    far = np.array([[each.profile.informed] for each in judged])
    allowed = (distance <= far)[some]
    p_met, exchanged = p_value(hits[some].astype(float), allowed, generator)
    met = int(hits.diagonal()[single].sum())
    chances = [judged[i].chance for i in single]
    return {
        "judged": len(judged),
        "largest peak there": int(hits.diagonal().sum()),
        "expected anywhere on the line": float(sum(each.chance for each in judged)),
        "complexes": len(single),
        "complexes, largest peak there": met,
        "complexes, anywhere on the line": float(sum(chances)),
        "p, anywhere on the line": p_at_least(met, chances),
        "complexes, distances exchanged": exchanged,
        "p, largest peak": p_met,
        "mean rank of density": float(ranks.diagonal()[single].mean()),
        "p, rank": p_value(ranks[some], allowed, generator)[0],
    }


def _words(
    counts: dict[str, int], numbers: dict[str, Any], samples: int
) -> tuple[str, ...]:
    told = "; ".join(f"{what}: {n}" for what, n in counts.items())
    return (
        f"Clouds: {told}. Only the judged ones tell for or against the map.",
        f"The largest peak lies at the cloud for {numbers['largest peak there']} of "
        f"{numbers['judged']}; a cloud anywhere on its line would be met in "
        f"{numbers['expected anywhere on the line']:.1f}.",
        f"Of {numbers['complexes']} complexes, one cloud each, "
        f"{numbers['complexes, largest peak there']} are met; anywhere on their lines "
        f"{numbers['complexes, anywhere on the line']:.1f} would be "
        f"(p = {numbers['p, anywhere on the line']:.2g}), with distances exchanged "
        f"among them {numbers['complexes, distances exchanged']:.1f} "
        f"(p = {numbers['p, largest peak']:.2g}). The density at a cloud exceeds that "
        f"of {numbers['mean rank of density']:.0%} of its line "
        f"(p = {numbers['p, rank']:.2g}).",
        "A line may hold several clouds: a largest peak elsewhere need not be wrong. "
        "Without a stated error the tolerance is a cell; positions are approximate.",
    )
