"""Fetching of published maps by name, from a registry of URLs and hashes.

A registry is TOML, a table for each map::

    [maps.near]
    url = "https://example.org/records/1/near.zarr.tar"   # or file:///data/near.fits
    sha256 = "9f86d0..."
    citation = "Doe 2026, doi:10.5281/zenodo.1"
    description = "A_V within 1 kpc"                       # may be left out
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

import pooch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.base.errors import InputError
from pipelines.base.progress import doing, say
from pipelines.storage.atomic import atomic_directory, atomic_file, check_output

MAX_GIB = 20.0
"""Default limit of a map's size [GiB]: maps of the Galaxy have 0.1 to 15."""


class Published(BaseModel):
    """A map in a registry: its URL, SHA-256 and citation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    url: str
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
    citation: str
    description: str = ""
    doi: str = ""

    @property
    def file(self) -> str:
        """Name of the file at the end of the URL."""
        return Path(unquote(urlparse(self.url).path)).name

    @property
    def product(self) -> str:
        """Default name of the map: a folder without the suffix of its archive."""
        return re.sub(r"\.(tar|tar\.gz|tgz)$", "", self.file)


def read_registry(place: str) -> dict[str, Published]:
    """Read the maps of a registry, a path or a URL, by name.

    Raises `InputError` if the registry cannot be read, or an entry has missing or
    unknown keys.
    """
    with TemporaryDirectory() as folder:
        content = _retrieve(place, None, Path(folder), MAX_GIB).read_bytes()
    try:
        entries = tomllib.loads(content.decode())["maps"]
        return {name: Published(name=name, **entries[name]) for name in entries}
    except (KeyError, TypeError, ValidationError, ValueError) as error:
        raise InputError(
            f"{place} is no registry of maps: expected tables [maps.NAME] with url, "
            f"sha256, citation and maybe description, doi ({error})"
        ) from error


def fetch(
    published: Published,
    output: Path,
    *,
    max_gib: float = MAX_GIB,
    overwrite: bool = False,
) -> Path:
    """Download and verify a map, and unpack an archive.

    Raises `InputError` if the output exists, the URL cannot be read, the hash differs
    from the registry's, or the file or the content of its archive exceeds ``max_gib``.
    """
    check_output(output, overwrite=overwrite)
    say(f"fetching {published.url}")
    with TemporaryDirectory(dir=output.parent, prefix=".fetch") as folder:
        part = _retrieve(published.url, published.sha256, Path(folder), max_gib)
        if published.product != published.file:
            _unpack(part, output, max_gib, overwrite=overwrite)
        else:
            with atomic_file(output, overwrite=overwrite) as temporary:
                os.replace(part, temporary)
    return output


def _require_room(size: int, what: str, gib: float) -> None:
    """Raise `InputError` if a size [bytes] exceeds a limit [GiB]."""
    if size > gib * 2**30:
        raise InputError(
            f"{what} has more than the limit of {gib:.3g} GiB: raise it with --max-gib "
            "if you trust the source"
        )


def _retrieve(place: str, sha256: str | None, folder: Path, gib: float) -> Path:
    """Copy a path or a URL into ``folder``, and compare its SHA-256 if given.

    Bytes are counted as they arrive; a size stated by a server is checked before.

    Raises `InputError` if the place cannot be read, exceeds a size [GiB] or has another
    SHA-256.
    """
    url = place if urlparse(place).scheme else Path(place).absolute().as_uri()
    # Its log would name the temporary folder.
    pooch.get_logger().setLevel("WARNING")

    def check(response: Any, *_: Any, **__: Any) -> None:
        _require_room(int(response.headers.get("Content-Length", 0)), place, gib)

    def download(url: str, output: Any, pup: Any) -> None:
        limited: Any
        with _Limited(output, place, gib) as limited:
            if url.startswith("file:"):
                with open(url2pathname(urlparse(url).path), "rb") as source:
                    shutil.copyfileobj(source, limited)
            elif url.startswith("http"):
                pooch.HTTPDownloader(hooks={"response": check})(url, limited, pup)
            else:
                # pooch itself reads ftp and DOIs.
                pooch.downloaders.choose_downloader(url)(url, limited, pup)

    copy: Any = download
    try:
        return Path(pooch.retrieve(url, sha256, "part", folder, downloader=copy))
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"{place} cannot be fetched: {error}. Check the address and the network, "
            "or ask whoever keeps the registry"
        ) from error


class _Limited(io.BufferedWriter):
    """A file that refuses more than a number of GiB."""

    def __init__(self, path: str, what: str, gib: float) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._what, self._gib = what, gib

    def write(self, data: Any) -> int:
        """Write bytes; raises `InputError` beyond the limit."""
        _require_room(self.tell() + len(data), self._what, self._gib)
        doing(f"{self.tell() / 2**20:.0f} MiB of {self._what}")
        return super().write(data)


def _unpack(archive: Path, output: Path, gib: float, *, overwrite: bool) -> None:
    """Unpack the archive's single folder as ``output``, with plain files inside it."""
    with (
        atomic_directory(output, overwrite=overwrite) as folder,
        tarfile.open(archive) as tar,
    ):
        # Python 3.11.2 lacks filters of archives.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tops, items, size = set(), [], 0
        for item in tar:
            top, *rest = Path(item.name).parts or ("",)
            if Path(item.name).name.startswith("."):
                # Archives made on macOS have such a companion of every file.
                continue
            size += item.size
            _require_room(size, f"the content of {archive.name}", gib)
            if not (item.isfile() or item.isdir()) or {"..", "/"} & {top, *rest}:
                raise InputError(
                    f"{archive}: the entry {item.name!r} is not a plain file or folder "
                    "inside the archive's own folder"
                )
            tops |= {top} - {""}
            if rest:
                item.name = "/".join(rest)
                items.append(item)
        if len(tops) != 1:
            raise InputError(
                f"{archive} holds {len(tops)} folders, expected one: a map.zarr"
            )
        tar.extractall(folder, members=items)
