"""Errors that a user can correct, and the end of a fit by a signal."""

import importlib.util


class InputError(ValueError):
    """The input, configuration or usage is wrong; the command line exits with 2.

    The message is one clear line (or a few) with the expected and the actual input,
    file, column and number of rows, and advice.
    """


def require_known_system() -> None:
    """Raise `InputError` on Windows, which lacks locks, signals and synced folders."""
    if importlib.util.find_spec("fcntl") is None:
        raise InputError(
            "dustmap runs on Linux and macOS, not on Windows: use it in WSL, the "
            "Windows Subsystem for Linux"
        )


class Stopped(Exception):  # noqa: N818  not an error, but due to a signal
    """A signal ended a fit that can be resumed; the command line exits with 75.

    The message explains how to continue.
    """
