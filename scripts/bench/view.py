"""How fast the pages of `dustmap view` are in headless Chromium.

    python scripts/bench/view.py map.html [other.html ...]

The first picture is timed from the start of the navigation; a step is the time from a
slider's move to the drawn figure, median and largest of twenty.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from pipelines.base.table import Row, Table

STEPS = 20
# Notes when the first figure and all of them were drawn [ms].
WATCH = """
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  const now = performance.now(), drawn = document.querySelector(".plot[data-drawn]");
  if (drawn) window.firstPicture ??= now;
  if (document.body.dataset.drawn) window.allPictures ??= now;
}).observe(document.body, { attributes: true, subtree: true,
                            attributeFilter: ["data-drawn"] }));
"""
MOVE = """
async ([id, count]) => {
  const slider = document.getElementById(id), body = document.body, taken = [];
  const range = slider.max - slider.min;
  for (let n = 0; n < count; n++) {
    const before = Number(body.dataset.drawn);
    slider.value = Number(slider.min) + (n % 2 ? 0.3 : 0.7) * range + n * slider.step;
    const start = performance.now();
    slider.dispatchEvent(new Event("input"));
    while (Number(body.dataset.drawn) === before)
      await new Promise((done) => setTimeout(done, 1));
    taken.push(performance.now() - start);
  }
  return taken;
}
"""
SLIDERS = {"plane-at": "plane [ms]", "sky-at": "sky [ms]", "ray-cone": "cone [ms]"}


def measured(browser: Any, path: Path) -> Row:
    """Return the times of a page."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(WATCH)
    page.goto(path.resolve().as_uri())
    page.wait_for_function("window.allPictures")
    row: Row = {
        "page": path.name,
        "size [MB]": round(path.stat().st_size / 1e6, 1),
        "first picture [s]": round(page.evaluate("firstPicture") / 1e3, 2),
        "all pictures [s]": round(page.evaluate("allPictures") / 1e3, 2),
    }
    for slider, title in SLIDERS.items():
        if page.is_visible(f"#{slider}"):
            taken = page.evaluate(MOVE, [slider, STEPS])
            row[title] = f"{statistics.median(taken):.0f} ({max(taken):.0f})"
    page.close()
    return row


def main() -> None:
    """Print a table of the pages, with the load of the machine."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("pages", nargs="+", type=Path)
    pages = words.parse_args().pages
    found = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if found is None:
        raise SystemExit("expected chromium or google-chrome on the PATH")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        rows = [measured(browser, path) for path in pages]
    print(Table.of_rows(rows).text())
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
