"""The page on this machine: curves of any direction, planes of the map's own cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.table import strict_json
from pipelines.cubes.cube import Cube
from pipelines.cubes.thinned import shown_levels
from pipelines.maps.answers import Answers, MissingError, extinctions_along
from pipelines.maps.places import Places
from pipelines.view.data import shown_arrays

# Distances of a curve: finer than the page's own.
_NODES = 160


class _Handler(BaseHTTPRequestHandler):
    """Answers ``/`` with the page; ``/curve?l=..&b=..`` [deg] with a curve.

    ``/plane?level=..&array=..&view=z&at=..`` is answered with a plane of ``levels``.
    """

    def __init__(
        self,
        source: Answers,
        page: bytes,
        levels: Sequence[Cube],
        *args: Any,
    ) -> None:
        self._source, self._page, self._levels = source, page, levels
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer a request of this machine's browser."""
        asked = urlsplit(self.path)
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in ("localhost", "127.0.0.1"):
            # Another site's name that points at this machine.
            self._send(403, "text/plain", b"this page is for this machine alone")
        elif asked.path == "/":
            self._send(200, "text/html; charset=utf-8", self._page)
        elif asked.path in ("/curve", "/plane"):
            try:
                given = dict(parse_qsl(asked.query))
                if asked.path == "/curve":
                    towards = float(given["l"]), float(given["b"])
                    answer = curve(self._source, *towards)
                else:
                    level = self._levels[int(given["level"])]
                    how = given["view"], float(given["at"])
                    answer = plane(level, given["array"], *how)
            except (InputError, ValueError, KeyError, IndexError) as error:
                self._send(400, "text/plain", f"{error}".encode())
            else:
                content = json.dumps(strict_json(answer)).encode()
                self._send(200, "application/json", content)
        else:
            self._send(404, "text/plain", b"there are /, /curve and /plane")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def curve(
    source: Answers,
    l: float,  # noqa: E741
    b: float,
) -> dict[str, Any]:
    """Return the extinction towards a direction [deg] as far as the map goes.

    Values outside the map are NaN. Raises `InputError` if b is no latitude.
    """
    if not (np.isfinite(l) and -90 <= b <= 90):
        raise InputError(f"expected l and -90 <= b <= 90 deg, got {l:g} and {b:g}")
    towards = unit_vectors(np.array([l]), np.array([b]))
    place = Places.of_points(towards)
    end = min(float(source.reach(place)[0]), 2.0 * source.extent)
    distances = np.linspace(0.0, end, _NODES + 1)[1:]
    found = extinctions_along(source, towards, distances)
    return {
        "distances": distances.tolist(),
        "arrays": {name: values[:, 0].tolist() for name, values in found.items()},
        "last": float(source.last_star(place)[0]),
    }


def plane(cube: Cube, name: str, view: str, at: float) -> dict[str, Any]:
    """Return the cells of a plane of an array of `shown_arrays`, and which are seen.

    ``view`` is ``z``, the cells nearest to z = ``at`` [pc], or ``l``: a vertical plane
    through the Sun at this longitude [deg], interpolated. Raises `KeyError` without
    such an array.
    """
    values = shown_arrays(cube)[name]
    support = cube.arrays.get("support", np.ones(cube.shape))
    if view == "z":
        number = int(np.abs(cube.z - at).argmin())
        across, up, at = cube.x, cube.y, float(cube.z[number])
        rows, seen = values[number], support[number]
    else:
        step = cube.spacing[0]
        ends = np.abs([cube.x[0], cube.x[-1], cube.y[0], cube.y[-1]])
        count = int((ends.max() + step / 2) / step)
        across, up = step * np.arange(-count, count + 1), cube.z
        along = across[:, None] * unit_vectors(np.array([at]), np.zeros(1))
        points = np.repeat(along[None], len(up), axis=0)
        points[..., 2] = up[:, None]
        level = replace(cube, arrays={"shown": values, "support": support}, finer=())
        rows, seen = (level.sample(each, points) for each in ("shown", "support"))
    return {
        "across": across.tolist(),
        "up": up.tolist(),
        "at": at,
        "rows": rows.tolist(),
        "seen": (np.nan_to_num(seen) > 0).tolist(),
    }


def make_server(source: Answers, page: str, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page at 127.0.0.1; port 0 is any free one."""
    try:
        cube = source.cube()
        levels = [cube.levels[number] for number in shown_levels(cube).values()]
    except MissingError:
        levels = []
    handler = partial(_Handler, source, page.encode("utf-8"), levels)
    return ThreadingHTTPServer(("127.0.0.1", port), handler)
