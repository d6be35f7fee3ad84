"""Errors of the bus.

BusError
 |- ProducerClosed   the producer was stopped before it accepted the event
 |- NotAcknowledged  the producer accepted the event, but ended before the broker acknowledged it
 `- EventRejected    the broker refused the event; sending it again would not help
"""


class BusError(Exception):
    """Base class of the bus's errors."""


class ProducerClosed(BusError):
    """The producer is not running. Start it before posting, and do not post after stopping it."""


class NotAcknowledged(BusError):
    """The producer stopped before the broker acknowledged the event. The event may be on the log or not."""


class EventRejected(BusError):
    """The broker refused the event and would refuse it again, for example because it is too large."""
