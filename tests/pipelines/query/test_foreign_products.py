"""Products with another program's map: the verbs, and the origin that each carries."""

from __future__ import annotations

import json
import pickle
import shlex
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import foreign_maps as made
import healpy
import numpy as np
import pytest
import zarr
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.table import Table
from astropy.wcs import WCS
from documents import ROOT, blocks, commands
from PIL import Image

import dustmap
from pipelines.base.errors import InputError
from pipelines.maps import opening

# The centre of a pixel of the exported extinctions, at one of their distances.
CENTRE = healpy.pix2ang(4, [72], nest=True, lonlat=True)
WHERE = SkyCoord(*CENTRE, [25], unit=("deg", "deg", "pc"), frame="galactic")
PLACE = "--l 90 --b 0 --distance 30"


@pytest.fixture
def cube(tmp_path) -> Path:
    return made.fits_cube(tmp_path / "m.fits", unit="A_V/pc")


@pytest.fixture
def sky(tmp_path) -> Path:
    return made.healpix_by_distance(tmp_path / "sky.fits")


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_one_place_names_the_map(command, cube, sky):
    result = command(f"query {cube} {PLACE}")
    assert result.exit_code == 0
    assert digest(cube) in result.output and "A_V" in result.output
    line = f"query {sky} --l 10 --b 0 --distance 100 --map-of edenhofer2024 --band A_V"
    output = command(line).output
    assert "Edenhofer et al. 2024, A&A 685" in output and "2.8" in output


def test_an_unknown_band_is_said(command, tmp_path):
    path = made.fits_cube(tmp_path / "m.fits")
    assert "unknown" in command(f"query {path} {PLACE}").output
    result = command(f"query {path} {PLACE} --band E(B-V)")
    assert result.exit_code == 2 and "--declare-band" in result.output
    line = f"query {path} {PLACE} --band 'E(B-V)' --declare-band A_V"
    assert command(line).exit_code == 0


def test_a_table_names_the_map(command, cube, tmp_path):
    table = Table({"l": [90.0, 0.0], "b": [0.0, 0.0], "distance": [30.0, 9e3]})
    for name, unit in (("l", "deg"), ("b", "deg"), ("distance", "pc")):
        table[name].unit = unit
    table.write(tmp_path / "in.ecsv")
    line = f"query {cube} {tmp_path / 'in.ecsv'} -o {tmp_path / 'out.ecsv'}"
    assert command(line).exit_code == 0
    found = Table.read(tmp_path / "out.ecsv")
    assert found.meta["map1_sha256"] == digest(cube)
    assert found.meta["map1_unit"] and found.meta["map1_factor"] == "1.0"
    assert np.isfinite(found["density_std"][0]) and not found["inside"][1]
    assert "extinction_std" not in found.colnames


@pytest.mark.parametrize("kind", ["cube", pytest.param("sky", marks=pytest.mark.slow)])
def test_figures_are_drawn_and_say_whose_map_they_show(
    command, cube, sky, tmp_path, kind
):
    path = {"cube": cube, "sky": sky}[kind]
    line = f"plot {path} -o {tmp_path / 'a'} --dpi 30 --nside 8"
    more = {"cube": "", "sky": "--map-of edenhofer2024"}[kind]
    assert command(f"{line} {more}").exit_code == 0
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert {"face_on.png", "sky.png", "lines_of_sight.png"} <= set(files)
    with Image.open(tmp_path / "a" / "face_on.png") as image:
        assert digest(path) in image.info["Description"]


def test_exports_hold_the_same_numbers_and_the_origin(command, cube, sky, tmp_path):
    store, file, maps = (tmp_path / name for name in ("o.zarr", "o.fits", "h.fits"))
    line = f"export {cube} --zarr {store} --fits {file} --healpix {maps}"
    assert command(f"{line} --nside 4 --distances 10,25").exit_code == 0
    group = zarr.open_group(store, mode="r")
    np.testing.assert_allclose(group["mean"][...], made.CUBE, rtol=1e-6)
    assert digest(cube) in json.dumps(dict(group.attrs))
    with fits.open(file) as units:
        np.testing.assert_allclose(units["MEAN"].data, made.CUBE, rtol=1e-6)
        assert digest(cube) in "".join(str(c) for c in units[0].header["HISTORY"])
    # Our own reader takes them for ours.
    found = dustmap.open_map(store).query(WHERE, integrated=True)
    first = dustmap.open_map(cube).query(WHERE, integrated=True)
    np.testing.assert_allclose(found, first, rtol=1e-3)
    chosen = tmp_path / "e.fits"
    line = f"export {sky} --map-of edenhofer2024 --healpix {chosen} --band A_V"
    assert command(f"{line} --nside {made.NSIDE} --distances 69,200").exit_code == 0
    found = healpy.read_map(chosen, field=(0, 1), nest=None)
    summed = made.INNER[0] + (made.MEAN * np.diff(made.EDGES)[:, None]).sum(axis=0)
    np.testing.assert_allclose(found[0], 2.8 * made.INNER[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], 2.8 * summed, rtol=1e-5)
    grid = tmp_path / "g.fits"
    line = f"export {sky} --map-of edenhofer2024 --fits {grid} --spacing 20"
    assert command(line).exit_code == 0
    with fits.open(grid) as units:
        centre = np.array(units["MEAN"].shape) // 2
        assert np.isnan(units["MEAN"].data[tuple(centre)])
        assert np.isfinite(units["MEAN"].data[centre[0], centre[1], centre[2] + 5])


