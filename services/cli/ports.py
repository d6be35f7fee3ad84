"""Ports on the loopback interface."""

import secrets
import socket
from typing import Final

from services.cli.fleet import LOOPBACK
from services.runtime.errors import UserError

KAFKA_PORT: Final = 9092


UNCLAIMED: Final = range(20_000, 32_768)
"""Below what Linux gives to outgoing connections: one of those could take a port before its service does."""

TRIES: Final = 50


def free_port() -> int:
    """A port that is free now. Somebody else may take it before it is used; then the service says so."""
    for _ in range(TRIES):
        port = UNCLAIMED[secrets.randbelow(len(UNCLAIMED))]
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def chosen_port(wanted: int, flag: str) -> int:
    """The port asked for, or a free one when that is 0.

    Raises:
        UserError: It is taken.
    """
    if wanted == 0:
        return free_port()
    if not is_free(wanted):
        raise UserError(f"port {wanted} is in use: stop what listens there, or choose another with {flag} (0 = any)")
    return wanted


def kafka_port() -> int:
    """Kafka's usual port where it is free, so that other clients find the broker; any other free one else."""
    return KAFKA_PORT if is_free(KAFKA_PORT) else free_port()
