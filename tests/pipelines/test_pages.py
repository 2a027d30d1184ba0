"""Pages have their printed size; columns, profiles and pairs their own numbers."""

import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch
from drawn_text import cut_off, drawn_text, overlapping
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import imread

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns
from pipelines.figures.box import compare, density_slice, edge_on, face_on
from pipelines.figures.integrals import regridded, shared_range
from pipelines.figures.registry import KINDS, PlotOptions, draw, plot
from pipelines.figures.scales import colour_scale
from pipelines.figures.sightlines import lines_of_sight
from pipelines.figures.sky import MOLLWEIDE, gnomonic, orthographic
from pipelines.figures.style import band_of, band_symbol, save_figure
from pipelines.formats.fits import write_fits
from pipelines.formats.zarr import write_zarr
from pipelines.maps.answers import MissingError
from pipelines.maps.density import columns
from pipelines.maps.opening import open_answers
from pipelines.maps.sky import lines_of_sight as find_lines


def make_cube(**arrays):
    """Random densities, at least 0.5, on 17 by 9 by 5 cells of 50 pc."""
    x, y, z = (np.arange(-n, n + 1) * 50.0 for n in (8, 4, 2))
    rng = np.random.default_rng(8)
    made = {
        name: scale * (0.5 + rng.random((len(z), len(y), len(x))))
        for name, scale in arrays.items()
    }
    return Cube(x=x, y=y, z=z, arrays=made)


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def shown(figure, panel):
    return np.asarray(panels(figure)[panel].images[0].get_array())


def labels(figure):
    return [axes.images[0].colorbar.ax.get_xlabel() for axes in panels(figure)]


@pytest.mark.parametrize(("width", "across"), [(180.0, 2), (88.0, 1)])
def test_a_page_is_as_wide_as_it_will_be_printed(tmp_path, width, across):
    cube = make_cube(mean=1e-3)
    arrays = {"mean": np.ones((9, 17)), "std": np.ones((9, 17))}
    own = Columns(along="z", low=-100.0, high=100.0, arrays=arrays)
    page = face_on(replace(cube, y=cube.y * 2), own, width=width)
    save_figure(page, tmp_path / "a.png", dpi=100)
    assert imread(tmp_path / "a.png").shape[1] == pytest.approx(
        width * 100 / 25.4, abs=1
    )
    lefts = {round(axes.get_position().x0, 3) for axes in panels(page)}
    assert len(lefts) == across
    for axes in page.axes:
        box = axes.get_tightbbox(FigureCanvasAgg(page).get_renderer())
        assert box.x0 >= 0
        assert box.x1 <= page.bbox.x1


WIDTHS = (80.0, 88.0, 120.0, 140.0, 180.0, 400.0)


def drawn(run, other, width):
    """Every figure of a run that there is, by its kind."""
    options = PlotOptions(width=width, other=other, dpi=60, distances=(70.0, 300.0))
    source, found = open_answers(run.path), {}
    for kind, (_, drawing) in KINDS.items():
        with suppress(MissingError):
            found[kind] = drawing(source, options)
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_cut_off_or_over_another(positive_run, tmp_path, width):
    write_zarr(tmp_path / "other.zarr", make_cube(mean=1e-3, std=1e-4))
    figures = drawn(positive_run, tmp_path / "other.zarr", width)
    assert {"face-on", "edge-on", "sky", "los", "slice", "compare"} <= set(figures)
    for kind, figure in figures.items():
        assert len(drawn_text(figure)) > 5
        assert not cut_off(figure), kind
        assert not overlapping(figure), kind


def test_text_that_is_cut_off_or_over_another_is_found():
    figure = Figure()
    figure.text(0.95, 0.5, "reaches out of the page")
    figure.text(0.5, 0.2, "one")
    figure.text(0.5, 0.2, "other")
    assert cut_off(figure) == ["reaches out of the page"]
    assert overlapping(figure) == [("one", "other")]


def test_letters_of_a_pdf_are_letters(tmp_path):
    page = face_on(make_cube(mean=1e-3, std=1e-4))
    for name in ("a.pdf", "b.pdf"):
        save_figure(page, tmp_path / name)
    written = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in written and b"/Type3" not in written
    assert written == (tmp_path / "b.pdf").read_bytes()
    with pytest.raises(InputError, match="png, pdf, svg"):
        save_figure(page, tmp_path / "a.eps")


