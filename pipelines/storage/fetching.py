"""Published maps fetched by name: a registry of places and hashes, resumable downloads.

A registry is TOML, a table for each map::

    [maps.near]
    url = "https://example.org/records/1/near.zarr.tar"   # or file:///data/near.fits
    sha256 = "9f86d0..."
    citation = "Doe 2026, doi:10.5281/zenodo.1"
    description = "A_V within 1 kpc"                       # may be left out
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlparse

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_directory, check_output

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_PART, _TAR = ".part", (".tar", ".tar.gz", ".tgz")
_NEEDED, _MORE = ("url", "sha256", "citation"), ("description", "doi")

Progress = Callable[[int], None]


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
    def is_archive(self) -> bool:
        """Whether it is a folder inside a tar archive."""
        return self.file.endswith(_TAR)

    @property
    def product(self) -> str:
        """Usual name of what it becomes."""
        for ending in _TAR:
            if self.file.endswith(ending):
                return self.file.removesuffix(ending)
        return self.file


def read_registry(place: str) -> dict[str, Published]:
    """The maps of a registry by name.

    Parameters
    ----------
    place
        Path or URL of the file.

    Raises
    ------
    InputError
        If it cannot be read, or an entry lacks something or says something unknown.
    """
    try:
        with _opened(place, 0) as (stream, _, _):
            content = tomllib.loads(stream.read().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place} is no registry of maps: {error}") from error
    entries = content.get("maps", {})
    if not entries:
        raise InputError(
            f"{place} names no map: expected tables [maps.NAME] with "
            f"{', '.join(_NEEDED)}"
        )
    return {name: _entry(place, name, entry) for name, entry in entries.items()}


def fetch(
    published: Published,
    output: Path,
    *,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
) -> Path:
    """Download a map and verify it; an archive is unpacked.

    What came before an interruption is kept in ``OUTPUT.part`` and not fetched again.

    Parameters
    ----------
    progress
        Called with the bytes that are there.

    Raises
    ------
    InputError
        If the output exists, the URL cannot be read, or the file is not the one of the
        registry.
    """
    check_output(output, overwrite=overwrite)
    part = output.with_name(output.name + _PART)
    _download(published.url, part, progress)
    found = _sha256(part)
    if found != published.sha256.lower():
        os.replace(part, wrong := output.with_name(output.name + ".wrong"))
        raise InputError(
            f"{published.url}: SHA-256 is {found}, the registry has "
            f"{published.sha256}: the file was changed or is damaged. It is in "
            f"{wrong}; ask whoever keeps the registry, or delete it and try again"
        )
    if published.is_archive:
        _unpack(part, output, overwrite=overwrite)
        part.unlink()
    else:
        os.replace(part, output)
    return output


def _entry(place: str, name: str, entry: Any) -> Published:
    known = {*_NEEDED, *_MORE}
    missing = [
        key for key in _NEEDED if not isinstance(entry, dict) or key not in entry
    ]
    odd = [] if missing else sorted(set(entry) - known)
    if missing or odd:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(odd)}"
        raise InputError(
            f"{place}: [maps.{name}] {what}; expected {', '.join(_NEEDED)} and maybe "
            f"{', '.join(_MORE)}"
        )
    if len(str(entry["sha256"])) != 64:
        raise InputError(f"{place}: [maps.{name}] sha256 is not 64 hexadecimal digits")
    return Published(name=name, **{key: str(value) for key, value in entry.items()})


def _download(url: str, part: Path, progress: Progress) -> None:
    """Go on where the part ends; from the start where a server cannot."""
    have = part.stat().st_size if part.exists() else 0
    with _opened(url, have) as (stream, start, size), part.open("ab") as file:
        file.truncate(start)
        progress(start)
        while chunk := stream.read(_CHUNK):
            file.write(chunk)
            progress(file.tell())
        if size is not None and file.tell() < size:
            raise InputError(
                f"{url} broke off after {file.tell():,} of {size:,} bytes: call again "
                "to go on"
            )


@contextmanager
def _opened(place: str, start: int) -> Iterator[tuple[BinaryIO, int, int | None]]:
    """A file or a URL from a byte on, the byte from which it really is, and its size.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    parsed = urlparse(place)
    if parsed.scheme not in ("", "file", "http", "https", "ftp"):
        raise InputError(
            f"{place}: expected a path, or a URL of https, http, ftp, file"
        )
    try:
        if parsed.scheme in ("", "file"):
            path = Path(unquote(parsed.path)) if parsed.scheme else Path(place)
            with path.open("rb") as file:
                size = path.stat().st_size
                file.seek(start if start <= size else 0)
                yield file, file.tell(), size
            return
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = urllib.request.Request(place, headers=headers)
        try:
            answer: Any = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            # All of it is there, or it has become shorter: verification decides.
            if error.code != 416:
                raise
            answer = urllib.request.urlopen(place, timeout=_TIMEOUT)
        with answer:
            begins = start if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            yield answer, begins, None if length is None else begins + int(length)
    except (OSError, HTTPException) as error:
        raise InputError(
            f"{place} cannot be read ({error}): check the address and the network, "
            "then call again; what has come is kept"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
