"""Errors that a user can mend, and the end of a fit by a signal."""


class InputError(ValueError):
    """The input, configuration or usage is wrong; the command line exits with 2.

    The message is one clear line (or a few) that says what was expected, what came,
    which file, column and how many rows, and what to do.
    """


class Stopped(Exception):  # noqa: N818  it is no error: a signal asked for it
    """A signal ended a fit that can be resumed; the command line exits with 75.

    The message says how to go on.
    """
