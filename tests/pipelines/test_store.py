"""Files are whole or absent, and a changed folder is noticed."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from pipelines.base.errors import InputError
from pipelines.storage.atomic import (
    MARKER,
    atomic_directory,
    atomic_file,
    check_manifest,
    check_output_folder,
    write_manifest,
)
from pipelines.storage.digests import input_digests

WRITER = """
import sys, time
from pipelines.storage.atomic import atomic_file, atomic_directory
with atomic_{kind}(sys.argv[1], overwrite=True) as temporary:
    target = temporary / "part" if {folder} else temporary
    target.write_text("half of the new")
    print("writing", flush=True)
    time.sleep(60)
"""


def kill_while_writing(kind, path):
    code = WRITER.format(kind=kind, folder=kind == "directory")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_killing_a_writer_leaves_the_old_or_none(tmp_path, kind, existing):
    path = tmp_path / "map"
    content = path / "part" if kind == "directory" else path
    if existing:
        content.parent.mkdir(exist_ok=True)
        content.write_text("old")
        if kind == "directory":
            (path / MARKER).touch()
    kill_while_writing(kind, path)
    assert (content.read_text() == "old") if existing else not path.exists()
    write = atomic_file if kind == "file" else atomic_directory
    with write(path, overwrite=True) as temporary:
        (temporary / "part" if kind == "directory" else temporary).write_text("new")
    assert content.read_text() == "new"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/old").touch()
    (tmp_path / "kept" / MARKER).touch()
    for context, name in (
        (atomic_file, "new.fits"),
        (atomic_directory, "new.zarr"),
        (atomic_directory, "kept"),
    ):
        with (
            pytest.raises(RuntimeError, match="boom"),
            context(tmp_path / name, overwrite=True),
        ):
            raise RuntimeError("boom")
    assert [item.name for item in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/old").exists()


def test_outputs_that_cannot_be_written_are_refused_with_the_reason(tmp_path):
    (tmp_path / "old").touch()
    (tmp_path / "folder").mkdir()
    for path, overwrite, message in (
        (tmp_path / "old", False, "exists"),
        (tmp_path / "absent/new", False, "is not a folder"),
        (tmp_path / "folder", True, "is a folder"),
    ):
        with (
            pytest.raises(InputError, match=message),
            atomic_file(path, overwrite=overwrite),
        ):
            pytest.fail("the block must not run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with (
        pytest.raises(InputError, match="read-only"),
        atomic_file(tmp_path / "new", overwrite=False),
    ):
        pytest.fail("the block must not run")


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "run"
    (run / "nested").mkdir(parents=True)
    (run / "a.txt").write_text("alpha")
    (run / "nested/b.bin").write_bytes(bytes(100))
    write_manifest(run)
    return run


CHANGES = {
    "missing: a.txt": lambda f: (f / "a.txt").unlink(),
    "altered: a.txt": lambda f: (f / "a.txt").write_text("alphb"),
    "altered: nested/b.bin": lambda f: (f / "nested/b.bin").write_bytes(bytes(99)),
    "not in the manifest: nested/c": lambda f: (f / "nested/c").touch(),
    "no COMPLETE": lambda f: (f / "COMPLETE").unlink(),
    "no manifest.json": lambda f: (f / "manifest.json").unlink(),
    "disagree": lambda f: (f / "COMPLETE").write_text("0" * 64),
    "altered: manifest.json": lambda f: (f / "manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_changed_folder_is_refused_by_name(folder, message):
    CHANGES[message](folder)
    with pytest.raises(InputError, match=message):
        check_manifest(folder)


def test_hidden_files_of_a_desktop_belong_to_no_folder(folder, tmp_path):
    before = input_digests(folder)
    for name in (".DS_Store", "._a.txt", "nested/.DS_Store", ".Spotlight/index"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\0Bud1")
    assert input_digests(folder) == before
    check_manifest(folder)
    write_manifest(folder)
    for file in folder.rglob(".*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    check_manifest(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".DS_Store").touch()
    check_output_folder(empty, "run.json", overwrite=True)


def test_files_are_as_visible_to_others_as_the_user_wants(tmp_path):
    old = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file", overwrite=False) as part:
            part.write_text("x")
        with atomic_directory(tmp_path / "folder", overwrite=False) as part:
            (part / "file").write_text("x")
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o640, "folder": 0o750}


def test_many_faults_are_counted_and_extra_files_may_be_allowed(folder):
    for number in range(9):
        (folder / f"extra{number}").touch()
    check_manifest(folder, allow_extra=True)
    with pytest.raises(InputError, match="and 4 more"):
        check_manifest(folder)
    (folder / "a.txt").unlink()
    with pytest.raises(InputError, match="missing"):
        check_manifest(folder, allow_extra=True)