def test_what_is_exported_of_it_opens_fills_and_is_drawn(
    command, cube, positive_run, tmp_path
):
    names = {"--zarr": "o.zarr", "--fits": "o.fits", "--healpix": "h.fits"}
    targets = " ".join(f"{kind} {tmp_path / name}" for kind, name in names.items())
    line = f"export {cube} {targets} --nside 16 --distances 10,25"
    assert command(line).exit_code == 0
    first = dustmap.open_map(cube).query(WHERE, integrated=True)
    # The run begins at the observer: its own part is its whole box.
    run = shlex.quote(str(positive_run.path))
    line = f"query {run} --l 10 --b 0 --distance 30 --fill"
    for name in names.values():
        found = dustmap.open_map(tmp_path / name).query(WHERE, integrated=True)
        np.testing.assert_allclose(found, first, rtol=0.05)
        filled = command(f"{line} {tmp_path / name}")
        assert filled.exit_code == 0 and digest(cube) in filled.output
        assert dustmap.open_map(tmp_path / name).answers.origins()[0]["band"] == "A_V"
        with pytest.raises(InputError, match="another program's map"):
            dustmap.open_map(tmp_path / name, samples=positive_run.path)
    image = tmp_path / "i.fits"
    line = f"export {cube} --image {image} --pixel 20 --distances 10,25"
    assert command(line).exit_code == 0
    with fits.open(image) as units:
        values, wcs = units["MEAN"].data[1], WCS(units["MEAN"].header).celestial
        x, y = np.round(wcs.world_to_pixel_values(30, 0)).astype(int)
        lon, lat = wcs.pixel_to_world_values(x, y)
    near, weights = healpy.get_interp_weights(128, lon, lat, lonlat=True)
    sky = healpy.pix2ang(128, near, lonlat=True)
    place = SkyCoord(*sky, 25, unit=("deg", "deg", "pc"), frame="galactic")
    expected = weights @ dustmap.open_map(cube).query(place, integrated=True).value
    assert values[y, x] == pytest.approx(expected, rel=1e-5)


def test_an_export_of_an_unknown_band_fills_if_its_band_is_stated(
    command, positive_run, tmp_path
):
    cube, store = made.fits_cube(tmp_path / "m.fits"), tmp_path / "o.zarr"
    assert command(f"export {cube} --zarr {store} --nside 2").exit_code == 0
    run = shlex.quote(str(positive_run.path))
    line = f"query {run} --l 10 --b 0 --distance 30 --fill {store}"
    result = command(line)
    assert result.exit_code == 2 and "--fill-declare-band" in result.output
    assert command(f"{line} --fill-declare-band A_V").exit_code == 0


@pytest.mark.parametrize("inner", [True, False])
def test_its_samples_are_exported(command, tmp_path, inner):
    sky, store = tmp_path / "s.fits", tmp_path / "o.zarr"
    made.healpix_samples(sky, inner=inner)
    line = f"export {sky} --map-of edenhofer2024 --zarr {store} --spacing 40"
    assert command(f"{line} --samples 9").exit_code == 2
    assert command(f"{line} --samples 3 --nside 2").exit_code == 0
    group = zarr.open_group(store, mode="r")
    drawn, mean = group["density_samples"][...], group["mean"][...]
    known = np.isfinite(mean)
    # Samples of the file are 1, 1.1, 1.2 and 1.3 times the same map.
    for number, part in enumerate(drawn):
        ratio = part[known] / mean[known]
        np.testing.assert_allclose(ratio, (1 + 0.1 * number) / 1.15, rtol=1e-4)


def test_a_known_band_is_converted_where_it_fills_a_run_of_a_declared_one(
    command, sky, chain
):
    run = chain.folder / "run"
    line = f"query {run} --l 10 --b 0 --distance 3000 --fill {sky}"
    line += " --fill-map-of edenhofer2024 --declare-band A_V"
    found = command(line).output
    assert float(found.rpartition("factor")[2].split()[0]) == pytest.approx(2.8)
    assert len(set(found.splitlines())) == len(found.splitlines())


