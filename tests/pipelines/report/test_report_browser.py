"""The report opens from disk in headless Chromium, asks no network, and is drawn."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader "
    "--enable-logging=stderr --v=0 --hide-scrollbars --virtual-time-budget=60000 "
    "--window-size=900,2600"
)
# What no host may answer: the browser's own requests, too.
NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND"
# Shows two sections, turns the controls as a reader would, and writes down what came
# of it.
PROBE = """
<style>section:not(:has(#overview)):not(:has(#three-d)) { display: none }</style>
<script>
(function () {
  const view = document.getElementById("view"), seen = [];
  const level = document.getElementById("view-level");
  const hide = document.getElementById("view-seen");
  function note() {
    const trace = view.data[0], values = Array.from(trace.value);
    seen.push({ low: trace.isomin, positive: values.filter((v) => v > 0).length,
                text: document.getElementById("view-level-text").textContent });
  }
  function turn(control) { control.dispatchEvent(new Event("change")); }
  const steps = [
    () => { hide.checked = false; turn(hide); },
    () => { level.value = 0; turn(level); },
  ];
  function wait() {
    if (view.dataset.state === "failed") return;
    if (view.dataset.state !== "drawn") { setTimeout(wait, 50); return; }
    note();
    const step = steps.shift();
    if (step) { step(); setTimeout(wait, 50); return; }
    document.body.dataset.probe = JSON.stringify(seen);
  }
  wait();
})();
</script>
"""

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs chromium or google-chrome on the PATH"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the browser made of the page."""

    document: str
    said: str
    requests: list[str]
    picture: np.ndarray


def browse(page: Path, folder: Path) -> Opened:
    """Open a page in a new profile; its document, console, requests and picture."""
    log, shot = folder / "net.json", folder / "shot.png"
    words = [BROWSER, *OPTIONS.split(), f"--user-data-dir={folder / 'profile'}"]
    words += [f"--log-net-log={log}", f"--screenshot={shot}", "--dump-dom"]
    words += [NOWHERE, page.as_uri()]
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Opened(
        document=done.stdout,
        said=done.stderr,
        requests=addresses(log.read_text(encoding="utf-8")),
        picture=imread(shot)[..., :3],
    )


def addresses(log: str) -> list[str]:
    """Every address that a page asked for; the browser's own have no origin."""
    told = [event.get("params", {}) for event in json.loads(log)["events"]]
    asked = [one for one in told if "initiator" in one and "url" in one]
    return [one["url"] for one in asked if one["initiator"] != "not an origin"]


@pytest.fixture(scope="module")
def opened(report_page, tmp_path_factory):
    """The page of a small run with a script in it that turns its controls."""
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "report.html"
    text = report_page.read_text(encoding="utf-8")
    path.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return browse(path, folder)


def test_the_view_is_drawn_without_an_error(opened):
    view = re.search(r'<div id="view"[^>]*>', opened.document)
    assert view is not None and 'data-state="drawn"' in view[0]
    inside = opened.document[view.end() :]
    assert inside.index("<canvas") < inside.index('id="view-fault"')
    assert re.search(r'<p id="view-fault"[^>]*hidden', opened.document)
    console = [line for line in opened.said.splitlines() if ":CONSOLE:" in line]
    for line in console:
        assert not re.search(r"Uncaught|Refused|TypeError|Content Security", line), line


def test_nothing_is_asked_of_a_network(opened):
    assert not opened.requests


def test_a_page_that_asked_a_network_would_be_noticed(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<img src="http://elsewhere.example/picture.png">')
    assert browse(page, tmp_path).requests == ["http://elsewhere.example/picture.png"]


def test_the_controls_choose_the_level_and_hide_what_nobody_sees(opened):
    found = re.search(r'data-probe="([^"]*)"', opened.document)
    assert found is not None
    hidden, shown, lowest = json.loads(found[1].replace("&quot;", '"'))
    assert hidden["positive"] < shown["positive"] == lowest["positive"]
    assert lowest["low"] < shown["low"] == hidden["low"]
    assert lowest["text"] == f"{lowest['low']} mag/kpc"


def test_the_picture_has_text_and_surfaces(opened):
    picture = opened.picture
    grey = np.ptp(picture, axis=2) < 0.05
    dark = grey & (picture.mean(axis=2) < 0.3)
    assert 0.001 < dark.mean() < 0.3
    # The surfaces' ochre: red over green over blue.
    red, green, blue = np.moveaxis(picture, 2, 0)
    ochre = (red > green + 0.1) & (green > blue + 0.1)
    rows, columns = np.nonzero(ochre)
    assert ochre.mean() > 0.01
    assert np.ptp(rows) > 100 and np.ptp(columns) > 100
