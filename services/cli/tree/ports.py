"""Ports on the loopback interface."""

import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Final

from services.cli.tree.process_specs import LOOPBACK
from services.runtime.errors import UserError

MAX_PORT: Final = 65_535

CANDIDATE_PORTS: Final = range(20_000, 32_768)
"""Ports to choose from. They are below those of Linux's outgoing connections, which could take a service's port."""

MAX_TRIES: Final = 50

_reserved: Final[dict[int, int]] = {}
"""The locks of the ports that this process has chosen, as descriptors: they stay open until the process ends."""


def free_port() -> int:
    """Return a port that is free now. Another program may take it before it is used; then the service reports it."""
    for _ in range(MAX_TRIES):
        port = CANDIDATE_PORTS[secrets.randbelow(len(CANDIDATE_PORTS))]
        if is_free(port) and reserve(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def reserve(port: int) -> bool:
    """Keep other trees that start on this machine from choosing the port, for as long as this process lives.

    A port is chosen a second or more before its service listens there. Returns false where another tree has chosen it.
    """
    if port in _reserved:
        return True
    folder = Path(tempfile.gettempdir()) / f"railbus-{os.getuid()}-ports"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # nowhere to write it down: as good as a port can be chosen then
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it however the process ends
    except OSError:
        os.close(lock)
        return False
    _reserved[port] = lock
    return True


def port_or_free(wanted: int, flag: str) -> int:
    """Return the port that a flag names, or a free one for 0.

    Raises:
        UserError: There is no such port, or it is taken.
    """
    if not 0 <= wanted <= MAX_PORT:
        raise UserError(f"{flag} {wanted}: must be between 1 and {MAX_PORT}, or 0 for any free port")
    if wanted == 0:
        return free_port()
    if not (is_free(wanted) and reserve(wanted)):
        raise UserError(
            f"{flag} {wanted}: the port is in use; stop the program that listens there, or choose another with {flag}"
            " (0 = any free port)"
        )
    return wanted


def usual_port(port: int) -> int:
    """Return the usual port of a service where it is free, else any free one."""
    return port if is_free(port) and reserve(port) else free_port()
