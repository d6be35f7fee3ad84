"""The process's limit of open files. Each connection takes one file."""

import resource
from typing import Final, NamedTuple

from services.edge.http.connection_table import MAX_REFUSED
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("edge")

MAX_BACKLOG: Final = 1_024
MIN_BACKLOG: Final = 128
"""Connections that the kernel holds for the edge. The edge accepts all of them at once, before it can close any."""

OWN_FILES: Final = 64
"""Files of the process itself: brokers, Redis, the listening socket, standard streams."""

RESERVED_FILES: Final = MIN_BACKLOG + OWN_FILES + MAX_REFUSED

MIN_CONNECTIONS: Final = 16


class ConnectionLimits(NamedTuple):
    """What the limit of open files allows."""

    connections: int
    backlog: int


def connection_limits(wanted: int) -> ConnectionLimits:
    """Raise the process's limit of open files to its maximum; return the connections that it allows.

    Raises:
        UserError: The maximum allows too few connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = raised_limit(soft, hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):  # macOS allows less than its hard limit says
        limit = soft
    fit = connections_that_fit(limit, wanted)
    if fit < wanted:
        _log.warning(
            "RAILBUS_MAX_CONNECTIONS=%d needs %d open files and %d are allowed: at most %d connections; "
            "raise the limit (ulimit -n)", wanted, wanted + RESERVED_FILES, limit, fit,
        )  # fmt: skip
    return ConnectionLimits(fit, backlog_that_fits(limit, fit))


def raised_limit(soft: int, hard: int, wanted: int) -> int:
    """Return the soft limit to set: enough for the connections, never less than before, never above the hard one."""
    if soft == resource.RLIM_INFINITY:
        return soft
    needed = max(soft, wanted + RESERVED_FILES + MAX_BACKLOG - MIN_BACKLOG)
    return needed if hard == resource.RLIM_INFINITY else min(needed, hard)


def connections_that_fit(limit: int, wanted: int) -> int:
    """Return how many connections a limit of open files allows, at most ``wanted``.

    Raises:
        UserError: The limit allows too few connections.
    """
    fit = wanted if limit == resource.RLIM_INFINITY else min(wanted, limit - RESERVED_FILES)
    if fit < min(wanted, MIN_CONNECTIONS):
        raise UserError(
            f"the limit of open files is {limit}, and the edge needs at least {MIN_CONNECTIONS + RESERVED_FILES}: "
            "raise it (ulimit -n)"
        )
    return fit


def backlog_that_fits(limit: int, connections: int) -> int:
    """Return how many connections the kernel may hold, so that taking all of them leaves files for the rest."""
    if limit == resource.RLIM_INFINITY:
        return MAX_BACKLOG
    return min(MAX_BACKLOG, limit - connections - OWN_FILES - MAX_REFUSED)
