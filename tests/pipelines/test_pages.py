"""Pages have their printed size; columns, profiles and pairs their own numbers."""

import re
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch
from matplotlib.image import imread
from test_figures import bar_labels, random_cube

from pipelines.base.errors import InputError
from pipelines.base.quantiles import NAMES
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns
from pipelines.figures.box import face_on
from pipelines.figures.registry import PlotOptions, draw
from pipelines.figures.sightlines import lines_of_sight
from pipelines.figures.style import band_of, band_symbol, save_figure
from pipelines.formats.fits import write_fits
from pipelines.formats.zarr import write_zarr
from pipelines.maps.opening import open_answers


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def shown(figure, panel):
    return np.asarray(panels(figure)[panel].images[0].get_array())


def test_a_page_is_as_wide_as_it_will_be_printed(tmp_path):
    cube = random_cube(mean=1e-3)
    arrays = {"mean": np.ones((9, 17)), "std": np.ones((9, 17))}
    own = Columns(along="z", low=-100.0, high=100.0, arrays=arrays)
    page = face_on(replace(cube, y=cube.y * 2), own)
    save_figure(page, tmp_path / "a.png", dpi=100)
    across = imread(tmp_path / "a.png").shape[1]
    assert across == pytest.approx(180 * 100 / 25.4, abs=1)
    lefts = {round(axes.get_position().x0, 3) for axes in panels(page)}
    assert len(lefts) == 2


def test_letters_of_a_pdf_are_letters(tmp_path):
    page = face_on(random_cube(mean=1e-3, std=1e-4))
    for name in ("a.pdf", "b.pdf"):
        save_figure(page, tmp_path / name)
    written = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in written and b"/Type3" not in written
    assert written == (tmp_path / "b.pdf").read_bytes()
    with pytest.raises(InputError, match="png, pdf, svg"):
        save_figure(page, tmp_path / "a.eps")


@pytest.mark.parametrize("along", ["z", "y"])
def test_the_std_of_columns_is_that_of_sums_over_cells_of_samples(
    cloud_run, cloud_store, along
):
    run, grid = cloud_run, cloud_run.plan.grid
    model, axis = run.posterior.model, "xyz".index(along)
    sums = []
    for sample in run.posterior.samples:
        field = model.whitening.colour(sample).reshape(model.whitening.torus.shape)
        box = field[tuple(slice(n) for n in grid.shape)] + one_cloud.EVEN
        sums.append(torch.trapezoid(box, dx=grid.spacing[axis], dim=axis).T)
    made = cloud_store.columns(along)
    drawn = torch.stack(sums).std(dim=0).numpy()
    mean = torch.stack(sums).mean(dim=0).numpy()
    spread = np.sqrt(1 / 24) * made.arrays["std"]
    assert (np.abs(mean - made.arrays["mean"]) < 6 * spread).all()
    ratio = made.arrays["std"] / drawn
    assert 0.95 < np.median(ratio) < 1.3
    # Only columns between these ends are held.
    ends = made.low, made.low + grid.spacing[axis]
    assert cloud_store.columns(along, ends) is None


def test_profiles_have_the_quantiles_of_their_integrals(positive_store):
    (line,) = positive_store.lines([(18.4, -9.0)])
    logs = np.log([line.arrays[name] for name in NAMES])
    assert (np.diff(logs, axis=0) > 0).all()
    ratio = (logs[4] - logs[0]) / (logs[3] - logs[1])
    assert (ratio > 1.9).all() and (ratio < 2.25).all()
    early = replace(line, last_star=line.distance[3])
    names = {text.get_text() for text in lines_of_sight([early]).legends[0].get_texts()}
    assert {"posterior median", "last star"} < names
    page = lines_of_sight([line] * 5)
    assert len(page.axes) == 5
    for axes in page.axes:
        assert axes.get_xlabel() == "distance [pc]"
        assert axes.lines[0].get_xydata()[0].tolist() == [0.0, 0.0]


def test_columns_of_a_positive_density_have_quantiles(positive_run, positive_store):
    made = positive_store.columns("z")
    low, middle, high = (made.arrays[name] for name in ("p16", "p50", "p84"))
    assert (low > 0).all() and (low < middle).all() and (middle < high).all()
    x, y, z = (positive_run.plan.grid.axis(d).numpy() for d in range(3))
    ones = {"mean": np.ones((len(z), len(y), len(x)))}
    cube = Cube(x=x, y=y, z=z, arrays=ones)
    for panel, values in (("mean", made.arrays["mean"]), ("median", middle)):
        page = face_on(cube, made, panel=panel)
        np.testing.assert_allclose(shown(page, 0), values)
        assert bar_labels(page) == [f"{panel} extinction [mag]"]


