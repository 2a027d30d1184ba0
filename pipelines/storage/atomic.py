"""Atomic writing of files and folders.

A single file is written under a temporary name, synced to disk and renamed. A folder is
written likewise, with a manifest of the SHA-256 and size of every file and a completion
marker written last, so that readers recognize incomplete or altered folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.base.errors import InputError
from pipelines.storage.digests import FileDigest, digest_of, visible_files

AnyPath = str | os.PathLike[str]
MANIFEST = "manifest.json"
MARKER = "COMPLETE"
_FORMAT = 1
# Suffix of incomplete files.
_PART = ".part"
# Suffix of files that are moved aside for them.
_OLD = ".old"


@contextmanager
def atomic_file(path: AnyPath, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success fsync and rename it there.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, is a folder, or
    its folder cannot be written. Whatever fails inside the block leaves ``path`` as it
    was.
    """
    target = Path(path)
    check_output(target, overwrite=overwrite)
    if target.is_dir():
        raise InputError(f"{target} is a folder, expected the name of a file")
    with _beside(target) as temporary:
        yield temporary
        _fsync(temporary)
        os.replace(temporary, target)
        _fsync(target.parent)


@contextmanager
def atomic_directory(
    path: AnyPath, *, overwrite: bool, within: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary directory beside ``path``, and rename it there on success.

    An existing directory is moved aside before and removed after, so that a killed run
    leaves the old one, the new one or none, never a mixture. Temporary files are
    ``within`` another folder of the same file system, if given: `restore_retired` and
    `remove_parts` clean it up after a killed run.
    """
    target = Path(path)
    check_output(target, overwrite=overwrite)
    with _beside(target, within) as temporary:
        temporary.mkdir()
        holder = temporary.parent
        retired = holder.with_name(holder.name + _OLD)
        try:
            yield temporary
            for item in (*temporary.rglob("*"), temporary):
                _fsync(item)
            if target.exists():
                os.replace(target, retired)
            os.replace(temporary, target)
            _fsync(target.parent)
        finally:
            if retired.exists():
                if target.exists():
                    remove(retired)
                else:
                    os.replace(retired, target)


def remove_directory(path: Path) -> None:
    """Remove a folder so that a killed run leaves it complete or hidden."""
    with _beside(path) as hidden:
        os.replace(path, hidden)


def restore_retired(folder: Path, target: Path) -> None:
    """Restore a directory moved aside ``within`` a folder by a killed writer."""
    for retired in sorted(folder.glob(f".{target.name}.*{_PART}{_OLD}")):
        if not target.exists():
            os.replace(retired, target)


def remove_parts(folder: Path) -> None:
    """Remove partial files of killed writers from an unused folder."""
    for part in [*folder.glob(f".*{_PART}"), *folder.glob(f".*{_PART}{_OLD}")]:
        remove(part)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_manifest(directory: AnyPath) -> None:
    """Record every file under ``directory``, then mark the directory complete.

    ``manifest.json`` holds the SHA-256 and size of each file by its relative path;
    ``COMPLETE`` holds the manifest's own hash and is written last. A marker from an
    earlier call is removed first, so that a run killed in between leaves none.
    """
    folder = Path(directory)
    (folder / MARKER).unlink(missing_ok=True)
    digests = {name: digest_of(folder / name) for name in _file_names(folder)}
    for name in digests:
        _fsync(folder / name)
    files = {name: asdict(digest) for name, digest in digests.items()}
    record = {"format": _FORMAT, "files": files}
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    marker = hashlib.sha256(text.encode()).hexdigest() + "\n"
    for name, content in ((MANIFEST, text), (MARKER, marker)):
        with atomic_file(folder / name, overwrite=True) as temporary:
            temporary.write_text(content)


def check_manifest(
    directory: AnyPath,
    *,
    allow_extra: bool = False,
    hashed: Collection[str] | None = None,
) -> dict[str, FileDigest]:
    """Compare a directory with its manifest, and return the manifest.

    ``allow_extra`` accepts unlisted files; of files other than those ``hashed``, if
    given, only presence and size are compared.

    Raises `InputError` if the marker or manifest is missing or damaged, or files are
    missing, altered or (unless allowed) extra; the message names five of them.
    """
    folder, faults = Path(directory), []
    listed, present = _read_manifest(folder), set(_file_names(folder))
    for name in sorted(listed.keys() | present):
        if name not in present:
            faults.append(f"missing: {name}")
        elif name not in listed:
            faults += [] if allow_extra else [f"not in the manifest: {name}"]
        else:
            same = (folder / name).stat().st_size == listed[name].size
            wanted = hashed is None or name in hashed
            if not same or (wanted and digest_of(folder / name) != listed[name]):
                faults.append(f"altered: {name}")
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise _altered(folder, "; ".join(faults[:5]) + more)
    return listed


def marker_of(folder: AnyPath) -> str:
    """Return the completion marker, which differs if any file of a folder does."""
    return (Path(folder) / MARKER).read_text()


def require_same(folder: AnyPath, marker: str) -> None:
    """Raise an `InputError` if a folder was written anew since its marker was read."""
    try:
        is_same = marker_of(folder) == marker
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise InputError(
            f"{folder} was written anew or removed while a map of it was open (its "
            f"{MARKER} has changed): open it again"
        )


def _altered(folder: Path, how: str) -> InputError:
    return InputError(
        f"{folder} is not what was written: {how}. Restore it from a copy or write it "
        "again"
    )


def _read_manifest(folder: Path) -> dict[str, FileDigest]:
    """Read a manifest and check it against its marker."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    marker, manifest = folder / MARKER, folder / MANIFEST
    for item in (marker, manifest):
        if not item.is_file():
            raise InputError(
                f"{folder} is incomplete: it has no {item.name}, so its writer did "
                "not finish. Write it again"
            )
    content = manifest.read_bytes()
    if marker.read_bytes() != f"{hashlib.sha256(content).hexdigest()}\n".encode():
        raise _altered(folder, f"altered: {MANIFEST} or {MARKER} (they disagree)")
    record = json.loads(content)
    if record.get("format") != _FORMAT:
        raise InputError(
            f"{manifest} has format {record.get('format')}, expected {_FORMAT}"
        )
    return {name: FileDigest(**entry) for name, entry in record["files"].items()}


def _file_names(folder: Path) -> list[str]:
    """List the files under a folder, except its manifest and marker."""
    names = [file.relative_to(folder).as_posix() for file in visible_files(folder)]
    return sorted(name for name in names if name not in (MANIFEST, MARKER))


def check_output(target: Path, *, overwrite: bool) -> None:
    """Raise an `InputError` if a file or folder cannot be written at ``target``.

    Of folders only an empty one, or one that this program completed, is replaced.
    """
    if target.exists() and not overwrite:
        raise InputError(
            f"{target} exists: choose another output, or replace it (--overwrite; in "
            "Python overwrite=True)"
        )
    holds_files = target.is_dir() and any(target.glob("[!.]*"))
    if holds_files and not (target / MARKER).is_file():
        raise InputError(
            f"{target} holds no {MARKER}, so this program did not write it: only what "
            "it wrote is replaced, choose another output"
        )
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: make it first (output {target})")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is read-only: cannot write {target.name} there")


def check_output_folder(target: Path, marker: str, *, overwrite: bool) -> None:
    """Check as `check_output`, and that only a folder with ``marker`` is replaced."""
    is_empty = target.is_dir() and not any(target.glob("[!.]*"))
    held = (target / marker).is_file()
    if overwrite and target.exists() and not is_empty and not held:
        raise InputError(
            f"{target} holds no {marker}: only a folder that has one is replaced, "
            "choose another output"
        )
    check_output(target, overwrite=overwrite)


@contextmanager
def _beside(target: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a free path in a folder of this process, which is removed at the end."""
    prefix, place = f".{target.name}.", within or target.parent
    # A file by mkstemp would be for its owner's eyes only.
    with TemporaryDirectory(prefix=prefix, suffix=_PART, dir=place) as folder:
        yield Path(folder, "new")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
