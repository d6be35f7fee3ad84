"""The error that a user can mend."""


class UserError(Exception):
    """A user's mistake; the message names the thing and the remedy.

    A process that ends with it prints one line without a traceback and exits with code 2.
    """
