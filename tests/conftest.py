"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Files whose tests share no fixture and take long: any core may have any of them.
_APART = ("test_notebooks.py",)
# Files that begin with long work, which others of them share or would end with. While
# the first compiles the loops of a fit, for a minute, another core runs regressions.
_REGRESSIONS = ("test_regress_grid.py", "test_estimator.py", "test_regress.py")
_FITS = ("test_golden.py", "test_kills.py", "test_surveys_joined.py")
_FIRST = (*_APART, "test_judged_exports.py", *_REGRESSIONS, *_FITS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--check-shapes",
        action="store_true",
        help="check the annotated shapes of dustmap on every call (twice as slow)",
    )
    parser.addoption(
        "--device", choices=["cuda"], help="of tests/gpu; a stand-in by default"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Checks are installed before any test imports dustmap."""
    if config.getoption("--device") and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch sees no CUDA device here")
    if config.getoption("--check-shapes"):
        import shape_checks

        shape_checks.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no core waits for it in the end."""
    places = {name: place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run on several cores, those of a file share one, and its fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return nodeid if Path(file).name in _APART else file

    return ByFile(config, log)


@pytest.fixture
def generator() -> torch.Generator:
    """Random numbers, the same ones in every run of a test."""
    return torch.Generator().manual_seed(20210413)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The development data; tests that use it carry ``@pytest.mark.data``."""
    named = os.environ.get("DUSTMAP_DATA")
    folder = (
        Path(named)
        if named
        else Path(__file__).resolve().parents[1].parent / "shared" / "data"
    )
    if not folder.is_dir():
        pytest.skip(
            f"no development data: {folder} is not a folder "
            "(set DUSTMAP_DATA or put it at ../shared/data)"
        )
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small problems in two threads of a busy machine take a hundred times as long."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def no_baseline() -> Iterator[None]:
    """Fits without kriging of held-out stars, which takes most of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.fit.judging.learn_baseline", lambda *_: None)
        yield
