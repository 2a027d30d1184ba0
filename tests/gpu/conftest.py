"""The device of ``--device``, or a stand-in for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from stand_in_device import STAND_IN, stand_in_device


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Libraries and drivers of a GPU have warnings of their own: no errors."""
    if config.getoption("--device"):
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def waits(pytestconfig: pytest.Config) -> Iterator[Counter | None]:
    """What made the host wait for the stand-in; None on CUDA, which says it itself."""
    if pytestconfig.getoption("--device"):
        yield None
    else:
        with stand_in_device() as counted:
            yield counted


@pytest.fixture
def device(waits: Counter | None) -> torch.device:
    """Where results are compared with the CPU's."""
    return torch.device("cuda") if waits is None else STAND_IN


@pytest.fixture
def no_waiting(waits: Counter | None) -> Callable[[Callable], Callable]:
    """Makes functions whose calls may not make the host wait for the device.

    A number, a size or a copy that is asked of the device is an error within them.
    """

    def watched(function: Callable) -> Callable:
        def call(*arguments):
            if waits is not None:
                before = waits.total()
                found = function(*arguments)
                assert waits.total() == before, "the host waits for the device"
                return found
            torch.cuda.set_sync_debug_mode("error")
            try:
                return function(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    return watched
