"""Errors that end a process with one line and no traceback."""


class UserError(Exception):
    """A user's mistake. The message says what is wrong and how to mend it.

    A process that ends with it prints one line without a traceback and exits with code 2.
    """


class UnavailableError(Exception):
    """Something that the process needs cannot be used at present, such as a broker whose disk is full.

    A process that ends with it prints one line without a traceback and exits with code 1, so that its supervisor may
    start it again.
    """
