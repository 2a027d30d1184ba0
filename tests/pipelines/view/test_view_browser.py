"""The page in headless Chromium: drawn, clicked, typed, sliding, on a phone."""

import io
import re
import shutil
import threading

import numpy as np
import one_cloud
import pytest
from astropy.coordinates import SkyCoord
from matplotlib.image import imread

from pipelines.base.geometry import spherical
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import write_fits
from pipelines.maps.opening import open_answers
from pipelines.maps.places import Places
from pipelines.view.page import view_page, write_view
from pipelines.view.server import make_server

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None, reason="needs chromium or google-chrome on the PATH"
    ),
]
sync_api = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as driver:
        # WebGL without a graphics card.
        graphics = ["--use-gl=angle", "--use-angle=swiftshader"]
        graphics += ["--no-sandbox", "--enable-unsafe-swiftshader"]
        browser = driver.chromium.launch(executable_path=BROWSER, args=graphics)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def loaded(chromium, page_path):
    """The page, its address, what its console said and what it asked for."""
    said, asked = [], []
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_path.as_uri())
    settle(page)
    yield page, page.url, said, asked
    page.close()


@pytest.fixture
def opened(loaded):
    """The page as it was opened; its console stays silent, it asks for no address."""
    page, address, said, asked = loaded
    page.set_viewport_size({"width": 1280, "height": 900})
    if page.url != address:
        acted(page, lambda: page.evaluate(f"location.href = {address!r}"))
    yield page
    # Of plotly's labels in space.
    assert not [line for line in said if "willReadFrequently" not in line]
    assert {re.split("[:,;]", url)[0] for url in asked} <= {"file", "data", "blob"}


def settle(page, more=0):
    """Wait until the page has drawn once more than it had."""
    page.wait_for_function(f"Number(document.body.dataset.drawn) > {more}")


def acted(page, act):
    before = int(page.evaluate("document.body.dataset.drawn"))
    act()
    settle(page, before)


def curve_shown(page):
    """The central curve as plotly draws it: distances [pc], extinctions [mag]."""
    found = page.evaluate(
        "(() => { const t = document.getElementById('ray').data.find((t) => "
        "t.line && t.line.width === 2); return [[...t.x], [...t.y]]; })()"
    )
    return np.array(found, dtype=float)


def check_curve(page, run):
    """The curve is that of a query along the direction that the page states."""
    said = page.inner_text("#ray-read").replace("\N{MINUS SIGN}", "-")
    l, b = map(float, re.search(r"l = (\S+)°, b = (\S+)°", said).groups())  # noqa: E741
    distance, shown = curve_shown(page)[:, 1:]
    places = Places(l=0 * distance + l, b=0 * distance + b, distance=distance, shape=())
    asked = open_answers(run.path).moments(places, ("p50", "p97_5"), integrated=True)
    # Half a hundredth of a degree is lost in the words.
    error = np.abs(shown - asked["p50"]) / np.nanmax(asked["p97_5"])
    assert np.nanmax(error) < 0.01
    assert np.isfinite(shown).sum() > 10
    return l, b


def test_all_figures_are_drawn(opened):
    opened.locator("#volume").scroll_into_view_if_needed()
    opened.wait_for_selector("#volume[data-drawn]")
    drawn = opened.evaluate(
        "[...document.querySelectorAll('.plot')].map((e) => e.dataset.drawn)"
    )
    assert len(drawn) == 4 and all(drawn)
    assert opened.is_hidden("#fault")


def test_surfaces_in_space_have_the_density_of_the_slider(opened):
    opened.locator("#volume").scroll_into_view_if_needed()
    opened.wait_for_selector("#volume[data-drawn]")

    def shown():
        low, least, count = opened.evaluate(
            "(() => { const { isomin, isomax, value } = volume.data[0]; "
            "return [isomin, isomax, value.filter((v) => v > 0).length]; })()"
        )
        assert least == pytest.approx(4 * low)
        assert opened.inner_text("#volume-surface-text") == f"{low:g} mag/kpc"
        return low, count

    low, seen = shown()
    acted(opened, lambda: opened.uncheck("#volume-seen"))
    assert shown()[0] == low and shown()[1] > seen
    opened.focus("#volume-surface")
    acted(opened, lambda: opened.keyboard.press("Home"))
    assert shown()[0] < low
    opened.click("#volume-home")
    picture = imread(io.BytesIO(opened.locator("#volume").screenshot()))
    # Ochre: red over green over blue.
    red, green, blue = np.moveaxis(picture[..., :3], 2, 0)
    assert ((red > green + 0.1) & (green > blue + 0.1)).mean() > 0.01


