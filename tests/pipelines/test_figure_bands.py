"""Figures in another band: every number is converted, none is renamed."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions
from pipelines.figures.cuts import density_sky
from pipelines.figures.registry import PlotOptions, draw
from pipelines.formats.zarr import write_zarr
from pipelines.maps.answers import Answers
from pipelines.maps.opening import QueriedMap, open_answers, open_other
from pipelines.maps.run_map import RunMap
from pipelines.maps.stored import of_cube

RATIO = factor("A_V", "E(BP-RP)")
L, B = np.array([20.0, 100.0]), np.array([-5.0, 5.0])


@pytest.fixture(scope="module")
def source(positive_run) -> Answers:
    """A run whose catalogue states no band."""
    return RunMap.of(positive_run)


@pytest.fixture(scope="module")
def stores(positive_run, tmp_path_factory) -> dict[str, Path]:
    """A copy of the run with its store, in another band, and two stores of A_V."""
    folder = tmp_path_factory.mktemp("bands")
    shutil.copytree(positive_run.path, folder / "run")
    paths = {"run": folder / "run", "A_V": folder / "a.zarr"}
    for name, path in (("A_V", paths["A_V"]), ("A_Ks", folder / "run" / "map.zarr")):
        options = ExportOptions(declare_band="A_V", band=name, nside=4)
        export_run(positive_run.path, {"zarr": [path]}, options)
    return paths


def assert_scaled(first, second, ratio):
    for name, values in first.arrays.items():
        scale = 1.0 if name == "support" else ratio
        found = second.arrays[name]
        np.testing.assert_allclose(found, scale * values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["run", "store"])
def test_all_that_figures_read_is_converted(kind, source, stores):
    plain = source if kind == "run" else open_answers(stores["A_V"])
    other = plain.in_band("E(GBP-GRP)", "A_V")
    assert (plain.known_band, other.band) == (
        "" if kind == "run" else "A_V",
        "E(BP-RP)",
    )
    assert_scaled(plain.cube(), other.cube(), RATIO)
    assert other.cube().meta["extinction_band"] == "E(BP-RP)"
    first, second = plain.columns("z"), other.columns("z")
    assert first is not None and second is not None
    assert_scaled(first, second, RATIO)
    nside = 4 if kind == "run" else None
    assert_scaled(plain.sky_maps([150.0], nside), other.sky_maps([150.0], nside), RATIO)
    (line,), (scaled,) = (one.lines([(20.0, -5.0)]) for one in (plain, other))
    assert_scaled(line, scaled, RATIO)
    for name in ("star_extinction", "star_error"):
        expected = RATIO * np.array(getattr(line, name))
        np.testing.assert_allclose(getattr(scaled, name), expected, rtol=1e-6)
    np.testing.assert_array_equal(scaled.distance, line.distance)
    np.testing.assert_array_equal(scaled.star_distance, line.star_distance)
    shows = ("value", "std", "relative-error", *(["sample"] if kind == "run" else []))
    for show in shows:
        ratio = 1.0 if show == "relative-error" else RATIO
        values, found = (density_sky(one, 150.0, show)(L, B) for one in (plain, other))
        np.testing.assert_allclose(found, ratio * values, rtol=1e-6)


def test_a_store_in_the_run_s_folder_does_not_change_the_run_s_band(stores, source):
    beside = open_answers(stores["run"]).in_band("A_V", "A_V")
    assert_scaled(source.cube(), beside.cube(), 1.0)
    plain, columns = source.columns("z"), beside.columns("z")
    assert plain is not None and columns is not None
    assert_scaled(plain, columns, 1.0)


def test_a_second_map_of_a_known_band_is_converted_to_that_of_the_first(stores):
    first = open_answers(stores["A_V"]).in_band("A_Ks")
    for second in (
        open_answers(stores["A_V"]),
        open_answers(stores["run"] / "map.zarr"),
    ):
        assert_scaled(first.cube(), second.in_band_of(first).cube(), 1.0)
    # One that states none is taken to be of the first one's own band.
    bare = of_cube(Path("b"), replace(first.cube(), meta={}))
    assert bare.in_band_of(first).factor == factor("A_V", "A_Ks")
    named = replace(bare, band="A_V").converted(None, 3.1)
    # Of one with a factor to the first one's band, that band is not asked for.
    brought = open_other(named, factor=3.1).in_band_of(first)
    assert brought.factor == pytest.approx(3.1**2 * factor("A_V", "A_Ks"))


def test_a_map_states_all_of_its_conversions(stores, tmp_path):
    steps = [("A_G", 3.1), ("E(B-V)", 3.3), ("A_Ks", 2.8)]
    first = open_answers(stores["A_V"])
    found = first
    for band, r_v in steps:
        found = found.in_band(band, r_v=r_v)
    write_zarr(tmp_path / "map.zarr", found.cube(), found.sky_maps())
    again = open_answers(tmp_path / "map.zarr").in_band("A_V")
    for meta in (again.cube().meta, again.sky_maps().meta):
        named = [(one["target"], one["r_v"]) for one in meta["band_conversions"]]
        # The store itself was declared to be of A_V.
        assert named == [("A_V", 3.1), *steps, ("A_V", 3.1)]
        factors = [one["factor"] for one in meta["band_conversions"]]
        assert_scaled(first.cube(), again.cube(), np.prod(factors))
        curves = meta["citation"]["extinction_curve"]
        assert len(curves) == len({str(one) for one in curves}) == 2


def test_bands_that_are_not_known_or_contradict_are_refused(stores, tmp_path, command):
    axis = np.linspace(-100.0, 100.0, 5)
    cube = Cube(x=axis, y=axis, z=axis, arrays={"mean": np.ones((5, 5, 5))})
    write_zarr(tmp_path / "bare.zarr", cube)
    for name, words, message in (
        (tmp_path / "bare.zarr", "--band A_V", "--declare-band"),
        (tmp_path / "bare.zarr", "--band foo", "--declare-band"),
        (tmp_path / "bare.zarr", "--declare-band foo", "E(BP-RP)"),
        (stores["A_V"], "--band foo", "E(BP-RP)"),
        (stores["A_V"], "--declare-band A_G", "--band A_G converts"),
        (stores["A_V"], "--r-v 3", "add --band"),
    ):
        done = command(f"plot {name} -o {tmp_path}/out --kind slice {words}")
        assert done.exit_code == 2 and message in done.output, words
        assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="not an extinction band"):
        draw(open_answers(stores["A_V"]), "slice", PlotOptions(band="foo"))


def test_a_map_without_an_end_is_compared_on_the_grid_of_the_first(source, monkeypatch):
    """As those of the package dustmaps, which are functions of a place."""

    class Even:
        def query(self, coords):
            return np.full(coords.shape, 1e-3)

    asked = []

    def opened(*given, **how):
        asked.append(given)
        return QueriedMap(path=Path("even"), source=Even(), integrated=False)

    monkeypatch.setattr("pipelines.figures.registry.open_other", opened)
    figure = draw(source, "compare", PlotOptions(other="even"))
    assert asked == [("even",)]
    assert "even" in "".join(text.get_text() for text in figure.findobj(Text))
