"""What goes wrong for reasons a user can mend."""


class InputError(ValueError):
    """The input, configuration or usage is wrong; the command line exits with 2.

    The message is one clear line (or a few) that says what was expected, what came,
    which file, column and how many rows, and what to do.
    """