def test_an_integral_is_of_the_mean_and_has_a_std_if_columns_have_it():
    cube = make_cube(mean=1e-3, p50=2e-4, std=1e-4)
    page = face_on(cube)
    # From the first cell's centre to the last one's.
    column = np.trapezoid(cube.arrays["mean"], dx=50, axis=0)
    np.testing.assert_allclose(shown(page, 0), column, rtol=1e-6)
    assert labels(page) == ["mean extinction [mag]"]
    arrays = {"mean": np.ones((9, 17)), "std": np.full((9, 17), 0.2)}
    own = Columns(along="z", low=-100.0, high=100.0, arrays=arrays)
    cube = replace(cube, meta={"extinction_band": "A_V"})
    page = face_on(cube, own)
    assert (shown(page, 1) == 0.2).all()
    assert labels(page)[1] == r"std of the extinction $A_\mathrm{V}$ [mag]"
    with pytest.raises(ValueError, match="along y"):
        edge_on(cube, own)


def test_columns_of_a_cloud_are_its_closed_form(cloud_run):
    grid = cloud_run.plan.grid
    made = columns(cloud_run, "z")
    x, y = (grid.axis(d).numpy() for d in (0, 1))
    heights = np.linspace(made.low, made.high, 400)
    points = np.stack(np.meshgrid(x, y, heights, indexing="ij"), axis=-1)
    truth = np.trapezoid(one_cloud.density(points), heights, axis=-1).T
    error = made.arrays["mean"] - truth
    assert made.arrays["mean"].shape == (len(y), len(x)) == truth.shape
    assert np.corrcoef(made.arrays["mean"].ravel(), truth.ravel())[0, 1] > 0.9
    assert 0.5 < np.mean(np.abs(error) < made.arrays["std"]) <= 1.0
    assert made.arrays["mean"].argmax() == truth.argmax()


@pytest.mark.parametrize("along", ["z", "y", "x"])
def test_the_std_of_columns_is_that_of_sums_over_cells_of_samples(cloud_run, along):
    run, grid = cloud_run, cloud_run.plan.grid
    model, axis = run.posterior.model, "xyz".index(along)
    sums = []
    for sample in run.posterior.samples:
        field = model.whitening.colour(sample).reshape(model.whitening.torus.shape)
        box = field[tuple(slice(n) for n in grid.shape)] + one_cloud.EVEN
        sums.append(torch.trapezoid(box, dx=grid.spacing[axis], dim=axis).T)
    made = columns(run, along)
    drawn = torch.stack(sums).std(dim=0).numpy()
    mean = torch.stack(sums).mean(dim=0).numpy()
    spread = np.sqrt(1 / 24) * made.arrays["std"]
    assert (np.abs(mean - made.arrays["mean"]) < 6 * spread).all()
    ratio = made.arrays["std"] / drawn
    assert 0.95 < np.median(ratio) < 1.3
    part = columns(run, along, (made.low, made.low + grid.spacing[axis]))
    assert (part.arrays["std"] < made.arrays["std"] * 1.05).all()
    with pytest.raises(ValueError, match="lie within"):
        columns(run, along, (made.low - 1.0, made.high))


def test_columns_of_a_positive_density_have_quantiles(positive_run):
    made = columns(positive_run)
    low, middle, high = (made.arrays[name] for name in ("p16", "p50", "p84"))
    assert (low > 0).all() and (low < middle).all() and (middle < high).all()
    page = face_on(make_cube_of(positive_run), made, log=True)
    np.testing.assert_allclose(shown(page, 0), made.arrays["mean"])
    assert labels(page)[0] == "mean extinction [mag]"
    page = face_on(make_cube_of(positive_run), made, panel="median")
    np.testing.assert_allclose(shown(page, 0), middle)
    assert labels(page) == ["median extinction [mag]"]


def make_cube_of(run):
    x, y, z = (run.plan.grid.axis(d).numpy() for d in range(3))
    shape = (len(z), len(y), len(x))
    return Cube(x=x, y=y, z=z, arrays={"mean": np.ones(shape)})


def test_profiles_have_the_quantiles_of_their_integrals(positive_run):
    (line,) = find_lines(positive_run, [(18.4, -9.0)], points=12)
    assert (line.outer[0] < line.inner[0]).all() and (line.inner[0] < line.median).all()
    assert (line.median < line.inner[1]).all() and (line.inner[1] < line.outer[1]).all()
    logs = [np.log(curve) for curve in (*line.inner, *line.outer)]
    # Of Student's t with the degrees of freedom of 16 samples or more.
    ratio = (logs[3] - logs[2]) / (logs[1] - logs[0])
    assert (ratio > 1.95).all() and (ratio < 2.25).all()
    assert 0 < line.last_star <= line.distance[-1]
    early = replace(line, last_star=line.distance[3])
    names = {text.get_text() for text in lines_of_sight([early]).legends[0].get_texts()}
    assert {"posterior median", "last star"} < names
    page = lines_of_sight([line] * 5)
    assert len(page.axes) == 5
    for axes in page.axes:
        assert axes.get_xlabel() == "distance [pc]"
        assert axes.lines[0].get_xydata()[0].tolist() == [0.0, 0.0]


