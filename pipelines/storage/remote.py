"""Map stores in a zip file or on a server: read chunk by chunk by fsspec.

``map.zarr.zip``, ``https://host/map.zarr``, ``s3://bucket/map.zarr``, or a zip there.
The manifest says which files there are, so that no server has to list them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.base.errors import InputError
from pipelines.storage.atomic import MANIFEST, MARKER


def is_remote(place: str | Path) -> bool:
    """Return true for a URL, or a zip file."""
    text = str(place)
    return "://" in text or (text.endswith(".zip") and Path(text).is_file())


class RemoteFolder:
    """The files of a folder on a server or in a zip, by their names in it.

    Raises `InputError` if it cannot be reached, or is no complete map store.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        with self._reading():
            import fsspec

            url = f"zip::{place}" if place.endswith(".zip") else place
            self.files: Any = fsspec.get_mapper(url)
            if place.endswith(".zip"):
                # Zips of a folder have it as their one entry.
                tops = {name.split("/")[0] for name in self.files}
                if len(tops) == 1:
                    self.files = fsspec.FSMap(tops.pop(), self.files.fs)
            content, marker = (self.files.get(name) for name in (MANIFEST, MARKER))
        if content is None or marker is None:
            raise InputError(
                f"{place} is no complete map store: it has no {MANIFEST} and {MARKER}; "
                "expected the folder that `dustmap export --zarr` writes"
            )
        if marker.decode().strip() != hashlib.sha256(content).hexdigest():
            raise InputError(f"{place} is altered: {MANIFEST} and {MARKER} disagree")
        self.digests = {
            name: str(entry["sha256"])
            for name, entry in json.loads(content)["files"].items()
        }

    def __reduce__(self) -> Any:
        return RemoteFolder, (self.place,)

    def read(self, name: str) -> bytes:
        """Return a file's content; raises `InputError` if it is missing or altered."""
        with self._reading():
            content = self.files.get(name)
        if content is None:
            raise InputError(f"{self.place} lacks {name}: restore it from a copy")
        if hashlib.sha256(content).hexdigest() != self.digests[name]:
            raise InputError(f"{self.place}: {name} is altered: restore it from a copy")
        return content

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a temporary copy of all files."""
        with TemporaryDirectory(prefix="dustmap-") as temporary:
            folder = Path(temporary) / "map.zarr"
            for name in self.digests:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(self.read(name))
            for name in (MANIFEST, MARKER):
                (folder / name).write_bytes(self.files[name])
            yield folder

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise InputError(
                f"{self.place} needs a package ({error}): pip install 'dustmap[remote]'"
            ) from error
        except Exception as error:  # servers' clients have no common base
            raise InputError(f"{self.place} cannot be read: {error}") from error