@pytest.mark.parametrize(
    ("band", "found", "symbol"),
    [
        ("A_V at 542 nm", "A(542 nm)", "A(542 nm)"),
        ("E(B-V)", "E(B-V)", "$E(B-V)$"),
        ("arbitrary", "", ""),
        ("as in the catalogue", "", ""),
        ("A_V; A_G", "", ""),
        ("A_V; as in the catalogue", "", ""),
        ("A(550 nm)", "A(550 nm)", "A(550 nm)"),
        ("A_0, monochromatic at 541.4 nm", "A_0", r"$A_\mathrm{0}$"),
    ],
)
def test_a_band_is_named_where_there_is_one(band, found, symbol):
    assert band_of({"extinction_band": band}) == found
    assert band_symbol(found) == symbol


def test_plot_draws_what_a_cube_suffices_for_and_says_what_it_leaves_out(
    tmp_path, command
):
    cube = random_cube(mean=1e-3, std=1e-4)
    write_zarr(tmp_path / "map.zarr", cube)
    write_fits(tmp_path / "map.fits", cube)
    words = f"plot {tmp_path}/map.zarr -o {tmp_path}/out --dpi 60 --format svg"
    done = command(f"{words} --other {tmp_path}/map.fits --x 100")
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["compare.svg", "edge_on.svg", "face_on.svg", "slice.svg"]
    left = re.findall("left out: (\\S+):", done.stderr)
    assert left == ["sky", "los"]
    for more, message in (
        ("--kind los", "extinctions along rays"),
        ("--kind compare", "--other"),
        ("--kind slice --x 1 --y 2", "one plane"),
        ("--kind slice --x 999", "no slice at 999"),
        ("--kind los --direction 1;2", "'1;2' is no angle"),
    ):
        done = command(f"plot {tmp_path}/map.zarr -o {tmp_path}/out {more}")
        assert done.exit_code == 2, more
        assert message in done.stderr


def test_a_second_map_is_whatever_compare_takes(tmp_path, command):
    cube = random_cube(mean=1e-3, std=1e-4)
    write_zarr(tmp_path / "map.zarr", cube)
    density = 2 * cube.arrays["mean"].T
    axes = {name: getattr(cube, name) for name in "xyz"}
    np.savez(tmp_path / "other.npz", density=density, **axes)
    words = f"plot {tmp_path}/map.zarr -o {tmp_path}/out --kind compare --dpi 60"
    done = command(f"{words} --other {tmp_path}/other.npz --factor 0.5")
    assert done.exit_code == 0, done.output
    options = PlotOptions(other=tmp_path / "other.npz", factor=0.5)
    drawn = draw(open_answers(tmp_path / "map.zarr"), "compare", options)
    images = [np.abs(axes.images[0].get_array()).max() for axes in panels(drawn)]
    # Three of extinctions, three of densities: both maps and their difference.
    assert len(images) == 6 and max(images[2::3]) < 1e-4 * max(images)
    for wrong in ("dustmaps:none.Query", "absent.npz"):
        done = command(f"{words} --other {wrong} --factor 1 --other-integrated")
        assert done.exit_code == 2, wrong


@pytest.mark.slow
def test_a_panel_is_drawn_alone_with_the_colours_asked_for(
    positive_run, tmp_path, command
):
    path, source = positive_run.path, open_answers(positive_run.path)
    look = "--panel relative-error --vmin 0.1 --vmax 0.7 --cmap viridis --dpi 50"
    done = command(f"plot {path} -o {tmp_path}/out --nside 8 {look}")
    assert done.exit_code == 0, done.output
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == ["edge_on.png", "face_on.png", "sky.png"]
    assert re.findall(r"left out: (\S+):", done.stderr) == ["los", "slice"]
    options = PlotOptions(panel="std", vmax=0.4, cmap="viridis", dpi=50.0)
    for kind in ("face-on", "edge-on"):
        (image,) = (axes.images[0] for axes in panels(draw(source, kind, options)))
        assert image.get_clim() == (0.0, 0.4) and image.cmap.name == "viridis"
        assert "std of the extinction" in image.colorbar.ax.get_xlabel()
    options = PlotOptions(vmin=-0.1, vmax=3.0)
    first, std = (axes.images[0] for axes in panels(draw(source, "face-on", options)))
    assert first.get_clim() == (-0.1, 3.0) and std.get_clim() != (-0.1, 3.0)
    for more, message in (
        ("--kind slice --panel std", "choose --panel from mean"),
        ("--kind los --panel std", "--panel does not apply to los"),
        ("--kind face-on --vmin 2 --vmax 1", "choose --vmin below --vmax"),
        ("--kind face-on --cmap rainbows", "not a colour map"),
    ):
        done = command(f"plot {path} -o {tmp_path}/out {more}")
        assert done.exit_code == 2 and message in done.stderr, more


def test_a_table_of_stars_is_no_map_to_plot(positive_run, tmp_path, command):
    done = command(f"plot {positive_run.path}/stars.parquet -o {tmp_path}/out")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    assert "a table of stars, not a map" in done.stderr