def test_a_browser_without_webgl_says_so(chromium, page_path):
    plain = ["--no-sandbox", "--disable-gpu", "--disable-3d-apis"]
    browser = chromium.browser_type.launch(executable_path=BROWSER, args=plain)
    page = browser.new_page()
    page.goto(page_path.as_uri())
    page.locator("#volume").scroll_into_view_if_needed()
    page.wait_for_selector("#volume[data-drawn]")
    assert "WebGL is not supported" in page.inner_text("#volume")
    assert page.is_hidden("#fault")
    browser.close()


def test_a_click_on_the_plane_shows_the_curve_of_query(opened, positive_run):
    opened.locator("#plane").scroll_into_view_if_needed()
    # A place of the figure towards l = 45 deg.
    box = opened.evaluate(
        "(() => { const { xaxis, yaxis } = plane._fullLayout, "
        "r = plane.getBoundingClientRect(); return [r.left + xaxis._offset + "
        "xaxis.d2p(150), r.top + yaxis._offset + yaxis.d2p(150)]; })()"
    )
    acted(opened, lambda: opened.mouse.click(*box))
    l, b = check_curve(opened, positive_run)  # noqa: E741
    assert 35 < l < 55 and abs(b) < 5


def test_a_click_on_the_sky_shows_the_curve_of_query(opened, positive_run):
    opened.locator("#sky").scroll_into_view_if_needed()
    box = opened.locator("#sky .nsewdrag").first.bounding_box()
    # Right of the middle: longitudes grow to the left.
    at = box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"]
    acted(opened, lambda: opened.mouse.click(*at))
    l, b = check_curve(opened, positive_run)  # noqa: E741
    assert 255 < l < 285 and abs(b) < 3


def test_positions_are_typed_as_people_write_them(opened):
    hours = ("hour", "deg")
    for typed, meant in (
        ("210 -19.4", SkyCoord(210, -19.4, unit="deg", frame="galactic")),
        ("l=30, b=\N{MINUS SIGN}2", SkyCoord(30, -2, unit="deg", frame="galactic")),
        ("05:35:17 -05:23", SkyCoord("05:35:17 -05:23:00", unit=hours)),
        ("210 -19.4", SkyCoord(210, -19.4, unit="deg", frame="galactic")),
        ("05 35 17 -05 23 00", SkyCoord("05:35:17 -05:23:00", unit=hours)),
        ("00:10:00 -00:30:00", SkyCoord("0h10m -0d30m")),
        ("5h35m17s -5d23m", SkyCoord("5h35m17s -5d23m")),
        ("ra 83.8 -5.4", SkyCoord(83.8, -5.4, unit="deg")),
        ("ra=10.5 dec=-0.5", SkyCoord(10.5, -0.5, unit="deg")),
    ):
        opened.fill("#ray-text", typed)
        acted(opened, lambda: opened.press("#ray-text", "Enter"))
        found = np.array(opened.input_value("#ray-text").split(), dtype=float)
        wanted = [meant.galactic.l.deg, meant.galactic.b.deg]
        np.testing.assert_allclose(found, wanted, atol=6e-4, err_msg=typed)


def test_what_is_no_position_is_said_so(opened):
    opened.fill("#ray-text", "M 31")
    opened.press("#ray-text", "Enter")
    assert "M 31" in opened.inner_text("#ray-read")
    assert opened.get_attribute("#ray-text", "aria-invalid") == "true"


