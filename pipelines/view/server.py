"""The page on this machine, with curves computed for every direction asked for."""

from __future__ import annotations

import json
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.maps.answers import Answers
from pipelines.maps.foreign import extinctions_along
from pipelines.maps.places import Places

# Distances of a curve: finer than the page's own.
_NODES = 160


class _Handler(BaseHTTPRequestHandler):
    """Answers ``/`` with the page, and ``/curve?l=..&b=..`` [deg] with a curve."""

    def __init__(self, source: Answers, page: bytes, *args: Any) -> None:
        self._source, self._page = source, page
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
        elif asked.path == "/curve":
            try:
                given = parse_qs(asked.query)
                answer = curve(self._source, float(given["l"][0]), float(given["b"][0]))
            except (InputError, ValueError, KeyError) as error:
                self._send(400, "text/plain", f"{error}".encode())
            else:
                self._send(200, "application/json", json.dumps(answer).encode())
        else:
            self._send(404, "text/plain", b"there is / and /curve?l=..&b=..")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal quiet."""

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def curve(source: Answers, l: float, b: float) -> dict[str, Any]:  # noqa: E741
    """Return the extinction towards a direction [deg] as far as the map goes.

    Values outside the map are null. Raises `InputError` if b is no latitude.
    """
    if not (np.isfinite(l) and -90 <= b <= 90):
        raise InputError(f"expected l and -90 <= b <= 90 deg, got {l:g} and {b:g}")
    towards = unit_vectors(np.array([l]), np.array([b]))
    place = Places.of_points(towards)
    end = min(float(source.reach(place)[0]), 2.0 * source.extent)
    distances = np.linspace(0.0, end, _NODES + 1)[1:]
    found = extinctions_along(source, towards, distances)
    last = float(source.last_star(place)[0])
    return {
        "distances": distances.tolist(),
        "arrays": {
            name: [float(v) if np.isfinite(v) else None for v in values[:, 0]]
            for name, values in found.items()
        },
        "last": last if np.isfinite(last) else None,
    }


def make_server(source: Answers, page: str, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page at 127.0.0.1; port 0 is any free one."""
    handler = partial(_Handler, source, page.encode("utf-8"))
    return ThreadingHTTPServer(("127.0.0.1", port), handler)
