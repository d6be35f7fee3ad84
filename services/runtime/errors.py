"""Errors of the processes themselves."""


class UserError(Exception):
    """Something the person who starts a service can put right; the message names the thing and the remedy.

    A process that ends with it prints one line without a traceback and exits with code 2.
    """
