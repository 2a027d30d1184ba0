"""Fetching of published maps by name, from a registry of URLs and hashes.

A registry is TOML, a table for each map::

    [maps.near]
    url = "https://example.org/records/1/near.zarr.tar"   # or file:///data/near.fits
    sha256 = "9f86d0..."
    citation = "Doe 2026, doi:10.5281/zenodo.1"
    description = "A_V within 1 kpc"                       # may be left out
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.base.errors import InputError
from pipelines.base.progress import Progress
from pipelines.storage.atomic import atomic_directory, atomic_file, check_output
from pipelines.storage.digests import digest_of

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_TAR = (".tar", ".tar.gz", ".tgz")


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
        endings = [ending for ending in _TAR if self.file.endswith(ending)]
        return self.file.removesuffix(endings[0]) if endings else self.file


def read_registry(place: str) -> dict[str, Published]:
    """Read the maps of a registry, a path or a URL, by name.

    Raises
    ------
    InputError
        If the registry cannot be read, or an entry has missing or unknown keys.
    """
    try:
        with _opened(place) as stream:
            entries = tomllib.loads(stream.read().decode())["maps"]
        return {name: Published(name=name, **entries[name]) for name in entries}
    except (KeyError, TypeError, ValidationError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{place} is no registry of maps: expected tables [maps.NAME] with url, "
            f"sha256, citation and maybe description, doi ({error})"
        ) from error


def fetch(published: Published, output: Path, *, overwrite: bool = False) -> Path:
    """Download and verify a map, and unpack an archive.

    Raises
    ------
    InputError
        If the output exists, the URL cannot be read, or the hash differs from the
        registry's.
    """
    check_output(output, overwrite=overwrite)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".fetch") as folder:
        part = Path(folder) / "part"
        with (
            _opened(published.url) as stream,
            part.open("wb") as file,
            Progress(description=f"fetching {published.file}", unit="bytes") as shown,
        ):
            while chunk := stream.read(_CHUNK):
                shown.update(file.write(chunk))
        found = digest_of(part).sha256
        if found != published.sha256.lower():
            raise InputError(
                f"{published.url}: SHA-256 is {found}, the registry has "
                f"{published.sha256}: the download broke off, or the file was changed. "
                "Try again, or ask whoever keeps the registry"
            )
        if published.product != published.file:
            _unpack(part, output, overwrite=overwrite)
        else:
            with atomic_file(output, overwrite=overwrite) as temporary:
                os.replace(part, temporary)
    return output


@contextmanager
def _opened(place: str) -> Iterator[Any]:
    """Open a path or a URL as a binary stream.

    Raises
    ------
    InputError
        If the place cannot be read.
    """
    scheme = urlparse(place).scheme
    if scheme not in ("", "file", "http", "https", "ftp"):
        raise InputError(
            f"{place}: expected a path, or a URL of https, http, ftp, file"
        )
    url = place if scheme else Path(place).absolute().as_uri()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as stream:
            yield stream
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{place} cannot be read ({error}): check the address and the network, "
            "then call again"
        ) from error


def _unpack(archive: Path, output: Path, *, overwrite: bool) -> None:
    """Unpack the archive's single folder as ``output``, with plain files inside it."""
    with (
        atomic_directory(output, overwrite=overwrite) as folder,
        tarfile.open(archive) as tar,
    ):
        # Python 3.11.2 lacks filters of archives.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tops, items = set(), []
        for item in tar:
            top, *rest = Path(item.name).parts or ("",)
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
