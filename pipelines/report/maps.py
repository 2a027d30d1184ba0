"""Pictures of the map, each with what it shows in words."""

from __future__ import annotations

from pipelines.figures import (
    density_slice,
    edge_on,
    face_on,
    lines_of_sight,
)
from pipelines.report.blocks import Section, Text, picture
from pipelines.report.data import ReportData
from pipelines.report.numbers import percent, significant


def maps(data: ReportData) -> Section:
    """Draw what is near the Sun, the box edge-on, and a slice."""
    cube = data.cube
    seen = percent(float((cube.arrays["support"] > 0).mean()))
    text = (
        "The Sun is at the origin; x points to the Galactic centre (l = 0°), y to "
        f"l = 90°, z to the north Galactic pole. {seen} of the cells are crossed "
        "by the sight line of some star. In the others the map is its prior."
    )
    pictures = (
        (
            edge_on(cube, data.columns["y"]),
            "Map of the extinction through the box seen along y, the Galactic plane "
            "horizontal",
            "Edge-on: mean extinction along y, between the ends that the picture "
            "names, and its standard deviation.",
        ),
        (
            density_slice(cube),
            "Mean density in the plane of the Sun",
            "The mean density in the plane nearest z = 0: along a line it adds up to "
            "the extinction.",
        ),
    )
    if cube.finer:
        level = cube.level_within()
        near = (
            face_on(cube.levels[level], data.columns["near"]),
            "Map of the extinction through a finer grid around the Sun, seen from the "
            "north Galactic pole",
            "Near the Sun: mean extinction through a finer grid alone, between the "
            "heights that the picture names, and its standard deviation.",
        )
        pictures = (near, *pictures)
    drawn = (picture(one, alt=alt, caption=caption) for one, alt, caption in pictures)
    return Section(key="maps", title="More maps", blocks=(Text((text,)), *drawn))


def sight_lines(data: ReportData) -> Section:
    """Extinction along a few directions, with the stars near them."""
    directions = "; ".join(
        f"l = {line.l:.1f}°, b = {significant(line.b, 3)}°" for line in data.lines
    )
    drawn = picture(
        lines_of_sight(data.lines),
        alt=f"Extinction against distance with its uncertainty towards {directions}",
        caption="Extinction to a distance along directions of much dust, its 68% and "
        "95% bands, and the stars near by. Where the last star stands, the map begins "
        "to extrapolate.",
    )
    return Section(key="sight-lines", title="Lines of sight", blocks=(drawn,))
