"""A run compared with what REFERENCE names: what it is, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars
from pipelines.compare.clouds import compare_clouds
from pipelines.compare.comparison import SUMMARY, Comparison, write_comparison
from pipelines.compare.lines import compare_lines
from pipelines.compare.maps import compare_map
from pipelines.compare.references import HELD_OUT, kind_of
from pipelines.compare.stars import compare_held_out, compare_stars
from pipelines.compare.tables import read_clouds, read_lines
from pipelines.others import PACKAGE, open_other, open_package
from pipelines.run.folder import Run, read_run
from pipelines.storage.atomic import check_output_folder

_CALLED = {
    "stars": "a table of stars",
    "lines": "lines of sight",
    "clouds": "distances of dust clouds",
    "map": "another map",
}
KINDS = ("auto", *_CALLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How a reference is to be taken.

    ``factor`` turns its values into the band of the map; None stands for ``r_v`` where
    they are E(B-V), and 1 elsewhere. ``integrated`` and ``query`` are for objects of
    the package dustmaps; ``points`` and ``seed`` for what is drawn at random.
    """

    kind: str = "auto"
    factor: float | None = None
    r_v: float = 3.1
    integrated: bool | None = None
    query: dict[str, Any] = field(default_factory=dict)
    points: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"--kind is one of {', '.join(KINDS)}, got {self.kind!r}")
        for name, value in (("factor", self.factor), ("R_V", self.r_v)):
            if value is not None and not value > 0:
                raise InputError(f"the {name} must be positive, got {value}")
        if self.points < 1:
            raise InputError(f"the points must be at least 1, got {self.points}")


def compare(
    run: str | Path,
    reference: str,
    output: Path,
    options: CompareOptions | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Comparison, list[Path]]:
    """Compare a run with a reference; the comparison and the files it became.

    Raises
    ------
    InputError
        If the run or the reference cannot be read, or the output exists.
    """
    options = options or CompareOptions()
    check_output_folder(output, SUMMARY, overwrite=overwrite)
    kind = kind_of(reference) if options.kind == "auto" else options.kind
    compared = {"stars": _stars, "lines": _lines, "clouds": _clouds, "map": _map}[kind]
    comparison = compared(read_run(run), reference, options)
    return comparison, write_comparison(output, comparison, overwrite=overwrite)


def _stars(run: Run, reference: str, options: CompareOptions) -> Comparison:
    if options.factor not in (None, 1.0):
        raise InputError(
            "--factor is not for stars: ingest them in the band of the map instead"
        )
    if reference == HELD_OUT:
        return compare_held_out(run)
    return compare_stars(run, read_stars(reference), name=Path(reference).name)


def _lines(run: Run, reference: str, options: CompareOptions) -> Comparison:
    lines, value = read_lines(Path(reference))
    is_ebv = value == "ebv"
    usual = options.r_v if is_ebv else 1.0
    factor = usual if options.factor is None else options.factor
    what = "E(B-V)" if is_ebv else "times the reference"
    scale = f"extinction of the map = {factor:g} {what}"
    return compare_lines(run, lines, factor=factor, scale=scale)


def _clouds(run: Run, reference: str, options: CompareOptions) -> Comparison:
    generator = np.random.default_rng(options.seed)
    return compare_clouds(run, read_clouds(Path(reference)), generator=generator)


def _map(run: Run, reference: str, options: CompareOptions) -> Comparison:
    path = Path(reference)
    factor = 1.0 if options.factor is None else options.factor
    if reference.startswith(PACKAGE):
        if options.factor is None:
            raise InputError(
                f"{reference}: say with --factor what turns its values into mag (or, "
                "with --differential, mag/pc) in the band of this map; see its docs"
            )
        # Whether it is integrated may stand in the object itself.
        other = open_package(reference.removeprefix(PACKAGE))
    else:
        other = open_other(reference, factor=factor)
    return compare_map(
        run,
        other,
        integrated=options.integrated,
        factor=factor,
        options=options.query,
        points=options.points,
        generator=np.random.default_rng(options.seed),
        scale=f"{factor:g} times the values of {path.name}",
    )


def taken_for(comparison: Comparison, reference: str, options: CompareOptions) -> str:
    """In words, the kind assumed for a reference, and how to choose another."""
    what = _CALLED[comparison.kind]
    if reference == HELD_OUT:
        what = "the stars held out of the fit"
    said = f"{reference} is taken for {what}"
    if options.kind != "auto" or comparison.kind not in ("lines", "clouds"):
        return said
    return (
        f"{said}, by its columns: if it is something else, choose with --kind; stars "
        "and star clusters are to be ingested first (dustmap ingest)"
    )
