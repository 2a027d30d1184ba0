"""Published maps fetched by name: a registry of places and hashes, resumable downloads.

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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pipelines.base.errors import InputError
from pipelines.base.progress import Progress
from pipelines.storage.atomic import atomic_directory, check_output
from pipelines.storage.digests import digest_of

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_TAR = (".tar", ".tar.gz", ".tgz")
_NEEDED, _MORE = ("url", "sha256", "citation"), ("description", "doi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A map in a registry: where it is, its SHA-256, and whom to cite."""

    name: str
    url: str
    sha256: str
    citation: str
    description: str = ""
    doi: str = ""

    @property
    def file(self) -> str:
        """Name of the file at the end of the URL."""
        return Path(unquote(urlparse(self.url).path)).name

    @property
    def product(self) -> str:
        """Usual name of the map: a folder without the ending of its archive."""
        endings = [ending for ending in _TAR if self.file.endswith(ending)]
        return self.file.removesuffix(endings[0]) if endings else self.file


def read_registry(place: str) -> dict[str, Published]:
    """Read the maps of a registry, a path or a URL, by name.

    Raises
    ------
    InputError
        If it cannot be read, or an entry lacks a key or has an unknown one.
    """
    try:
        with _opened(place) as (stream, _, _):
            entries = tomllib.loads(stream.read().decode()).get("maps", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place} is no registry of maps: {error}") from error
    if not entries:
        raise InputError(
            f"{place} names no map: expected tables [maps.NAME] with "
            f"{', '.join(_NEEDED)}"
        )
    found = {}
    for name, entry in entries.items():
        keys = set(entry) if isinstance(entry, dict) else set()
        for said, odd in (
            ("lacks", [key for key in _NEEDED if key not in keys]),
            ("has", sorted(keys - {*_NEEDED, *_MORE})),
        ):
            if odd:
                raise InputError(
                    f"{place}: [maps.{name}] {said} {', '.join(odd)}; expected "
                    f"{', '.join(_NEEDED)} and maybe {', '.join(_MORE)}"
                )
        found[name] = Published(name=name, **{k: str(v) for k, v in entry.items()})
        if len(found[name].sha256) != 64:
            raise InputError(
                f"{place}: [maps.{name}] sha256 is not 64 hexadecimal digits"
            )
    return found


def fetch(published: Published, output: Path, *, overwrite: bool = False) -> Path:
    """Download a map and verify it; an archive is unpacked.

    Bytes that came before an interruption stay in ``OUTPUT.part``, and only the rest is
    fetched again where the server can send a part.

    Raises
    ------
    InputError
        If the output exists, the URL cannot be read, or the file is not the one of the
        registry.
    """
    check_output(output, overwrite=overwrite)
    url, part = published.url, output.with_name(output.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    with (
        _opened(url, have) as (stream, start, size),
        part.open("ab") as file,
        Progress(description=f"fetching {published.file}", unit="bytes") as progress,
    ):
        file.truncate(start)
        progress.update(start)
        while chunk := stream.read(_CHUNK):
            progress.update(file.write(chunk))
        if size is not None and file.tell() < size:
            raise InputError(
                f"{url} broke off after {file.tell():,} of {size:,} bytes: call again "
                "to go on"
            )
    found = digest_of(part).sha256
    if found != published.sha256.lower():
        os.replace(part, wrong := output.with_name(output.name + ".wrong"))
        raise InputError(
            f"{url}: SHA-256 is {found}, the registry has {published.sha256}: the file "
            f"was changed or is damaged. It is in {wrong}; ask whoever keeps the "
            "registry, or delete it and try again"
        )
    if published.product == published.file:
        os.replace(part, output)
    else:
        _unpack(part, output, overwrite=overwrite)
        part.unlink()
    return output


@contextmanager
def _opened(place: str, start: int = 0) -> Iterator[tuple[Any, int, int | None]]:
    """Open a path or a URL from a byte on.

    Yields a binary stream, the byte from which it really is (0 where a server sends
    the whole), and the size of the whole if known.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    scheme = urlparse(place).scheme
    if scheme not in ("", "file", "http", "https", "ftp"):
        raise InputError(
            f"{place}: expected a path, or a URL of https, http, ftp, file"
        )
    url = place if scheme else Path(place).absolute().as_uri()
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        try:
            answer: Any = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            # All of it is there, or it has become shorter: verification decides.
            if error.code != 416:
                raise
            answer = urllib.request.urlopen(url, timeout=_TIMEOUT)
        with answer:
            begins = start if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            yield answer, begins, None if length is None else begins + int(length)
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{place} cannot be read ({error}): check the address and the network, "
            "then call again; what has come is kept"
        ) from error


def _unpack(archive: Path, output: Path, *, overwrite: bool) -> None:
    """Unpack the archive's one folder as ``output``: plain files, none outside it.

    By hand, since Python 3.11.2 has no filters of archives yet.
    """
    with (
        atomic_directory(output, overwrite=overwrite) as folder,
        tarfile.open(archive) as tar,
    ):
        parts = {item: Path(item.name).parts for item in tar}
        parts = {item: names for item, names in parts.items() if names}
        for item, names in parts.items():
            if not (item.isfile() or item.isdir()) or {"..", "/"} & {*names}:
                raise InputError(
                    f"{archive}: the entry {item.name!r} is not a plain file or folder "
                    "inside the archive's own folder"
                )
        tops = {names[0] for names in parts.values()}
        if len(tops) != 1:
            raise InputError(
                f"{archive} holds {len(tops)} folders, expected one: a map.zarr"
            )
        for item, names in parts.items():
            place, content = folder.joinpath(*names[1:]), tar.extractfile(item)
            if content is None:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with content, place.open("xb") as file:
                shutil.copyfileobj(content, file)