def test_a_slice_is_the_plane_that_was_asked_for():
    cube = make_cube(mean=1e-4, std=1e-5, support=1.0)
    cube.arrays["support"][:, :3] = 0.0
    page = density_slice(cube, axis="x", at=110.0)
    np.testing.assert_allclose(shown(page, 0), cube.arrays["mean"][:, :, 10] * 1e3)
    assert len(panels(page)) == 1
    assert "hatched" in page.texts[0].get_text()
    with pytest.raises(ValueError, match="no slice at 430 pc"):
        density_slice(cube, axis="x", at=430.0)


def test_logarithmic_colours_show_zero_as_the_least():
    scale = colour_scale("value", np.array([-1.0, 0.0, 1.0, 1.0, 1.0]), log=True)
    assert isinstance(scale.norm, LogNorm)
    assert scale.extend == "min"
    cube = make_cube(mean=1e-4)
    cube.arrays["mean"][2, 0, 0] = 0.0
    image = panels(density_slice(cube, log=True))[0].images[0]
    picture = image.to_rgba(image.get_array())
    np.testing.assert_array_equal(picture[0, 0], scale.cmap(scale.norm(1e-9)))


def test_differences_are_white_at_zero():
    scale = colour_scale("difference", np.linspace(-3.0, 1.0, 500))
    assert scale.norm.vmin == -scale.norm.vmax
    assert min(scale.cmap(scale.norm(0.0))[:3]) > 0.95


def test_another_grid_is_averaged_over_cells_and_interpolated_between_them():
    cube = make_cube(mean=1e-3)
    x, y, z = (np.arange(-300.0, 301.0, 10.0) for _ in range(3))
    Z, Y, X = np.meshgrid(z, y, x, indexing="ij")
    fine = Cube(x=x, y=y, z=z, arrays={"density": X + 2 * Y - Z}, unit="mag kpc-1")
    fine.arrays["density"][30, 30, 31] += 25.0
    found = regridded(fine, cube, 3.1).arrays["density"] * 1e3 / 3.1
    places = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    plain = places[2] + 2 * places[1] - places[0]
    outside = np.abs(places[2]) > 250
    assert np.isnan(found[np.abs(places[2]) > 300]).all()
    plain[2, 4, 8] += 25.0 / 125
    np.testing.assert_allclose(found[~outside], plain[~outside], atol=1e-9)
    assert shared_range(cube, fine, "z") == (-100.0, 100.0)
    thin = replace(fine, z=z[20:41], arrays={"density": (X - Z)[20:41]})
    filled = np.isfinite(regridded(thin, cube).arrays["density"]).any(axis=(1, 2))
    assert shared_range(cube, thin, "z") == (-50.0, 50.0)
    assert cube.z[filled][[0, -1]].tolist() == [-50.0, 50.0]
    apart = replace(fine, z=z + 5000.0)
    with pytest.raises(ValueError, match="0 planes"):
        shared_range(cube, apart, "z")


def test_a_comparison_has_differences_in_standard_deviations():
    cube = make_cube(mean=1e-3, std=1e-4)
    other = replace(cube, arrays={"density": cube.arrays["mean"] - 2e-4})
    arrays = {"mean": cube.arrays["mean"][1:].sum(axis=0), "std": np.ones((9, 17))}
    with pytest.raises(ValueError, match="both maps cover"):
        compare(cube, other, columns=Columns(along="z", low=0, high=50, arrays=arrays))
    page = compare(cube, other)
    np.testing.assert_allclose(shown(page, 2), 2e-4 * 200)
    np.testing.assert_allclose(shown(page, 5), 0.2)
    assert len(panels(page)) == 6
    own = Columns(along="z", low=-100, high=100, arrays=arrays)
    page = compare(cube, other, columns=own)
    np.testing.assert_allclose(shown(page, 0), arrays["mean"])
    np.testing.assert_allclose(shown(page, 3), shown(page, 2))
    # Eight places: the last one, for a std of cells, has no axes.
    assert len(panels(page)) == 7 and all(axes.has_data() for axes in page.axes)


@pytest.mark.parametrize(
    "projection",
    [orthographic(130.0, -35.0), gnomonic(350.0, 60.0, 70.0)],
)
def test_projections_lead_back_and_longitude_grows_to_the_left(projection):
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(-0.6, 0.6, 200) * projection.half[0] for _ in range(2))
    wcs = projection.wcs
    l, b = wcs.wcs_pix2world(x, y, 0)  # noqa: E741
    np.testing.assert_allclose(wcs.wcs_world2pix(l, b, 0), (x, y), atol=1e-9)
    centre = np.array(projection.l), np.array(projection.b)
    np.testing.assert_allclose(wcs.wcs_world2pix(*centre, 0), 0.0, atol=1e-12)
    left = wcs.wcs_world2pix(centre[0] + 1.0, centre[1], 0)
    up = wcs.wcs_world2pix(centre[0], centre[1] + 1.0, 0)
    assert left[0] < 0 < up[1]
    # A degree is a degree around the centre.
    assert up[1] == pytest.approx(np.radians(1.0), rel=1e-3)
    assert -left[0] == pytest.approx(
        np.radians(np.cos(np.radians(centre[1]))), rel=1e-3
    )


