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
from pipelines.base.progress import say
from pipelines.storage.atomic import atomic_directory, atomic_file, check_output

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
    with TemporaryDirectory() as folder:
        content = _retrieve(place, None, Path(folder)).read_bytes()
    try:
        entries = tomllib.loads(content.decode())["maps"]
        return {name: Published(name=name, **entries[name]) for name in entries}
    except (KeyError, TypeError, ValidationError, ValueError) as error:
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
    say(f"fetching {published.url}")
    with TemporaryDirectory(dir=output.parent, prefix=".fetch") as folder:
        part = _retrieve(published.url, published.sha256, Path(folder))
        if published.product != published.file:
            _unpack(part, output, overwrite=overwrite)
        else:
            with atomic_file(output, overwrite=overwrite) as temporary:
                os.replace(part, temporary)
    return output


def _retrieve(place: str, sha256: str | None, folder: Path) -> Path:
    """Copy a path or a URL into ``folder``, and compare its SHA-256 if given.

    Raises
    ------
    InputError
        If the place cannot be read, or has another SHA-256.
    """
    url = place if urlparse(place).scheme else Path(place).absolute().as_uri()
    # Its log would name the temporary folder.
    pooch.get_logger().setLevel("WARNING")
    # pooch itself reads http, https, ftp and DOIs.
    copied: Any = _copy if url.startswith("file:") else None
    try:
        return Path(pooch.retrieve(url, sha256, "part", folder, downloader=copied))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{place} cannot be fetched: {error}. Check the address and the network, "
            "or ask whoever keeps the registry"
        ) from error


def _copy(url: str, output: str, _: object) -> None:
    shutil.copyfile(url2pathname(urlparse(url).path), output)


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
