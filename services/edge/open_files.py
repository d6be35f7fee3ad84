"""Raise the process's limit of open files, and compute how many connections it allows."""

import resource
from typing import Final, NamedTuple

from services.edge.http.connection_table import MAX_REFUSED
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("edge")

MAX_BACKLOG: Final = 1_024
MIN_BACKLOG: Final = 128
"""Minimum length of the listen backlog. Files are reserved for it, because all of it may be accepted at once."""

OWN_FILES: Final = 64
"""Open files other than client connections: brokers, Redis, the listening socket, standard streams."""

RESERVED_FILES: Final = MIN_BACKLOG + OWN_FILES + MAX_REFUSED

MIN_CONNECTIONS: Final = 16


class ConnectionLimits(NamedTuple):
    connections: int
    backlog: int


def connection_limits(wanted: int) -> ConnectionLimits:
    """Raise the limit of open files, so that ``wanted`` connections fit if possible.

    Return the number of connections and the length of the listen backlog that the new limit allows.

    Raises:
        UserError: The hard limit of open files allows too few connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = raised_limit(soft, hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS refuses some values below the hard limit
        limit = soft
    fit = connections_that_fit(limit, wanted)
    if fit < wanted:
        _log.warning(
            "RAILBUS_MAX_CONNECTIONS=%d needs %d open files and %d are allowed: at most %d connections; "
            "raise the limit (ulimit -n)", wanted, wanted + RESERVED_FILES, limit, fit,
        )  # fmt: skip
    return ConnectionLimits(fit, backlog_that_fits(limit, fit))


def raised_limit(soft: int, hard: int, wanted: int) -> int:
    """Return the soft limit to set: enough for ``wanted`` connections, at least ``soft``, and at most ``hard``."""
    if soft == resource.RLIM_INFINITY:
        return soft
    needed = max(soft, wanted + RESERVED_FILES + MAX_BACKLOG - MIN_BACKLOG)
    return needed if hard == resource.RLIM_INFINITY else min(needed, hard)


def connections_that_fit(limit: int, wanted: int) -> int:
    """Return how many connections, at most ``wanted``, fit in a process that may open ``limit`` files.

    Raises:
        UserError: The number is less than ``wanted`` and less than ``MIN_CONNECTIONS``.
    """
    fit = wanted if limit == resource.RLIM_INFINITY else min(wanted, limit - RESERVED_FILES)
    if fit < min(wanted, MIN_CONNECTIONS):
        raise UserError(
            f"the limit of open files is {limit}, and the edge needs at least {MIN_CONNECTIONS + RESERVED_FILES}: "
            "raise it (ulimit -n)"
        )
    return fit


def backlog_that_fits(limit: int, connections: int) -> int:
    if limit == resource.RLIM_INFINITY:
        return MAX_BACKLOG
    return min(MAX_BACKLOG, limit - connections - OWN_FILES - MAX_REFUSED)
