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
"""Range of the chosen ports. It is below Linux's range for outgoing connections, which could take a service's port."""

MAX_TRIES: Final = 50

_reserved: Final[dict[int, int | None]] = {}
"""Lock file descriptors of the ports that this process has chosen. They stay open until the process ends."""


def free_port() -> int:
    for _ in range(MAX_TRIES):
        port = CANDIDATE_PORTS[secrets.randbelow(len(CANDIDATE_PORTS))]
        if is_free(port) and reserve(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def reserve(port: int) -> bool:
    """Lock a port against other ``railbus up`` processes and ``infra/kafka/run.py`` until this process ends.

    Return False if this process or another one has locked it already.
    """
    # A lock is needed, because a port is chosen a second or more before its service listens there.
    if port in _reserved:
        return False
    folder = Path(tempfile.gettempdir()) / f"railbus-{os.getuid()}-ports"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        _reserved[port] = None  # no lock file can be made, so only this process knows
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases the lock however the process ends
    except OSError:
        os.close(lock)
        return False
    _reserved[port] = lock
    return True


def port_or_free(wanted: int, flag: str) -> int:
    """Return the port ``wanted``, or a free port if ``wanted`` is 0.

    Raises:
        UserError: ``wanted`` is not a port number, or is in use. The message names ``flag``.
    """
    if not 0 <= wanted <= MAX_PORT:
        raise UserError(f"{flag} {wanted}: must be between 1 and {MAX_PORT}, or 0 for any free port")
    if wanted == 0:
        return free_port()
    if not (is_free(wanted) and (wanted in _reserved or reserve(wanted))):  # `railbus up` asks twice for its port
        raise UserError(
            f"{flag} {wanted}: the port is in use; stop the program that listens there, or choose another with {flag}"
            " (0 = any free port)"
        )
    return wanted


def usual_port(port: int) -> int:
    return port if is_free(port) and reserve(port) else free_port()