def test_sliders_move_the_plane_and_the_sky_by_keyboard(opened):
    was = opened.get_attribute("#plane", "data-drawn")
    opened.focus("#plane-at")
    acted(opened, lambda: opened.keyboard.press("ArrowRight"))
    assert opened.get_attribute("#plane", "data-drawn") != was
    was = opened.get_attribute("#sky", "data-drawn")
    opened.focus("#sky-at")
    acted(opened, lambda: opened.keyboard.press("ArrowLeft"))
    assert opened.get_attribute("#sky", "data-drawn") != was


def test_every_view_and_array_is_drawn(opened):
    for part, select in (("plane", "view"), ("plane", "array"), ("sky", "array")):
        options = opened.locator(f"#{part}-{select} option").evaluate_all(
            "(all) => all.map((one) => one.value)"
        )
        assert len(options) > 2
        for value in options[::-1]:
            acted(
                opened,
                lambda: opened.select_option(f"#{part}-{select}", value),  # noqa: B023
            )
            drawn = opened.get_attribute(f"#{part}", "data-drawn")
            if (part, select) == ("plane", "array"):
                drawn = drawn.partition(" ")[2]
            assert drawn.startswith(f"{value} ")
    for control in ("#plane-log", "#sky-log", "#plane-clouds", "#plane-stars"):
        acted(opened, lambda: opened.check(control))  # noqa: B023
    acted(opened, lambda: opened.select_option("#sky-field", "10"))
    assert opened.is_hidden("#fault")


def test_samples_move(opened):
    opened.click("#plane-play")
    opened.wait_for_function("plane.dataset.drawn.includes('sample 2')")
    acted(opened, lambda: opened.click("#plane-play"))
    assert "mean" in opened.get_attribute("#plane", "data-drawn")


def test_the_address_holds_the_view(opened, chromium):
    opened.fill("#ray-text", "75 4")
    acted(opened, lambda: opened.press("#ray-text", "Enter"))
    acted(opened, lambda: opened.select_option("#plane-view", "l"))
    other = chromium.new_page()
    other.goto(opened.url)
    settle(other)
    for name in ("plane", "sky", "ray"):
        key = f"#{name}", "data-drawn"
        assert other.get_attribute(*key) == opened.get_attribute(*key)
    other.close()


def test_numbers_are_saved_with_units(opened, tmp_path):
    for button, lines in (("plane", 100), ("sky", 3072), ("ray", 20)):
        with opened.expect_download() as waiting:
            opened.click(f"#{button}-save")
        path = tmp_path / f"{button}.csv"
        waiting.value.save_as(path)
        text = path.read_text(encoding="utf-8")
        assert re.search(r"^# .*\[(mag|mag/kpc)\]", text, re.MULTILINE)
        values = np.genfromtxt(path, delimiter=",")
        assert len(values) >= lines
        if button == "ray":
            distance, shown = curve_shown(opened)[:, 1:]
            np.testing.assert_allclose(values[:, 0], distance, rtol=1e-5)
            names = re.search(r"columns: (.*)", text)[1].split(", ")
            median = values[:, names.index("median extinction [mag]")]
            np.testing.assert_allclose(median, shown, rtol=1e-5)
    with opened.expect_download() as waiting:
        opened.click("#ray-picture")
    waiting.value.save_as(tmp_path / "ray.png")
    assert (tmp_path / "ray.png").read_bytes()[:4] == b"\x89PNG"


def test_a_cloud_is_at_its_distance_with_the_interval_of_the_curve(
    opened, positive_run
):
    (l,), (b,), (distance,) = spherical(one_cloud.CENTRE[None])  # noqa: E741
    opened.fill("#ray-text", f"{l:.3f} {b:.3f}")
    acted(opened, lambda: opened.press("#ray-text", "Enter"))
    rows = [row.inner_text() for row in opened.locator("#ray-clouds tbody tr").all()]
    found = [[float(n) for n in re.findall(r"[\d.]+", row)] for row in rows]
    at, near, far, rise = max(found, key=lambda row: row[-1])
    assert near < at < far
    # Two cells of the map.
    assert abs(at - distance) < 140
    # The extinction passes half the rise there: at the ends that of the 68% band does.
    l, b = check_curve(opened, positive_run)  # noqa: E741
    ends = np.array([at, near, far])
    places = Places(l=0 * ends + l, b=0 * ends + b, distance=ends, shape=())
    asked = open_answers(positive_run.path).moments(
        places, ("p50", "p84", "p16"), integrated=True
    )
    level = asked["p50"][0]
    assert asked["p84"][1] == pytest.approx(level, rel=0.2)
    assert asked["p16"][2] == pytest.approx(level, rel=0.2)
    assert 0.3 * rise < level < 1.2 * rise


