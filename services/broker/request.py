"""A request's header, and what a handler is given."""

from typing import TYPE_CHECKING, NamedTuple

from services.broker.later import Later
from services.broker.wire import Reader

if TYPE_CHECKING:
    from services.broker.core import Broker

Answered = bytes | Later | None  # a response's body; one that comes later; none at all (Produce with acks=0)


class CloseConnection(Exception):
    """The protocol has no answer for this: the connection is closed, with this reason in the log."""


class Request(NamedTuple):
    """One request, its body still to be read."""

    broker: "Broker"
    key: int
    version: int
    client_id: str
    client_host: str
    body: Reader