@pytest.mark.parametrize("kind", ["cube", "healpix", "multiresolution", "samples"])
def test_it_answers_the_same_after_pickling(tmp_path, kind):
    path, name = tmp_path / "m", {"map_of": "edenhofer2024"}
    match kind:
        case "cube":
            path, name = made.fits_cube(path, unit="A_V/pc"), {}
        case "healpix":
            path = made.healpix_by_distance(path)
        case "samples":
            path = made.healpix_samples(path)
        case _:
            path, name = made.bayestar(path), {"map_of": "bayestar2019"}
    dust = dustmap.open_map(path, **name)
    far = 30 if kind == "cube" else 100
    place = SkyCoord(90, 5, far, unit=("deg", "deg", "pc"), frame="galactic")
    for each in (dust, dust.in_band("A_Ks")):
        again = pickle.loads(pickle.dumps(each))
        first, second = (one.query(place, integrated=True) for one in (each, again))
        np.testing.assert_array_equal(first, second)


def test_it_answers_the_same_in_a_spawned_process(sky):
    dust = dustmap.open_map(sky, map_of="edenhofer2024")
    place = SkyCoord(90, 5, 100, unit=("deg", "deg", "pc"), frame="galactic")
    with get_context("spawn").Pool(1) as pool:
        found = pool.apply(dust.query, (place,), {"integrated": True})
    np.testing.assert_array_equal(found, dust.query(place, integrated=True))


@pytest.mark.parametrize(
    "options", ["", "--fill x.fits", "--samples 3", "--zarr o.zarr --fill FILE"]
)
def test_exports_that_make_no_sense_are_refused(command, cube, options):
    result = command(f"export {cube} {options.replace('FILE', str(cube))}")
    assert result.exit_code == 2


def test_the_verbs_of_a_run_take_it(command, positive_run, tmp_path):
    path = tmp_path / "big.fits"
    cards = {f"{key}{n}": v for n in (1, 2, 3) for key, v in (("CDELT", 200.0),)}
    cards |= {f"CRVAL{n}": -100.0 * (s - 1) for n, s in enumerate(made.SHAPE, start=1)}
    made.fits_cube(path, **cards)
    run = shlex.quote(str(positive_run.path))
    line = f"compare {run} {path} -o {tmp_path / 'c'} --points 50"
    assert command(line).exit_code == 0
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert content["maps"][0]["sha256"] == digest(path)
    line = f"query {run} --l 10 --b 0 --distance 700 --fill {path}"
    result = command(line)
    assert result.exit_code == 2 and "--fill-declare-band" in result.output
    result = command(f"{line} --fill-declare-band A_V")
    assert result.exit_code == 0 and digest(path) in result.output
    out = tmp_path / "sky.fits"
    line = f"export {run} --healpix {out} --nside 4 --distances 300 --fill {path}"
    assert command(f"{line} --fill-unit A_V/pc").exit_code == 0
    with fits.open(out) as units:
        assert digest(path) in "".join(str(c) for c in units[0].header["HISTORY"])


def test_what_is_stated_of_our_own_map_is_refused(command, positive_run):
    result = command(f"query {positive_run.path} {PLACE} --unit mag/pc")
    assert result.exit_code == 2 and "--unit" in result.output


def test_maps_of_the_package_open_by_name(monkeypatch):
    class Slab:
        """1 mag/kpc of reddening everywhere."""

        def query(self, coords):
            return coords.distance.kpc

    monkeypatch.setattr(opening, "open_package", lambda name: Slab())
    dust = dustmap.open_map("dustmaps:some.Map", unit="mag", declare_band="A_V")
    places = SkyCoord(
        [0, 100], [0, 5], [500, 900], unit=("deg", "deg", "pc"), frame="galactic"
    )
    found = dust.extinction(places)
    np.testing.assert_allclose(found.mean.value, [0.5, 0.9])
    np.testing.assert_allclose(dust.density(places).mean.value, 1e-3)
    assert dust.band == "A_V"
    with pytest.raises(InputError, match="--unit mag"):
        dustmap.open_map("dustmaps:some.Map")


def test_every_line_of_the_page_runs(command, positive_run, tmp_path, monkeypatch):
    page = (ROOT / "scripts/docs/other-maps.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(positive_run.path)
    made.healpix_by_distance(Path("mean_and_std_healpix.fits"))
    made.bayestar(Path("bayestar2019.h5"))
    cards = made.explore_cards()
    made.bare_cube(Path("explore_cube_density_values_025pc_v2.fits"), **cards)
    grid = {f"CDELT{n}": 200.0 for n in (1, 2, 3)}
    grid |= {f"CRVAL{n}": -100.0 * (s - 1) for n, s in enumerate(made.SHAPE, start=1)}
    made.fits_cube(Path("cube.fits"), unit="", **grid)
    lines = commands(page)
    assert len(lines) > 5
    for words in lines:
        result = command(shlex.join(words[1:]))
        assert result.exit_code == 0, result.output
    for block in blocks(page, "python"):
        exec(compile(block, "other-maps.md", "exec"), {})
