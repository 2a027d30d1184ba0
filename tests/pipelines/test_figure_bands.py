"""Maps in another band: every number is converted, none is renamed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions
from pipelines.figures.cuts import density_sky
from pipelines.figures.registry import PlotOptions, draw
from pipelines.maps.answers import Answers
from pipelines.maps.opening import open_answers, open_other, open_run
from pipelines.maps.stored import of_cube

RATIO = factor("A_V", "A_Ks")
L, B = np.array([20.0, 100.0]), np.array([-5.0, 5.0])


@pytest.fixture(scope="module")
def source(positive_run) -> Answers:
    """A run whose catalogue states no band."""
    return open_run(positive_run.path)


@pytest.fixture(scope="module")
def stores(positive_run, tmp_path_factory) -> dict[str, Path]:
    """Stores of a run in two bands."""
    folder = tmp_path_factory.mktemp("bands")
    paths = {"A_V": folder / "a.zarr", "A_Ks": folder / "k.zarr"}
    for name, path in paths.items():
        options = ExportOptions(declare_band="A_V", band=name)
        export(positive_run.path, {"zarr": [path]}, options)
    return paths


def assert_scaled(first, second, ratio):
    for name, values in first.arrays.items():
        scale = 1.0 if name == "support" else ratio
        found = second.arrays[name]
        np.testing.assert_allclose(found, scale * values, rtol=1e-5, err_msg=name)


def test_all_that_figures_read_of_an_export_in_another_band_is_converted(stores):
    plain, other = open_answers(stores["A_V"]), open_answers(stores["A_Ks"])
    assert (plain.known_band, other.band) == ("A_V", "A_Ks")
    assert_scaled(plain.cube(), other.cube(), RATIO)
    assert other.cube().meta["extinction_band"] == "A_Ks"
    first, second = plain.columns("z"), other.columns("z")
    assert first is not None and second is not None
    assert_scaled(first, second, RATIO)
    assert_scaled(plain.sky_maps([150.0]), other.sky_maps([150.0]), RATIO)
    (line,), (scaled,) = (one.lines([(20.0, -5.0)]) for one in (plain, other))
    assert_scaled(line, scaled, RATIO)
    np.testing.assert_array_equal(scaled.distance, line.distance)
    for show in ("value", "std", "relative-error"):
        ratio = 1.0 if show == "relative-error" else RATIO
        values, found = (density_sky(one, 150.0, show)(L, B) for one in (plain, other))
        np.testing.assert_allclose(found, ratio * values, rtol=1e-5)


def test_two_known_bands_need_a_factor(stores, tmp_path, command):
    first, second = stores["A_V"], stores["A_Ks"]
    with pytest.raises(InputError, match="give the factor"):
        open_other(second, open_answers(first))
    words = f"plot {first} -o {tmp_path}/out --kind compare --dpi 40 --other {second}"
    done = command(words)
    assert done.exit_code == 2 and "--factor" in done.output
    done = command(f"{words} --factor {1 / RATIO}")
    assert done.exit_code == 0, done.output
    # Of an unknown band it is taken to be in that of the first.
    bare = of_cube(Path("b"), replace(open_answers(first).cube(), meta={}))
    assert open_other(bare, open_answers(first)) == (bare, 1.0)


def test_an_object_with_a_query_is_compared_on_the_grid_of_the_first(source):
    class Even:
        def query(self, coords):
            return np.full(coords.shape, 1e-3)

    options = PlotOptions(other=Even(), other_integrated=False, factor=1.0)
    figure = draw(source, "compare", options)
    assert "Even" in "".join(text.get_text() for text in figure.findobj(Text))
    with pytest.raises(InputError, match="factor="):
        draw(source, "compare", PlotOptions(other=Even(), other_integrated=False))