def test_stars_within_the_cone_are_those_of_the_table(opened, positive_run):
    from pipelines.catalog.schema import read_stars

    stars = read_stars(positive_run.path / "stars.parquet")
    opened.evaluate("document.getElementById('ray-cone').value = 3")
    acted(opened, lambda: opened.dispatch_event("#ray-cone", "input"))
    said = opened.inner_text("#ray-read").replace("\N{MINUS SIGN}", "-")
    l, b = map(float, re.search(r"l = (\S+)°, b = (\S+)°", said).groups())  # noqa: E741
    towards = SkyCoord(l, b, unit="deg", frame="galactic")
    every = SkyCoord(stars.l, stars.b, unit="deg", frame="galactic")
    away = every.separation(towards).deg
    count = int(re.search(r"(\d+) of the stars", said)[1])
    assert (away < 2.98).sum() <= count <= (away < 3.02).sum()


def test_empty_planes_and_zeros_in_logarithmic_colours_are_drawn(chromium, tmp_path):
    axis = np.arange(-300.0, 301.0, 30.0)
    z, y, x = np.meshgrid(axis, axis, axis, indexing="ij")
    inside = x**2 + y**2 + z**2 < 200**2
    mean = np.where(inside, 1e-3 * (x > 0), np.nan)
    write_fits(
        tmp_path / "map.fits", Cube(x=axis, y=axis, z=axis, arrays={"mean": mean})
    )
    path = write_view(open_answers(tmp_path / "map.fits"), tmp_path / "map.html")
    said, page = [], chromium.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{path.as_uri()}#z=300&at=39")
    settle(page)
    wrong = "z=1e9&at=99&field=7&b=99&view=no&log=0&skylog=0"
    for view in ("z=0&at=-1&log=1&skylog=1", wrong):
        assert page.is_hidden("#fault")
        acted(page, lambda: page.evaluate(f"location.hash = {view!r}"))  # noqa: B023
    assert page.is_hidden("#fault")
    page.close()
    assert not said


def test_a_served_page_computes_the_curve_of_the_very_direction(chromium, positive_run):
    source = open_answers(positive_run.path)
    said = []
    with make_server(source, view_page(source, served=True)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto(f"http://127.0.0.1:{server.server_port}/#l=33.3&b=1.7")
        settle(page)
        assert "33.30°, b = 1.70°" in page.inner_text("#ray-read")
        assert len(curve_shown(page)[0]) == 161
        check_curve(page, positive_run)
        for view in ("z", "l"):
            if view != "z":
                acted(page, lambda: page.select_option("#plane-view", "l"))
            own = page.evaluate("[plane.data[0].x, plane.data[0].y, plane.data[0].z]")
            level = source.cube()
            assert np.shape(own[2]) == (len(own[1]), len(own[0]))
            if view == "z":
                np.testing.assert_allclose(own[0], level.x)
                number = int(np.abs(level.z).argmin())
                mean = 1e3 * level.arrays["mean"][number]
                np.testing.assert_allclose(own[2], mean, rtol=1e-6)
            else:
                np.testing.assert_allclose(own[1], level.z)
        page.close()
        server.shutdown()
    assert not said


def test_it_fits_a_phone(opened):
    opened.set_viewport_size({"width": 390, "height": 800})
    opened.wait_for_timeout(300)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_icrs_is_rotated_as_by_astropy(opened):
    rows = opened.evaluate(
        "JSON.parse(document.getElementById('data').textContent).icrs"
    )
    towards = SkyCoord(123.4, 56.7, unit="deg").galactic
    own = SkyCoord(123.4, 56.7, unit="deg").cartesian.xyz.value
    np.testing.assert_allclose(
        np.array(rows) @ own, towards.cartesian.xyz.value, atol=1e-9
    )
