"""Errors of the bus.

BusError
 |- ProducerClosed   the producer was stopped before it accepted the event
 |- NotAcknowledged  accepted, but not acknowledged before the producer ended
 `- EventRejected    the broker refused the event; sending it again would not help
"""


class BusError(Exception):
    """The bus could not do what was asked."""


class ProducerClosed(BusError):
    """The producer is not running: start it before posting, post nothing after stopping it."""


class NotAcknowledged(BusError):
    """The producer stopped before the broker acknowledged the event; it may or may not be on the log."""


class EventRejected(BusError):
    """The broker refused the event, and would again: it is too large, for example."""
