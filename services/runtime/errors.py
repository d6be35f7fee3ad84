"""Errors that end a process with one line and no traceback."""

import errno
from typing import Final

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Numbers of the errors of a full disk."""


class UserError(Exception):
    """A mistake of the user, such as an invalid setting. The message says what is wrong and how to correct it.

    The process prints the message on one line and exits with code 2.
    """


class UnavailableError(Exception):
    """A resource that the process needs cannot be used at present, such as a broker whose disk is full.

    The process prints the message on one line and exits with code 1, so that its supervisor may restart it.
    """