def test_what_lies_behind_is_not_shown():
    behind = np.array(310.0), np.array(35.0)
    assert np.isnan(orthographic(130.0, -35.0).wcs.wcs_world2pix(*behind, 0)).all()
    assert np.isnan(gnomonic(130.0, -35.0).wcs.wcs_world2pix(*behind, 0)).all()
    assert np.isfinite(MOLLWEIDE.wcs.wcs_world2pix(*behind, 0)).all()


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
    cube = make_cube(mean=1e-3, std=1e-4)
    write_zarr(tmp_path / "map.zarr", cube)
    write_fits(tmp_path / "map.fits", cube)
    words = f"plot {tmp_path}/map.zarr -o {tmp_path}/out --dpi 60 --format svg"
    done = command(f"{words} --other {tmp_path}/map.fits --x 100 --declare-band A_V")
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
        ("--kind los --direction 1;2", "two angles"),
    ):
        done = command(f"plot {tmp_path}/map.zarr -o {tmp_path}/out {more}")
        assert done.exit_code == 2, more
        assert message in done.stderr


def test_a_second_map_is_whatever_compare_takes(tmp_path, command):
    cube = make_cube(mean=1e-3, std=1e-4)
    write_zarr(tmp_path / "map.zarr", cube)
    density = 2 * cube.arrays["mean"].T
    axes = {name: getattr(cube, name) for name in "xyz"}
    np.savez(tmp_path / "other.npz", density=density, **axes)
    words = f"plot {tmp_path}/map.zarr -o {tmp_path}/out --kind compare --dpi 60"
    done = command(f"{words} --other {tmp_path}/other.npz --factor 0.5")
    assert done.exit_code == 0, done.output
    options = PlotOptions(other=tmp_path / "other.npz", factor=0.5)
    drawn = draw(open_answers(tmp_path / "map.zarr"), "compare", options)
    images = {
        axes.images[0].colorbar.ax.get_xlabel(): axes.images[0].get_array()
        for axes in drawn.axes
        if axes.images
    }
    own = max(np.abs(image).max() for image in images.values())
    differences = [name for name in images if name.startswith("difference\n")]
    assert differences
    for name in differences:
        assert np.abs(images[name]).max() < 1e-4 * own
    for wrong in ("dustmaps:none.Query", "absent.npz"):
        done = command(f"{words} --other {wrong} --factor 1 --other-integrated")
        assert done.exit_code == 2, wrong


def test_a_new_figure_is_a_line_in_the_registry(tmp_path, command, monkeypatch):
    def dots(source, options):
        figure = Figure()
        figure.subplots().plot(source.cube().x, "o")
        return figure

    monkeypatch.setitem(KINDS, "dots", ("dots", dots))
    write_zarr(tmp_path / "map.zarr", make_cube(mean=1e-3))
    words = f"plot {tmp_path}/map.zarr -o {tmp_path}/out --kind"
    assert command(f"{words} dots").exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dots.png"]
    assert "dots" in command("plot --help").output
    unknown = command(f"{words} stripes")
    assert unknown.exit_code == 2 and "dots" in unknown.stderr


def test_lines_of_a_run_go_where_they_are_told(tmp_path, positive_run):
    options = PlotOptions(
        directions=[(18.4, -9.0)], dpi=50.0, distances=[200.0], nside=8
    )
    paths, _ = plot(positive_run.path, tmp_path, kinds=("los", "sky"), options=options)
    assert [path.name for path in paths] == ["lines_of_sight.png", "sky.png"]


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
        ("--kind face-on --log --vmin 0", "above 0"),
        ("--kind face-on --cmap rainbows", "not a colour map"),
    ):
        done = command(f"plot {path} -o {tmp_path}/out {more}")
        assert done.exit_code == 2 and message in done.stderr, more


def test_a_table_of_stars_is_no_map_to_plot(positive_run, tmp_path, command):
    for name in ("stars.parquet", "stars.csv"):
        stars = tmp_path / name
        stars.write_bytes((positive_run.path / "stars.parquet").read_bytes())
        done = command(f"plot {stars} -o {tmp_path}/out")
        assert done.exit_code == 2 and not (tmp_path / "out").exists()
        assert "a table of stars, not a map" in done.stderr
        assert "dustmap fit" in done.stderr
